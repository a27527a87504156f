// SPDX-License-Identifier: Apache-2.0
// The dense GEMM as models call it: bf16 rows in, rounded by the call, bf16 out; weights cold.
#include <algorithm>
#include <cstdio>

#include "base/bf16.h"
#include "kernels/sm90/dense/dense_gemm.h"
#include "sm90_bench.h"

namespace sluice::bench {

namespace {

struct DenseShape {
  const char* name;
  int64_t rows, cols;  // N, K
};
constexpr DenseShape kDense[] = {
    {"deepseek-v3 shared up", 4096, 7168},   {"deepseek-v3 shared down", 7168, 2048},
    {"nemotron-3-super latent", 1024, 4096}, {"qwen3-30b-a3b qkv", 5120, 2048},
    {"qwen3-30b-a3b o", 2048, 4096},         {"nemotron-3-nano in", 10304, 2688},
    {"nemotron-3-nano out", 2688, 4096},
};

// What the library chooses, then the tiles and splits of --instances and --splits.
std::vector<sm90::GemmForce> forces(const Options& o, sm90::WeightOperand operand) {
  std::vector<sm90::GemmForce> out{{}};
  const auto wanted = [&](const std::string& name) {
    return std::find(o.instances.begin(), o.instances.end(), name) != o.instances.end();
  };
  for (const auto& i : sm90::instances()) {
    if (i.operand != operand || !(wanted("all") || wanted(i.name()))) continue;
    out.push_back({i.name(), {0, 0}});
    for (size_t s = 0; s + 1 < o.splits.size(); s += 2) out.push_back({i.name(), {o.splits[s], 0}});
  }
  return out;
}

void bench_one(const Options& o, const DenseShape& shape, const Kind& kind) {
  const sm90::DenseSpec spec{shape.rows, shape.cols, kind.weights, kind.inputs, DType::bf16};
  if (!sm90::supports_dense(spec)) return;
  const double weight_bytes = static_cast<double>(shape.rows * shape.cols) * kind.bits / 8;
  std::mt19937_64 rng(7);
  std::vector<sm90::DenseGemm> gemms;
  for (double bytes = 0; bytes < 200e6; bytes += weight_bytes) {  // four times the L2 cache
    gemms.emplace_back(spec);
    fill(gemms.back().matrix(), rng);
  }
  for (const int64_t tokens : o.tokens) {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * shape.cols));
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = float_to_bf16(normal(rng));
    const sm90::DeviceBuffer in(tokens * shape.cols * 2), out(tokens * shape.rows * 2);
    sm90::copy_to_device(in.data(), x.data(), in.bytes(), nullptr);
    sm90::synchronize(nullptr);
    const double moved = weight_bytes + 2.0 * static_cast<double>(tokens * (shape.rows + shape.cols));
    const double mem = moved / o.copy_tbs / 1e6;
    const double math =
        2.0 * static_cast<double>(tokens * shape.rows * shape.cols) / (kind.fp8 ? o.fp8_tflops : o.bf16_tflops) / 1e6;
    for (const sm90::GemmForce& force : forces(o, gemms[0].choice(tokens).instance.operand)) {
      const sm90::GemmChoice choice = gemms[0].choice(tokens, force);
      if (force.splits[0] > 0 && choice.splits[0] != force.splits[0]) continue;
      const sm90::DeviceBuffer workspace(gemms[0].workspace_bytes(tokens, force));
      sm90::DenseCall call;
      call.tokens = tokens;
      call.x = in.data();
      call.y = out.data();
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      call.force = force;
      const double us = replayed_us(tokens <= 512 ? 24 : 8, o.replays, [&](cudaStream_t stream, int c) {
        gemms[static_cast<size_t>(c) % gemms.size()].run(call, stream);
      });
      const int parts = gemms[0].few_rows_parts(call);
      const sm90::BatchRowsChoice batch = gemms[0].batch_rows_choice(call);
      const std::string tile = parts > 0        ? fmt::format("few_rows s{}", parts)
                               : batch.tile > 0 ? fmt::format("batch_rows {} s{}", batch.tile, batch.parts)
                                                : fmt::format("{} s{}", choice.instance.name(), choice.splits[0]);
      std::printf("%-24s %-8s T=%-5lld %9.1f us  floor %8.1f %-5s  x%.2f  %s%s\n", shape.name, kind.name,
                  static_cast<long long>(tokens), us, std::max(mem, math), math > mem ? "flops" : "mem",
                  us / std::max(mem, math), tile.c_str(), force.instance.empty() ? "" : " (forced)");
      std::fflush(stdout);
    }
  }
}

}  // namespace

void bench_dense(const Options& o) {
  for (const DenseShape& s : kDense)
    for (const Kind& k : kKinds)
      if (o.kinds.empty() || std::find(o.kinds.begin(), o.kinds.end(), k.name) != o.kinds.end()) bench_one(o, s, k);
}

}  // namespace sluice::bench
