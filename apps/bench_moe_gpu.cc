// SPDX-License-Identifier: Apache-2.0
#include "bench_moe_gpu.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#if defined(SLUICE_WITH_CUDA)
#include "moe_cells_sm90.h"
#endif

namespace sluice::apps {

#if defined(SLUICE_WITH_CUDA)
namespace {

// The benchmark's names of the pairs of weights and inputs that --format and --inputs ask for.
std::vector<std::string> kinds_of(const GpuBenchOptions& o) {
  std::vector<std::string> kinds;
  for (const std::string& name : o.formats) {
    const size_t before = kinds.size();
    for (const bench::Kind& k : bench::kKinds) {
      if (k.f32_sums || (name != "all" && format::info(k.weights).name != name)) continue;
      const bool inputs = o.inputs.empty() ? name == "all" || kinds.size() == before
                                           : name_of(format::kInputFormats, k.inputs) == o.inputs;
      if (inputs) kinds.push_back(k.name);
    }
    if (kinds.size() == before)
      fail(ErrorCode::invalid_argument,
           "--format {} with --inputs \"{}\" is not measured on the GPU; accepted: bf16, fp8_tensor, fp8_block, mxfp8, "
           "nvfp4 (also with nvfp4_token), mxfp4, all",
           name, o.inputs);
  }
  return kinds;
}

void print(const bench::Cell& c) {
  std::printf("%-16s %-8s %6lld %9.1f %9.1f %-5s %6.2f  %s\n", c.shape.c_str(), c.kind.c_str(),
              static_cast<long long>(c.tokens), c.us, c.floor_us, c.bound_by.c_str(), c.us / c.floor_us,
              c.tile.c_str());
  std::fflush(stdout);
}

void print_json(const bench::Cell& c) {
  const auto kind =
      std::find_if(bench::kKinds.begin(), bench::kKinds.end(), [&](const bench::Kind& k) { return c.kind == k.name; });
  const nlohmann::ordered_json line{{"shape", c.shape},
                                    {"format", format::info(kind->weights).name},
                                    {"inputs", name_of(format::kInputFormats, kind->inputs)},
                                    {"tokens", c.tokens},
                                    {"us", c.us},
                                    {"floor_us", c.floor_us},
                                    {"bound_by", c.bound_by},
                                    {"time_over_floor", c.us / c.floor_us},
                                    {"tile", c.tile}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}
}  // namespace

void bench_moe_gpu(const GpuBenchOptions& options) {
  bench::Options o;
  o.shapes = {std::string(bench::find_shape(options.shape).name)};
  o.kinds = kinds_of(options);
  o.tokens = options.tokens;
  o.logits = options.logits;
  o.bf16_tflops = options.bf16_tflops;
  o.fp8_tflops = options.fp8_tflops;
  if (const std::string problem = bench::gpu_problem(); !problem.empty())
    fail(ErrorCode::unsupported, "--device cuda: {}", problem);
  o.copy_tbs = bench::measure_copy();
  if (!options.json) {
    std::printf("copy %.2f TB/s; floors with %.0f (bf16) and %.0f (fp8) TFLOP/s\n", o.copy_tbs, o.bf16_tflops,
                o.fp8_tflops);
    std::printf("%-16s %-8s %6s %9s %9s %-5s %6s  tile\n", "shape", "format", "T", "us", "floor us", "bound", "ratio");
  }
  bench::measure_moe(o, options.json ? print_json : print);
}

#else
void bench_moe_gpu(const GpuBenchOptions&) {
  fail(ErrorCode::unsupported, "--device cuda: this build has no CUDA; configure with SLUICE_CUDA=ON");
}
#endif

}  // namespace sluice::apps
