// SPDX-License-Identifier: Apache-2.0
// Dense products of few rows on one GPU, as a decode step has them: BF16 rows in (or codes, rounded already), BF16 out,
// replays of a graph in which each call has other weights. Microseconds of a call against the bytes at the copy rate.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/bf16.h"
#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/few_rows/heuristic.h"
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
  std::vector<std::string> shapes, only;
  bool all = false, codes = false, deterministic = false;
  int best = 0;
  double seconds = 80;
};

// A variant of a call: parts of K of the kernel for few rows, 0 for the grouped GEMM; or a choice of the kernel for a
// batch of rows; or neither: what the library chooses.
struct Variant {
  std::optional<int> few;
  std::optional<sm90::BatchRowsChoice> batch;
};
std::string name_of(const sm90::BatchRowsChoice& c) {
  return fmt::format("{}{}x{}p{}{}", c.chain ? "chain" : "", c.tile, c.blocks, c.parts,
                     c.m_parts > 1 ? fmt::format("m{}", c.m_parts) : "");
}
std::string name_of(const Variant& v, const sm90::DenseGemm& gemm, const sm90::DenseCall& call) {
  if (v.few) return *v.few == 0 ? "grouped" : fmt::format("few{}", *v.few);
  if (v.batch) return name_of(*v.batch);
  const sm90::BatchRowsChoice c = gemm.batch_rows_choice(call);
  const int parts = gemm.few_rows_parts(call);
  return c.tile > 0 ? name_of(c) : parts > 0 ? fmt::format("few{}", parts) : "grouped";
}

std::vector<Variant> variants_of(const Choice& c, sm90::DenseGemm& gemm, int64_t tokens) {
  std::vector<Variant> all{{}};
  if (!c.all) return all;
  all.push_back({0, {}});
  if (!c.codes && tokens <= sm90::kMaxFewRows)
    for (const int parts : {1, 2, 4, 8})
      if (parts == 1 || !c.deterministic) all.push_back({parts, {}});
  for (const sm90::BatchTileSize& t : sm90::kBatchTiles)
    for (int cut = 1; cut <= 8; ++cut) {  // K's parts, or an M-tile's where K has one
      const sm90::BatchRowsChoice b{t.rows, t.blocks, c.deterministic ? 1 : cut, c.deterministic ? cut : 1};
      const int parts = b.parts;
      if (t.rows >= 2 * tokens && t.rows > 32) continue;
      if (t.rows * 4 < tokens) continue;
      const int64_t blocks = int64_t{gemm.matrix().shape.m_tiles()} * parts * ((tokens + t.rows - 1) / t.rows);
      if (parts > 1 && blocks > 2 * 132 * t.blocks) continue;
      if (sm90::batch_rows_possible(gemm.matrix().shape, b)) all.push_back({{}, b});
    }
  for (const int tile : sm90::kChainTiles)
    for (const int m_parts : sm90::kChainMParts) {
      const sm90::BatchRowsChoice b{tile, 1, 1, m_parts, true};
      if ((tile >= 2 * tokens && tile > sm90::kChainTiles[0]) || tile * 4 < tokens) continue;
      if (sm90::batch_rows_possible(gemm.matrix().shape, b)) all.push_back({{}, b});
    }
  return all;
}

void bench_shape(const Options& o, const Choice& c, const Matrix& shape, const Kind& kind,
                 std::chrono::steady_clock::time_point end) {
  sm90::DenseSpec spec{shape.rows, shape.cols, kind.weights, kind.inputs, DType::bf16};
  spec.fp8_f32_sums = kind.f32_sums;
  spec.deterministic = c.deterministic;
  if (!sm90::supports_dense(spec)) return;
  const double weight_bytes = static_cast<double>(shape.rows * shape.cols) * kind.bits / 8;
  std::mt19937_64 rng(7);
  std::vector<sm90::DenseGemm> gemms;
  for (double bytes = 0; bytes < 150e6 || gemms.size() < 2; bytes += weight_bytes) {  // three times the L2 cache
    if (gemms.size() == 32) break;
    gemms.emplace_back(spec);
    sm90::RepackedMatrix& m = gemms.back().matrix();
    if (gemms.size() == 1) {
      fill(m, rng);
      continue;
    }
    const sm90::RepackedMatrix& first = gemms.front().matrix();
    for (const auto& [to, from] : {std::pair{&m.weights, &first.weights},
                                   {&m.row_scale, &first.row_scale},
                                   {&m.block_scale, &first.block_scale}})
      check_cuda(cudaMemcpy(to->data(), from->data(), static_cast<size_t>(to->bytes()), cudaMemcpyDeviceToDevice),
                 "cudaMemcpy");
  }
  for (const int64_t tokens : o.tokens) {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * shape.cols));
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = float_to_bf16(normal(rng));
    // Of codes: a factor per row, or of FP8 block one per 128 columns.
    const bool groups = format::group_of(kind.inputs) != 0;
    const int64_t factor_count = tokens * (groups ? (shape.cols + 127) / 128 : 1);
    const sm90::DeviceBuffer in(tokens * shape.cols * 2), out(tokens * shape.rows * 2), factors(factor_count * 4);
    sm90::copy_to_device(in.data(), x.data(), in.bytes(), nullptr);
    const std::vector<float> ones(static_cast<size_t>(factor_count), 1.0f);
    sm90::copy_to_device(factors.data(), ones.data(), factors.bytes(), nullptr);
    const sm90::DeviceBuffer workspace(gemms[0].workspace_bytes(tokens));
    sm90::synchronize(nullptr);
    const int calls = weight_bytes > 100e6 ? 4 : 32;
    const double x_bytes = c.codes ? 1 : 2;
    const double moved = weight_bytes + static_cast<double>(tokens) * (2.0 * static_cast<double>(shape.rows) +
                                                                       x_bytes * static_cast<double>(shape.cols));
    const double floor = moved / o.copy_tbs / 1e6;
    std::printf("%-17s %-8s T=%-3lld floor %6.1f aim %6.1f |", shape.name, kind.name, static_cast<long long>(tokens),
                floor, 1.25 * floor + 3);
    std::vector<std::pair<double, std::string>> times;
    for (const Variant& v : variants_of(c, gemms[0], tokens)) {
      if (!c.only.empty() && v.batch && std::find(c.only.begin(), c.only.end(), name_of(*v.batch)) == c.only.end())
        continue;
      sm90::DenseCall call;
      call.tokens = tokens;
      if (c.codes) {
        call.codes = in.as<uint8_t>();
        if (groups)
          call.scales = factors.data();
        else
          call.row_scales = factors.as<float>();
      } else {
        call.x = in.data();
      }
      call.y = out.data();
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      call.few_rows = v.few;
      call.batch_rows = v.batch;
      const double us = replayed_us(calls, o.replays, [&](cudaStream_t stream, int i) {
        gemms[static_cast<size_t>(i) % gemms.size()].run(call, stream);
      });
      const std::string name = name_of(v, gemms[0], call);
      if (!v.few && !v.batch)
        std::printf(" %s %.1f (%.2f)%s;", name.c_str(), us, us / floor, us <= 1.25 * floor + 3 ? "" : " *");
      else if (v.few)
        std::printf(" %s %.1f", name.c_str(), us);
      else
        times.push_back({us, name});
      std::fflush(stdout);
    }
    if (c.best > 0) std::sort(times.begin(), times.end());
    for (size_t i = 0; i < times.size() && (c.best == 0 || i < static_cast<size_t>(c.best)); ++i)
      std::printf(" %s %.1f", times[i].second.c_str(), times[i].first);
    std::printf("\n");
    if (std::chrono::steady_clock::now() > end) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.tokens = {1, 8, 16, 32, 64, 128, 256};
  o.replays = 7;
  o.kinds = {"bf16"};
  Choice c;
  CLI::App app("Dense products of few rows on one Hopper GPU");
  app.add_option("--shapes", c.shapes, "parts of names")->delimiter(',');
  app.add_option("--kinds", o.kinds)->delimiter(',');
  app.add_option("--tokens", o.tokens)->delimiter(',');
  app.add_option("--replays", o.replays);
  app.add_option("--seconds", c.seconds, "no new row begins after this many");
  app.add_flag("--codes", c.codes, "rows come rounded (fp8ch, fp8blk)");
  app.add_flag("--all", c.all, "also every other kernel, tile and number of parts of K");
  app.add_flag("--deterministic", c.deterministic, "K in one part");
  app.add_option("--best", c.best, "of these, the quickest this many");
  app.add_option(
         "--only", c.only,
         "of these, those named: 64x2p3 is 64 rows, 2 blocks, 3 parts of K; chain8x1p1m4 is a chain of 8 rows, one "
         "block, one part of K, 4 of an M-tile")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  std::vector<Kind> kinds = kKinds;
  kinds.push_back({"fp8ch", format::Format::fp8_channel, format::InputFormat::fp8_token, 8, true});
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
      for (const Kind& k : kinds) {
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
