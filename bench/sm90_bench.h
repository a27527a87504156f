// SPDX-License-Identifier: Apache-2.0
// What the GPU benchmarks share: shapes, formats, ceilings, timing.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/sm90/fused_moe/fused_moe.h"

namespace sluice::bench {

using sm90::check_cuda;

struct BenchShape {
  const char* name;
  int64_t hidden, inter;
  int experts, locals, top_k;
  activation::Activation act;
};
struct Kind {
  const char* name;
  format::Format weights;
  format::InputFormat inputs;
  double bits;  // a weight, scales included
  bool fp8;     // floor of flops at the FP8 rate
  bool f32_sums = false;
};
struct Options {
  std::vector<std::string> shapes, kinds, instances;
  std::vector<int> splits;  // pairs to force
  std::vector<int64_t> tokens{1, 8, 32, 128, 512, 2048, 8192};
  double copy_tbs = 0, bf16_tflops = 790, fp8_tflops = 1497;
  bool pdl = true, logits = false;
  int64_t cold_mb = 2400;  // weights in rotation, at least
  int replays = 20;
};

extern const std::vector<BenchShape> kShapes;
extern const std::vector<Kind> kKinds;

// Device-to-device copy, bytes read plus bytes written: TB/s.
double measure_copy();

// Random codes of moderate size over the whole prepared matrix; scales near what a trained layer has.
void fill(sm90::PreparedMatrix& m, std::mt19937_64& rng);

// One CUDA graph of `calls` calls: microseconds a call, the median of its replays.
double replayed_us(int calls, int replays, const std::function<void(cudaStream_t, int)>& call);

MoeSpec spec_of(const BenchShape& shape, const Kind& kind, bool logits);

void bench_dense(const Options& o);
void bench_prepare(const Options& o, const BenchShape& shape, const Kind& kind);

}  // namespace sluice::bench
