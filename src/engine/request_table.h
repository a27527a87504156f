// SPDX-License-Identifier: Apache-2.0
// The open requests: the sink of each, its output sequences by the scheduler's handle, and the delivery of events.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/metrics.h"
#include "engine/output_sequence.h"
#include "engine/scheduler.h"

namespace sluice::engine {

class RequestTable {
 public:
  // Every finished sequence is removed from the scheduler and counted by the metrics; both must live longer.
  RequestTable(Scheduler& scheduler, Metrics& metrics) : scheduler_(scheduler), metrics_(metrics) {}

  // The id of a new request: `wanted`, or for 0 the next free one. Throws invalid_argument when it is in use.
  RequestId new_id(RequestId wanted) const;
  // Registers a request with `choices` output sequences, each of which the caller inserts under the scheduler's handle.
  void open(RequestId id, Sink sink, int choices);
  void insert(Handle handle, std::unique_ptr<OutputSequence> output);
  OutputSequence& at(Handle handle) { return *outputs_[static_cast<size_t>(handle)].output; }

  // `then` is called before a sink hears of the first tokens or of the end of an answer, which scheduler and metrics
  // count already.
  void on_change(std::function<void()> then) { on_change_ = std::move(then); }
  // Passes the sequence's event to the request's sink, if it holds anything new. A finished sequence is removed from
  // this table and from the scheduler.
  void publish(Handle handle, Clock::time_point now);
  // Ends a request. False: there is none with this id.
  bool cancel(RequestId id);
  void cancel_all();
  // Whether the handle still belongs to `output`: a finished sequence's handle may be another's by now.
  bool holds(Handle handle, const OutputSequence* output) const {
    return outputs_[static_cast<size_t>(handle)].output.get() == output;
  }
  // The sequences that have not ended compute their prompts anew.
  void restart_scores();
  bool timed() const { return timed_ > 0; }
  // Ends the sequences that have passed their timeout.
  void expire(Clock::time_point now);

 private:
  struct OpenRequest {
    Sink sink;
    int open = 0;          // output sequences that have not ended
    int64_t longest = -1;  // tokens of the longest answer that was not cut off; -1: none yet
  };
  struct Output {
    std::unique_ptr<OutputSequence> output;
    OpenRequest* request = nullptr;  // looked up with its first event
  };
  void record_latencies(OutputSequence& output, Clock::time_point now);
  void record_end(Output& at);
  void count_end(Output& at);
  void erase(Handle handle);

  Scheduler& scheduler_;
  Metrics& metrics_;
  std::function<void()> on_change_ = [] {};
  std::unordered_map<RequestId, OpenRequest> requests_;
  std::vector<Output> outputs_;  // by handle
  RequestId last_id_ = 0;
  int64_t timed_ = 0;  // sequences with a timeout
};

}  // namespace sluice::engine
