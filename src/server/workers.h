// SPDX-License-Identifier: Apache-2.0
// A few threads and a bounded queue, for requests whose reading takes longer than the server's thread may wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice::server {

class Workers {
 public:
  Workers(int threads, size_t most_waiting);
  ~Workers();  // what waits is dropped
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False, and nothing done, when `most_waiting` jobs wait already.
  bool submit(std::function<void()> job);
  size_t waiting() const;

 private:
  void loop();

  size_t most_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::server
