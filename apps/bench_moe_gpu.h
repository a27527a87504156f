// SPDX-License-Identifier: Apache-2.0
// `sluice bench moe --device cuda`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::apps {

struct GpuBenchOptions {
  std::string shape, inputs;
  std::vector<std::string> formats;  // or "all"
  std::vector<int64_t> tokens;
  double bf16_tflops, fp8_tflops;  // dense rates for the lower bounds
  bool logits = false;             // route from logits
  bool json = false;
};

// Prints one line per cell. Throws `unsupported` where there is no Hopper GPU, or no CUDA in this build.
void bench_moe_gpu(const GpuBenchOptions& options);

}  // namespace sluice::apps
