// SPDX-License-Identifier: Apache-2.0
// One cell of `sluice bench moe`: a layer of random weights, cold and randomly routed, against ceilings that are
// measured between the runs.
#pragma once

#include <string>
#include <vector>

#include "device/context.h"
#include "kernels/cpu/ceilings.h"
#include "moe/backend.h"

namespace sluice::apps {

struct BenchOptions {
  double seconds = 1.0;                   // of runs, for each cell
  int64_t cold_bytes = int64_t{1} << 30;  // weights in rotation, at least
  kernels::cpu::Isa isa = kernels::cpu::best_isa();
};

struct BenchCell {
  MoeSpec spec;
  int64_t tokens = 0;
  double experts_touched = 0;  // mean
  double min_s = 0, median_s = 0;
  double flops = 0, bytes = 0;              // of the median run: weights of touched experts only
  double read_bandwidth = 0, dot_rate = 0;  // medians of the neighbouring probes
  double floor_s() const { return std::max(bytes / read_bandwidth, flops / dot_rate); }
};

// Prepares layers of `spec` once; measures each number of tokens.
class MoeBench {
 public:
  MoeBench(Context& ctx, const kernels::cpu::Ceilings& ceilings, const MoeSpec& spec, const BenchOptions& options);
  ~MoeBench();
  BenchCell measure(Context& ctx, int64_t tokens);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::apps
