// SPDX-License-Identifier: Apache-2.0
// The GPU benchmarks as a program that needs nothing but the driver: cells of the fused layer, repacking, dense
// GEMMs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "other_program.h"
#include "sm90_bench.h"

using namespace sluice;
using namespace sluice::bench;

namespace {
void print(const Cell& c) {
  std::printf("%-16s %-8s T=%-5lld %9.1f us  floor %8.1f %-5s  x%.2f  %s s%d,%d%s\n", c.shape.c_str(), c.kind.c_str(),
              static_cast<long long>(c.tokens), c.us, c.floor_us, c.bound_by.c_str(), c.us / c.floor_us, c.tile.c_str(),
              c.splits[0], c.splits[1], c.forced ? " (forced)" : "");
  std::fflush(stdout);
}
}  // namespace

int main(int argc, char** argv) {
  Options o;
  bool dense = false, repack = false, after_other = false;
  CLI::App app("Fused MoE on one Hopper GPU");
  app.add_option("--shapes", o.shapes)->delimiter(',');
  app.add_option("--kinds", o.kinds)->delimiter(',');
  app.add_option("--tokens", o.tokens)->delimiter(',');
  app.add_option("--instances", o.instances, "also force these tiles; all")->delimiter(',');
  app.add_option("--splits", o.splits, "also force these pairs of splits")->delimiter(',');
  app.add_option("--cold-mb", o.cold_mb, "weights in rotation, at least");
  app.add_option("--replays", o.replays);
  app.add_option("--bf16-tflops", o.bf16_tflops);
  app.add_option("--fp8-tflops", o.fp8_tflops);
  app.add_flag("--separate-rounding", o.separate_rounding,
               "also with a kernel between the GEMMs for rows that have a scale each");
  app.add_flag("!--no-pdl", o.pdl);
  app.add_flag("--logits", o.logits, "route from logits instead of given top-k");
  app.add_flag("--repack", repack, "the repacking of weights in device memory instead");
  app.add_flag("--dense", dense, "dense GEMMs of shared experts and latent projections instead");
  app.add_flag("--after-other", after_other,
               "each call after a kernel that does not let it start early, as in another program's steps");
  CLI11_PARSE(app, argc, argv);
  try {
    if (const std::string problem = sm90::device_problem(); !problem.empty()) {
      std::printf("skipped: %s\n", problem.c_str());
      return 0;
    }
    sm90::DeviceBuffer copied;
    if (after_other) {
      int64_t hidden = 0, tokens = 0;
      for (const BenchShape& s : shapes()) hidden = std::max<int64_t>(hidden, s.hidden);
      for (const int64_t t : o.tokens) tokens = std::max(tokens, t);
      copied = sm90::DeviceBuffer(tokens * hidden * 2);
      o.before = [&](const void* rows, int64_t bytes, void* stream) {
        launch_other_program(rows, copied.data(), bytes / 16, stream);
      };
    }
    o.copy_tbs = measure_copy();
    std::printf("copy %.2f TB/s; floors with %.0f (bf16) and %.0f (fp8) TFLOP/s\n", o.copy_tbs, o.bf16_tflops,
                o.fp8_tflops);
    const auto wanted = [](const std::vector<std::string>& list, std::string_view name) {
      return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
    };
    if (dense) {
      bench_dense(o);
      return 0;
    }
    if (!repack) {
      measure_moe(o, print);
      return 0;
    }
    for (const BenchShape& s : shapes())
      for (const Kind& k : kKinds)
        if (wanted(o.shapes, s.name) && wanted(o.kinds, k.name)) bench_repack(o, s, k);
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
}
