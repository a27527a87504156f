// SPDX-License-Identifier: Apache-2.0
// How answers get from the engine's thread to the server's: all that a step brings is handed over together. A wake-up
// for each answer made the two threads fight for the event loop's lock: 1.0 ms of every step with 64 answers. So while
// the server's thread delivers, which takes it longer than the engine's thread needs for the rest of a step, nobody
// wakes it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sluice::server {

class Recipient {
 public:
  virtual ~Recipient() = default;
  virtual void deliver() = 0;  // on the server's thread
};

class Mailbox {
 public:
  // Any thread. Calls `wake`, which must have the server's thread call deliver_all(), unless that is coming anyway or
  // not over yet. Passes on what `wake` throws; the next put() wakes again, and this recipient is delivered then.
  void put(std::shared_ptr<Recipient> recipient, const std::function<void()>& wake);
  // On the server's thread: everyone's deliver(), in the order of put(). Calls `wake`, as put() does, when others have
  // come meanwhile: what else the thread has to do comes before them.
  void deliver_all(const std::function<void()>& wake);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Recipient>> waiting_;
  bool coming_ = false;  // deliver_all(), or it is not over yet
};

}  // namespace sluice::server
