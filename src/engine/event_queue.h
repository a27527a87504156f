// SPDX-License-Identifier: Apache-2.0
// The events of some requests on their way from the engine's thread to one reader.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace sluice::engine {

class EventQueue {
 public:
  struct Entry {
    size_t source = 0;  // which of the requests
    Event event;
    int64_t mark = 0;  // of the last push
  };

  // open: choices of all requests, each of which has one last event.
  explicit EventQueue(int64_t open) : open_(open) {}

  // Any thread. Events of one choice that were not read yet become one, so the memory is bounded by the answers.
  // mark: anything of the caller's.
  void push(size_t source, const Event& event, int64_t mark = 0);
  // The next one; waits at most `timeout`. Nothing: none yet, or all choices have finished (done()).
  std::optional<Entry> next(std::chrono::milliseconds timeout);
  bool done() const;  // every choice's last event was taken

 private:
  // The number of the entry that was made last for a choice; -1: there was none.
  int64_t& number_of(size_t source, int choice);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;                  // at most one per choice; numbered from taken_ on
  int64_t taken_ = 0;                          // entries so far
  std::vector<std::vector<int64_t>> numbers_;  // by source and choice
  int64_t open_;
};

}  // namespace sluice::engine
