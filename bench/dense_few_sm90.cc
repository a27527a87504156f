// SPDX-License-Identifier: Apache-2.0
// Dense products of few rows on one GPU, as a decode step has them: BF16 rows in, BF16 out, replays of a graph in which
// each call has other weights. Microseconds a call against the bytes at the copy rate plus nothing; by parts of K.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/bf16.h"
#include "kernels/sm90/dense/dense_gemm.h"
#include "sm90_bench.h"

using namespace sluice;
using namespace sluice::bench;

namespace {

struct Matrix {
  const char* name;
  int64_t rows, cols;  // N, K
};
constexpr Matrix kShapes[] = {
    {"qwen3 qkv", 5120, 2048},    {"qwen3 o", 2048, 4096},        {"qwen3 router", 128, 2048},
    {"qwen3 head", 151936, 2048}, {"nano in_proj", 10304, 2688},  {"nano out_proj", 2688, 4096},
    {"nano qkv", 4608, 2688},     {"nano shared up", 3712, 2688}, {"nano shared down", 2688, 3712},
    {"nano router", 128, 2688},   {"nano head", 131072, 2688},    {"v3 q_a kv_a", 2112, 7168},
    {"v3 q_b", 24576, 1536},      {"v3 kv_b", 32768, 512},        {"v3 o", 7168, 16384},
    {"v3 shared up", 4096, 7168}, {"v3 shared down", 7168, 2048}, {"v3 router", 256, 7168},
};
struct Choice {
  std::vector<std::string> shapes;
  bool all_parts = false;
  double seconds = 80;
};

// A variant of a call: parts of K, 0 for the grouped GEMM, or nothing: what would be chosen.
using Variant = std::optional<int>;

void bench_shape(const Options& o, const Choice& c, const Matrix& shape, const Kind& kind,
                 std::chrono::steady_clock::time_point end) {
  sm90::DenseSpec spec{shape.rows, shape.cols, kind.weights, kind.inputs, DType::bf16};
  spec.fp8_f32_sums = kind.f32_sums;
  if (!sm90::supports_dense(spec)) return;
  const double weight_bytes = static_cast<double>(shape.rows * shape.cols) * kind.bits / 8;
  std::mt19937_64 rng(7);
  std::vector<sm90::DenseGemm> gemms;
  for (double bytes = 0; bytes < 150e6 || gemms.size() < 2; bytes += weight_bytes) {  // three times the L2 cache
    if (gemms.size() == 64) break;
    gemms.emplace_back(spec);
    fill(gemms.back().matrix(), rng);
  }
  for (const int64_t tokens : o.tokens) {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * shape.cols));
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = float_to_bf16(normal(rng));
    const sm90::DeviceBuffer in(tokens * shape.cols * 2), out(tokens * shape.rows * 2);
    sm90::copy_to_device(in.data(), x.data(), in.bytes(), nullptr);
    const sm90::DeviceBuffer workspace(gemms[0].workspace_bytes(tokens));
    sm90::synchronize(nullptr);
    const int calls = weight_bytes > 100e6 ? 4 : 32;
    const double moved = weight_bytes + 2.0 * static_cast<double>(tokens * (shape.rows + shape.cols));
    const double floor = moved / o.copy_tbs / 1e6;
    std::vector<Variant> variants{std::nullopt};
    if (c.all_parts) variants = {std::nullopt, 0, 1, 2, 4, 8};
    std::printf("%-17s %-8s T=%-3lld floor %6.1f aim %6.1f |", shape.name, kind.name, static_cast<long long>(tokens),
                floor, 1.25 * floor + 3);
    for (const Variant& v : variants) {
      sm90::DenseCall call;
      call.tokens = tokens;
      call.x = in.data();
      call.y = out.data();
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      call.few_rows = v;
      const double us = replayed_us(calls, o.replays, [&](cudaStream_t stream, int i) {
        gemms[static_cast<size_t>(i) % gemms.size()].run(call, stream);
      });
      if (v)
        std::printf(" %s%d %6.1f", *v == 0 ? "grouped" : "s", *v, us);
      else
        std::printf(" chosen s%d %6.1f (%.2f)%s", gemms[0].few_rows_parts(call), us, us / floor,
                    us <= 1.25 * floor + 3 ? "" : " *");
      std::fflush(stdout);
    }
    std::printf("\n");
    if (std::chrono::steady_clock::now() > end) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.tokens = {1, 4, 8, 16, 32, 64};
  o.replays = 7;
  o.kinds = {"bf16"};
  Choice c;
  CLI::App app("Dense products of few rows on one Hopper GPU");
  app.add_option("--shapes", c.shapes, "parts of names")->delimiter(',');
  app.add_option("--kinds", o.kinds)->delimiter(',');
  app.add_option("--tokens", o.tokens)->delimiter(',');
  app.add_option("--replays", o.replays);
  app.add_option("--seconds", c.seconds, "no new row after so many");
  app.add_flag("--parts", c.all_parts, "also every number of parts of K, and the grouped GEMM");
  CLI11_PARSE(app, argc, argv);
  try {
    if (const std::string problem = sm90::device_problem(); !problem.empty()) {
      std::printf("skipped: %s\n", problem.c_str());
      return 0;
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                            std::chrono::duration<double>(c.seconds));
    o.copy_tbs = measure_copy();
    std::printf("copy %.2f TB/s; * above 1.25 of the floor + 3 us\n", o.copy_tbs);
    for (const std::string& kind : o.kinds)
      for (const Kind& k : kKinds) {
        if (kind != "all" && kind != k.name) continue;
        for (const Matrix& s : kShapes) {
          const std::string name = s.name;
          const bool wanted = std::any_of(c.shapes.begin(), c.shapes.end(), [&](const std::string& part) {
            return name.find(part) != std::string::npos;
          });
          if ((c.shapes.empty() || wanted) && std::chrono::steady_clock::now() < end) bench_shape(o, c, s, k, end);
        }
      }
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
}
