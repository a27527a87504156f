// SPDX-License-Identifier: Apache-2.0
// The workspace that callers ask for holds every smaller call, and the pieces of a plan are disjoint inside of it.
#include <gtest/gtest.h>

#include <random>

#include "base/math.h"
#include "bench/moe_shapes.h"
#include "kernels/sm90/dense/plan.h"
#include "kernels/sm90/fused_moe/plan.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/repack/repack.h"
#include "kernels/sm90/tuning.h"
#include "tests/support/random.h"

namespace sluice {
namespace {

constexpr int kMultiprocessors[] = {1, 78, 132, 1000};

// Every pair of formats in which the kernels run the layer, with and without a fixed tile and float32 sums.
std::vector<MoeSpec> variants_of(MoeSpec s) {
  std::vector<MoeSpec> out;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (bool deterministic : {false, true})
        for (bool f32_sums : {false, true}) {
          s.weights = f;
          s.inputs = inputs;
          s.deterministic = deterministic;
          s.fp8_f32_sums = f32_sums;
          if (format::fits(f, inputs) && (!f32_sums || format::is_fp8(f)) && sm90::supports_spec(s)) out.push_back(s);
        }
  return out;
}

std::vector<MoeSpec> moe_specs() {
  std::vector<MoeSpec> out;
  const auto add = [&](const MoeSpec& s) {
    for (const MoeSpec& v : variants_of(s)) out.push_back(v);
  };
  for (const bench::BenchShape& shape : bench::shapes()) add(bench::spec_of(shape, format::Format::bf16));
  MoeSpec odd;
  odd.experts = 3, odd.top_k = 2, odd.hidden = 1, odd.inter = 1;
  add(odd);
  odd.experts = 33, odd.top_k = 5, odd.local_offset = 7, odd.local_experts = 9, odd.hidden = 4160, odd.inter = 961;
  odd.act = activation::Activation::relu2, odd.finalize = false, odd.dtype = DType::f32;
  add(odd);
  odd.experts = 1, odd.top_k = 1, odd.local_offset = odd.local_experts = 0, odd.hidden = 7168, odd.inter = 512;
  odd.finalize = true, odd.dtype = DType::bf16;
  add(odd);
  return out;
}

std::vector<sm90::DenseSpec> dense_specs() {
  std::vector<sm90::DenseSpec> out;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{2048, 768},
                                       {7168, 2048},
                                       {4096, 4096},
                                       {1024, 4096},
                                       {151936, 2048},
                                       {257, 224},
                                       {1, 32}}) {
        for (bool f32_sums : {false, true})
          for (bool deterministic : {false, true}) {
            const sm90::DenseSpec s{rows, cols, f, inputs, DType::bf16, f32_sums, deterministic};
            if ((!f32_sums || format::is_fp8(f)) && sm90::supports_dense(s)) out.push_back(s);
          }
      }
  return out;
}

// The bound is the largest need of all calls up to T, found by trying them: every T up to 1100, where K is split and
// most tiles change, then larger ones.
void expect_largest(const sm90::WorkspaceBound& bound, const std::function<int64_t(int64_t)>& exact) {
  EXPECT_EQ(bound.bytes(0), 0);
  int64_t most = 0;
  for (int64_t t = 1; t <= 1100; ++t) {
    most = std::max(most, exact(t));
    ASSERT_EQ(bound.bytes(t), most) << "T=" << t;
  }
  int64_t before = most;
  for (int64_t t = 1101; t < 300000; t += 1 + t / 50) {
    const int64_t now = bound.bytes(t);
    ASSERT_GE(now, before) << "T=" << t;
    ASSERT_GE(now, exact(t)) << "T=" << t;
    before = now;
  }
}

TEST(Workspace, OfALayerHoldsEverySmallerCall) {
  for (const MoeSpec& s : moe_specs())
    for (const int sms : kMultiprocessors) {
      SCOPED_TRACE(to_string(s) + " on " + std::to_string(sms));
      expect_largest(sm90::moe_workspace(s, sms),
                     [&](int64_t t) { return sm90::plan_moe(s, sms, t, {}, nullptr).bytes; });
      if (HasFailure()) return;
    }
}

TEST(Workspace, OfADenseGemmHoldsEverySmallerCall) {
  for (const sm90::DenseSpec& s : dense_specs())
    for (const int sms : kMultiprocessors) {
      SCOPED_TRACE(fmt::format("{} [{}, {}] on {}", format::info(s.weights).name, s.rows, s.cols, sms));
      expect_largest(sm90::dense_workspace(s, sms),
                     [&](int64_t t) { return sm90::plan_dense(s, sms, t, {}, nullptr, true).bytes; });
      if (HasFailure()) return;
    }
}

// The case that made a bound necessary.
TEST(Workspace, ExactNeedsAreNotMonotone) {
  const sm90::DenseSpec s{2048, 768, format::Format::bf16, format::InputFormat::plain, DType::bf16};
  const auto exact = [&](int64_t t) { return sm90::plan_dense(s, 132, t, {}, nullptr, true).bytes; };
  EXPECT_GT(exact(48), exact(128));
  EXPECT_GE(sm90::dense_workspace(s, 132).bytes(128), exact(48));
}

// Pieces as the kernels use them: where they begin and what is written there.
class Pieces {
 public:
  Pieces(const void* base, int64_t bytes) : begin_(reinterpret_cast<uintptr_t>(base)), end_(begin_ + bytes) {}
  void add(const char* name, const void* at, int64_t bytes) {
    if (bytes == 0) return;
    ASSERT_NE(at, nullptr) << name;
    const auto from = reinterpret_cast<uintptr_t>(at);
    EXPECT_EQ(from % 256, 0u) << name;
    EXPECT_GE(from, begin_) << name;
    EXPECT_LE(from + static_cast<uintptr_t>(bytes), end_) << name;
    for (const auto& [other, span] : pieces_)
      EXPECT_TRUE(from >= span.second || from + static_cast<uintptr_t>(bytes) <= span.first)
          << name << " and " << other;
    pieces_.push_back({name, {from, from + static_cast<uintptr_t>(bytes)}});
  }

 private:
  uintptr_t begin_, end_;
  std::vector<std::pair<const char*, std::pair<uintptr_t, uintptr_t>>> pieces_;
};

void* fake_memory() { return reinterpret_cast<void*>(uintptr_t{1} << 40); }  // never read

TEST(Plan, PiecesOfALayerDoNotOverlap) {
  for (const MoeSpec& s : moe_specs())
    for (const int64_t tokens : {1, 3, 17, 64, 65, 500, 9000}) {
      SCOPED_TRACE(to_string(s) + " T=" + std::to_string(tokens));
      const sm90::MoePlan p = sm90::plan_moe(s, 132, tokens, {}, fake_memory());
      const sm90::Instance tile = p.choice.instance;
      const int64_t pairs = tokens * s.top_k, locals = s.locals();
      const sm90::WeightShape shapes[2] = {sm90::first_shape(s), sm90::second_shape(s)};
      const sm90::Round round = sm90::round_of(s.inputs);
      Pieces pieces(fake_memory(), p.bytes);
      if (p.one_token) continue;  // PiecesOfOneTokenDoNotOverlap
      pieces.add("header", p.tables.header, sizeof(sm90::Header));
      pieces.add("ids", p.tables.ids, 4 * pairs);
      pieces.add("weights", p.tables.weights, 4 * pairs);
      pieces.add("rank", p.tables.rank, 4 * pairs);
      pieces.add("counts", p.tables.counts, 4 * sm90::shares_of(static_cast<int>(locals)) * locals);
      pieces.add("expert_tile", p.tables.expert_tile, 4 * locals);
      pieces.add("expert_tile_rows", p.tables.expert_tile_rows, 4 * locals);
      pieces.add("tiles", p.tables.tiles, 16 * p.tiles);
      pieces.add("pair_row", p.tables.pair_row, 4 * pairs);
      pieces.add("row_pair", p.tables.row_pair, 4 * p.rows);
      pieces.add("ready", p.tables.ready, 4 * p.tiles);
      for (int g = 0; g < 2; ++g) {
        const int64_t m_groups = (shapes[g].m_tiles() + tile.m_tiles - 1) / tile.m_tiles;
        const bool split = p.choice.splits[g] > 1;
        EXPECT_EQ(p.m_groups[g], m_groups);
        pieces.add("arrivals", p.tables.arrivals[g], split ? 4 * p.tiles * m_groups : 0);
        // For every row, M-tile group and split of K the sums of 128 rows per M-tile of the group.
        pieces.add("partial", p.partial[g],
                   split ? 4 * p.rows * m_groups * tile.m_tiles * 128 * p.choice.splits[g] : 0);
        pieces.add("x", g == 0 ? p.x1 : p.x2, p.rows * shapes[g].k_blocks() * 128);
        pieces.add("row scales", g == 0 ? p.x1_row_scale : p.x2_row_scale, sm90::scales_rows(round) ? 4 * p.rows : 0);
        const int64_t groups = ceil_div<int64_t>(g == 0 ? s.hidden : s.inter, 128);
        pieces.add("block scales", g == 0 ? p.x1_block_scale : p.x2_block_scale,
                   round == sm90::Round::fp8_group ? 4 * p.rows * groups : 0);
      }
      const int64_t runs = ceil_div<int64_t>(s.hidden, 128);
      const bool placed =
          round == sm90::Round::fp8_group && pairs * locals / s.experts * runs >= sm90::tuning::kPlacedScales;
      pieces.add("token scales", p.token_scale, placed ? 4 * tokens * round_up<int64_t>(runs, 4) : 0);
      pieces.add("results", p.results, s.finalize ? pairs * s.hidden * bytes_of(s.dtype) : 0);
      if (p.store == sm90::Store::activated) pieces.add("middle", p.middle, 4 * p.rows * s.inter);
      if (HasFailure()) return;
    }
}

// A call that the kernels of one token run reserves what they use and nothing else.
TEST(Plan, PiecesOfOneTokenDoNotOverlap) {
  int64_t plans = 0;
  for (const MoeSpec& s : moe_specs()) {
    const sm90::MoePlan p = sm90::plan_moe(s, 132, 1, {}, fake_memory());
    EXPECT_EQ(p.one_token, sm90::runs_one_token(s, 132, 1)) << to_string(s);
    if (!p.one_token) continue;
    SCOPED_TRACE(to_string(s));
    ++plans;
    Pieces pieces(fake_memory(), p.bytes);
    // The largest magnitudes of 16 rows of the first weights, where rows are scaled by them.
    const int64_t maxima =
        sm90::scales_rows(sm90::round_of(s.inputs)) ? ceil_div<int64_t>(s.inter, s.gated() ? 8 : 16) : 0;
    const std::pair<const void*, int64_t> used[] = {{p.tables.ids, 4 * s.top_k},
                                                    {p.tables.weights, 4 * s.top_k},
                                                    {p.middle, 4 * s.top_k * s.inter},
                                                    {p.middle_max, 4 * s.top_k * maxima}};
    int64_t bytes = 0;
    for (const auto& [at, size] : used) {
      pieces.add("piece", at, size);
      bytes += round_up<int64_t>(size, 256);
    }
    EXPECT_EQ(p.bytes, bytes);
    for (const void* unused : {static_cast<const void*>(p.tables.header), static_cast<const void*>(p.tables.rank),
                               static_cast<const void*>(p.tables.tiles), static_cast<const void*>(p.x1),
                               static_cast<const void*>(p.x2), static_cast<const void*>(p.partial[0]),
                               static_cast<const void*>(p.partial[1]), static_cast<const void*>(p.results)})
      EXPECT_EQ(unused, nullptr);
    // Forced splits are the grouped GEMM's, which reads tables.
    const sm90::MoePlan forced = sm90::plan_moe(s, 132, 1, {{}, {1, 1}}, fake_memory());
    EXPECT_FALSE(forced.one_token);
    EXPECT_NE(forced.tables.header, nullptr);
    if (HasFailure()) return;
  }
  EXPECT_GT(plans, 0);
}

TEST(Plan, PiecesOfADenseGemmDoNotOverlap) {
  for (const sm90::DenseSpec& s : dense_specs())
    for (const int64_t tokens : {1, 17, 64, 65, 500, 9000}) {
      SCOPED_TRACE(fmt::format("{} [{}, {}] T={}", format::info(s.weights).name, s.rows, s.cols, tokens));
      const sm90::DensePlan p = sm90::plan_dense(s, 132, tokens, {}, fake_memory(), true);
      const sm90::WeightShape shape = sm90::dense_shape(s);
      const sm90::Instance tile = p.choice.instance;
      const int64_t m_groups = (shape.m_tiles() + tile.m_tiles - 1) / tile.m_tiles;
      const bool split = p.choice.splits[0] > 1;
      EXPECT_EQ(p.m_groups, m_groups);
      EXPECT_GE(p.rows, tokens);
      EXPECT_GE(p.tiles * tile.max_n, tokens);
      Pieces pieces(fake_memory(), p.bytes);
      pieces.add("header", p.header, sizeof(sm90::Header));
      pieces.add("tiles", p.tiles_at, 16 * p.tiles);
      pieces.add("row_pair", p.row_pair, 4 * p.rows);
      pieces.add("arrivals", p.arrivals, split ? 4 * p.tiles * m_groups : 0);
      pieces.add("partial", p.partial, split ? 4 * p.rows * m_groups * tile.m_tiles * 128 * p.choice.splits[0] : 0);
      pieces.add("row scales", p.row_scale, 4 * p.rows);
      pieces.add("block scales", p.block_scale,
                 s.inputs == format::InputFormat::fp8_group ? 4 * p.rows * ceil_div<int64_t>(s.cols, 128) : 0);
      pieces.add("x", p.x, p.rows * shape.k_blocks() * 128);
      if (HasFailure()) return;
    }
}

// Rows and tiles hold any distribution of the pairs over the experts, as expert_tiles (route/expert_tiles.cuh) cuts
// them.
TEST(Plan, RowsHoldEveryRouting) {
  std::mt19937 rng = test::rng();
  for (int i = 0; i < 20000; ++i) {
    const int64_t locals = 1 + rng() % 40, pairs = rng() % 3000;
    const sm90::Instance tile = sm90::instances()[rng() % sm90::instances().size()];
    std::vector<int64_t> counts(static_cast<size_t>(locals));
    const int64_t touched = 1 + rng() % locals;  // few experts get all
    for (int64_t p = 0; p < pairs; ++p) ++counts[rng() % touched];
    int64_t tiles = 0, rows = 0;
    const int64_t step = tile.step_n();
    for (const int64_t n : counts) {
      if (n == 0) continue;
      const int64_t least = ceil_div<int64_t>(n, tile.max_n), per = round_up(ceil_div(n, least), step);
      const int64_t count = ceil_div(n, per);
      tiles += count;
      rows += (count - 1) * per + round_up(n - (count - 1) * per, step);
    }
    ASSERT_LE(tiles, sm90::max_tiles(pairs, locals, tile.max_n));
    ASSERT_LE(rows, sm90::max_rows(pairs, locals, tile.max_n, tile.step_n()));
  }
}

// What the kernels take of a count that they find in device memory.
TEST(Plan, CountsStayWithinTheCapturedMaximum) {
  EXPECT_EQ(sm90::real_tokens(nullptr, 12), 12);
  for (const auto& [given, taken] :
       {std::pair<int32_t, int64_t>{0, 0}, {5, 5}, {12, 12}, {13, 12}, {INT32_MAX, 12}, {-1, 0}, {INT32_MIN, 0}})
    EXPECT_EQ(sm90::real_tokens(&given, 12), taken) << given;
}

}  // namespace
}  // namespace sluice
