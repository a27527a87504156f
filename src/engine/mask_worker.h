// SPDX-License-Identifier: Apache-2.0
// A thread that makes the masks of a step while the model computes its logits: the pool's threads are the model's then.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace sluice::engine {

class MaskWorker {
 public:
  MaskWorker() = default;
  ~MaskWorker();  // waits
  MaskWorker(const MaskWorker&) = delete;
  MaskWorker& operator=(const MaskWorker&) = delete;

  // Begins `work`, which must not throw. The thread is made at the first call; where the system gives none, `work` runs
  // here. wait() before the next.
  void start(std::function<void()> work);
  void wait();  // returns at once when nothing was started

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice::engine
