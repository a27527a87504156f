// SPDX-License-Identifier: Apache-2.0
// Who asked for what: the requests' readers, their choices by the scheduler's handle, and how they hear of what is new.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/choice.h"
#include "engine/metrics.h"
#include "engine/scheduler.h"

namespace sluice::engine {

class Answers {
 public:
  // Ends are told to the scheduler and counted in the metrics; both must live longer.
  Answers(Scheduler& scheduler, Metrics& metrics) : scheduler_(scheduler), metrics_(metrics) {}

  // The id of a new request: `wanted`, or for 0 the next free one. Throws invalid_argument when it is in use.
  RequestId new_id(RequestId wanted) const;
  // A request and then each of its choices, which the scheduler knows already.
  void open(RequestId id, Sink sink, int choices);
  void insert(Handle handle, std::unique_ptr<Choice> choice);
  Choice& at(Handle handle) { return *choices_[static_cast<size_t>(handle)]; }

  // Tells the reader what is new, if anything is; a finished choice is forgotten by everybody.
  void publish(Handle handle, Clock::time_point now);
  // False: no such request.
  bool cancel(RequestId id);
  void cancel_all();

 private:
  struct Job {
    Sink sink;
    int open = 0;  // choices
  };
  void measure(Choice& choice, Clock::time_point now);
  void end(Handle handle);

  Scheduler& scheduler_;
  Metrics& metrics_;
  std::unordered_map<RequestId, Job> jobs_;
  std::vector<std::unique_ptr<Choice>> choices_;  // by handle
  RequestId last_id_ = 0;
};

}  // namespace sluice::engine
