// SPDX-License-Identifier: Apache-2.0
// The choice of tile and splits is a pure function: tested on any machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/math.h"
#include "kernels/sm90/dense/plan.h"
#include "kernels/sm90/fused_moe/problem.h"
#include "kernels/sm90/one_token/config.h"
#include "tests/support/random.h"

namespace sluice {
namespace {

namespace tuning = sm90::tuning;

MoeSpec qwen(format::Format f) {
  MoeSpec s;
  s.experts = 128, s.top_k = 8, s.hidden = 2048, s.inter = 768;
  s.weights = f;
  s.inputs = format::info(f).input;
  return s;
}

TEST(Heuristic, ChoosesACompiledTileForEveryFormatAndSize) {
  for (const auto& [f, name] : format::kFormats)
    for (int64_t tokens : {1, 2, 8, 33, 128, 512, 2048, 8192, 131072})
      for (int sms : {1, 78, 132}) {
        const auto p = sm90::gemm_problem(qwen(f), tokens);
        const auto c = sm90::choose_gemm(p, sms);
        EXPECT_EQ(c.instance.operand, p.operand) << name;
        for (int g = 0; g < 2; ++g) {
          EXPECT_GE(c.splits[g], 1) << name;
          EXPECT_LE(c.splits[g], p.k_blocks[g]) << name;
        }
      }
}

// The rows of the tiles that take turns stay in a third of the L2 cache of 50 MB.
TEST(Heuristic, RowsOfTilesInTurnFitTheCache) {
  for (const sm90::Instance& i : sm90::instances())
    for (int k_blocks : {1, 2, 16, 56, 112, 1000, 1 << 20}) {
      const int tiles = sm90::tiles_in_turn(i, k_blocks);
      ASSERT_GE(tiles, 1) << i.name();
      if (i.max_n < 128) {
        EXPECT_EQ(tiles, 1) << i.name();
      }
      if (tiles > 1) {
        EXPECT_LE(int64_t{tiles} * i.max_n * 128 * k_blocks, 50'000'000 / 3) << i.name() << " k-blocks: " << k_blocks;
      }
    }
}

TEST(Heuristic, TilesGrowWithTheBatch) {
  for (const auto& [f, name] : format::kFormats) {
    int before = 0;
    for (int64_t tokens : {1, 8, 64, 512, 4096}) {
      const int now = sm90::choose_gemm(sm90::gemm_problem(qwen(f), tokens), 132).instance.max_n;
      EXPECT_GE(now, before) << name << " T=" << tokens;
      before = now;
    }
  }
}

// Its activation's scale of 128 gated columns takes 256 weight rows; without a gate 128 do, which keeps more blocks
// busy.
TEST(Heuristic, Fp8BlockRoundsInItsTile) {
  MoeSpec s = qwen(format::Format::fp8_block);
  for (int64_t tokens : {1, 8, 128, 2048})
    EXPECT_EQ(sm90::choose_gemm(sm90::gemm_problem(s, tokens), 132).instance.m_tiles, 2) << tokens;
  s.act = activation::Activation::relu2;
  EXPECT_EQ(sm90::choose_gemm(sm90::gemm_problem(s, 1), 132).instance.m_tiles, 1);
}

// Of tiles that differ only in blocks per multiprocessor: one block where tasks are few, two where they are many.
// Weights that are decoded change over once; where GEMM2's tasks are short two blocks always are quicker.
TEST(Heuristic, ManyTasksTakeTwoBlocksPerMultiprocessor) {
  for (const auto f : {format::Format::mxfp8, format::Format::nvfp4, format::Format::mxfp4})
    for (int sms : {78, 132}) {
      const MoeSpec s = qwen(f);
      int before = 1;
      for (int64_t tokens = 1; tokens <= 64; ++tokens) {
        const sm90::Instance tile = sm90::choose_gemm(sm90::gemm_problem(s, tokens), sms).instance;
        if (tile.m_tiles > 1) break;  // compiled for one block only
        EXPECT_GE(tile.blocks_per_sm, before) << format::info(f).name << " T=" << tokens;
        before = tile.blocks_per_sm;
      }
      EXPECT_EQ(before, 2) << format::info(f).name;
      MoeSpec slice = s;
      slice.inter = 256;
      EXPECT_EQ(sm90::choose_gemm(sm90::gemm_problem(slice, 1), sms).instance.blocks_per_sm, 2);
    }
}

// Random problems: a tile that is compiled, fits the problem and has work; splits of K that fill free blocks and no
// more.
TEST(Heuristic, RandomProblems) {
  std::mt19937 rng = test::rng();
  const auto up_to = [&](int64_t most) { return 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(most)); };
  for (int i = 0; i < 100000; ++i) {
    sm90::GemmProblem p{};
    p.operand = sm90::instances()[rng() % sm90::instances().size()].operand;
    p.tokens = rng() % 2 ? up_to(80) : up_to(20000);
    p.experts = up_to(512);
    p.top_k = up_to(std::min<int64_t>(p.experts, 64));
    p.locals = rng() % 2 ? p.experts : up_to(p.experts);
    const int gemms = rng() % 4 == 0 ? 1 : 2;
    for (int g = 0; g < gemms; ++g)
      p.m_tiles[g] = static_cast<int>(up_to(150)), p.k_blocks[g] = static_cast<int>(up_to(150));
    p.gated = rng() % 2 == 0;
    p.needs_separate_launch = rng() % 2 == 0;
    const int sms = static_cast<int>(up_to(300));
    const sm90::GemmChoice c = sm90::choose_gemm(p, sms);
    ASSERT_EQ(std::count(sm90::instances().begin(), sm90::instances().end(), c.instance), 1);
    ASSERT_EQ(c.instance.operand, p.operand);
    ASSERT_TRUE(c.instance.rounds(p.gated));
    ASSERT_GE(c.splits[0], 1);
    ASSERT_EQ(c.splits[1], 1);
    if (c.splits[0] == 1) continue;
    ASSERT_LE(p.tokens, tuning::kSplitTokens);
    ASSERT_LE(c.splits[0] * tuning::kMinKBlocksPerSplit, p.k_blocks[0]);
    // Where all experts are here, at least one tile is: its splits leave no task without a block.
    if (p.locals < p.experts) continue;
    const int m_groups = ceil_div(p.m_tiles[0], c.instance.m_tiles);
    ASSERT_LE(c.splits[0] * m_groups, sms * c.instance.blocks_per_sm);
  }
}

// The workspace's bound relies on it (workspace_bound.h): with more tokens the tile's width never falls, and a tile
// that was left does not come back.
TEST(Heuristic, ATileThatWasLeftDoesNotComeBack) {
  for (const auto& [f, name] : format::kFormats)
    for (bool gated : {false, true})
      for (int sms : {1, 78, 132}) {
        MoeSpec s = qwen(f);
        if (!gated) s.act = activation::Activation::relu2;
        std::vector<sm90::Instance> left;
        for (int64_t tokens = tuning::kSplitTokens + 1; tokens < 100000; tokens += 1 + tokens / 100) {
          const sm90::Instance now = sm90::choose_gemm(sm90::gemm_problem(s, tokens), sms).instance;
          if (!left.empty() && left.back() == now) continue;
          EXPECT_EQ(std::count(left.begin(), left.end(), now), 0) << name << " T=" << tokens;
          EXPECT_TRUE(left.empty() || now.max_n >= left.back().max_n) << name << " T=" << tokens;
          left.push_back(now);
        }
      }
}

TEST(Heuristic, KIsCutWhileBlocksAreFree) {
  for (const auto& [f, name] : format::kFormats) {
    MoeSpec s = qwen(f);
    s.hidden = 7168, s.inter = 2048, s.experts = 256, s.local_experts = 32;
    int before = 5;
    for (int64_t tokens : {1, 2, 4, 16, 64, 65}) {
      const auto c = sm90::choose_gemm(sm90::gemm_problem(s, tokens), 132);
      EXPECT_LE(c.splits[0], before) << name << " T=" << tokens;
      EXPECT_EQ(c.splits[1], 1) << name << " T=" << tokens;
      before = c.splits[0];
    }
    EXPECT_EQ(before, 1) << name;
    EXPECT_GE(sm90::choose_gemm(sm90::gemm_problem(s, 1), 132).splits[0], 2) << name;
  }
}

TEST(Heuristic, ForcedTilesAndSplitsAreTaken) {
  const auto p = sm90::gemm_problem(qwen(format::Format::nvfp4), 8);
  for (const auto& i : sm90::instances()) {
    if (i.operand != p.operand) {
      EXPECT_THROW(sm90::choose_gemm(p, 132, {i.name(), {0, 0}}), Error);
      continue;
    }
    const auto c = sm90::choose_gemm(p, 132, {i.name(), {3, 2}});
    EXPECT_EQ(c.instance, i);
    EXPECT_EQ(c.splits[0], 3);
    EXPECT_EQ(c.splits[1], 2);
  }
  EXPECT_THROW(sm90::choose_gemm(p, 132, {"nvfp4_7x7", {0, 0}}), Error);
}

// Deterministic: the tile follows the tokens among those with the same order of sums, and K is in one part.
TEST(Heuristic, DeterministicSumsDoNotDependOnTheBatch) {
  for (const auto& [f, name] : format::kFormats) {
    MoeSpec s = qwen(f);
    s.deterministic = true;
    for (int64_t tokens : {1, 3, 100, 700, 10000}) {
      const auto c = sm90::choose_gemm(sm90::gemm_problem(s, tokens), 132);
      EXPECT_TRUE(sm90::sums_alike(c.instance)) << name << " " << tokens;
      EXPECT_EQ(c.splits[0], 1) << name << " " << tokens;
      EXPECT_EQ(c.splits[1], 1) << name << " " << tokens;
    }
    EXPECT_NE(sm90::explain_choice(s, 132).find("sums in the order of every batch"), std::string::npos);
  }
}

TEST(Heuristic, ADenseGemmTakesTheSameOptions) {
  for (const auto& [f, name] : format::kFormats)
    for (bool f32_sums : {false, true}) {
      if (f32_sums && !format::is_fp8(f)) continue;
      sm90::DenseSpec s{1024, 4096, f, format::info(f).input, DType::bf16, f32_sums, false};
      ASSERT_TRUE(static_cast<bool>(sm90::supports_dense(s))) << name;
      EXPECT_EQ(sm90::is_fp8(sm90::dense_shape(s).operand), format::is_fp8(f) && !f32_sums) << name;
      const auto choice = [&](int64_t tokens) { return sm90::plan_dense(s, 132, tokens, {}, nullptr, true).choice; };
      EXPECT_GT(choice(1).splits[0], 1) << name;
      EXPECT_NE(choice(1).instance, choice(8192).instance) << name;
      s.deterministic = true;
      for (int64_t tokens : {1, 8, 64, 65, 8192}) {
        EXPECT_EQ(choice(tokens).splits[0], 1) << name;
        EXPECT_TRUE(sm90::sums_alike(choice(tokens).instance)) << name;
      }
    }
  EXPECT_FALSE(static_cast<bool>(
      sm90::supports_dense({64, 64, format::Format::mxfp8, format::InputFormat::mxfp8, DType::bf16, true, false})));
  // Rows that are not rounded have no path with FP8 weights, also where those are decoded.
  for (bool f32_sums : {false, true})
    EXPECT_FALSE(static_cast<bool>(sm90::supports_dense(
        {64, 64, format::Format::fp8_channel, format::InputFormat::plain, DType::bf16, f32_sums, false})));
}

TEST(Heuristic, ExplainNamesTheTileAndItsReason) {
  MoeSpec s = qwen(format::Format::mxfp8);
  s.tokens = 32;
  const std::string text = sm90::explain_choice(s, 132);
  const auto c = sm90::choose_gemm(sm90::gemm_problem(s, 32), 132);
  EXPECT_NE(text.find(c.instance.name()), std::string::npos) << text;
  EXPECT_NE(text.find("32 tokens"), std::string::npos) << text;
}

TEST(Heuristic, OneTokenHasItsKernelsUnlessItsBitsMayNotDependOnThat) {
  MoeSpec s = qwen(format::Format::bf16);
  EXPECT_TRUE(sm90::runs_one_token(s, 132, 1));
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 2));
  s.tokens = 1;
  EXPECT_NE(sm90::explain_choice(s, 132).find("one_token"), std::string::npos);
  s.deterministic = true;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1));
  s.deterministic = false;
  s.inter = 765;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1)) << "columns come in eights";
  s.inter = 768, s.top_k = 33;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1)) << "a lane for each expert";
  s.inter = 1856, s.top_k = 6;
  EXPECT_TRUE(sm90::runs_one_token(s, 132, 1));
  s = qwen(format::Format::nvfp4);
  EXPECT_TRUE(sm90::runs_one_token(s, 132, 1));
  s.inter = 1856, s.top_k = 6;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1)) << "the grouped GEMM is quicker";
  s = qwen(format::Format::bf16);
  s.hidden = 2044;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1)) << "the row is read in eights";
  s = qwen(format::Format::bf16);
  s.dtype = DType::f32;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1)) << "the row is bfloat16";
  s = qwen(format::Format::bf16);
  s.local_experts = 64;
  EXPECT_FALSE(sm90::runs_one_token(s, 132, 1)) << "experts elsewhere";
}

// Every segment and unit of K has one warp, and what a warp has fits into its room.
TEST(Heuristic, SharesOfOneTokenCoverItsWeights) {
  for (const int units : {1, 2, 3, 12, 29, 42, 112})
    for (const int segments : {1, 2, 5, 6, 8, 22})
      for (const int warps : {8, 16}) {
        const int parts = sm90::choose_parts(units, segments, warps);
        ASSERT_EQ(warps % parts, 0);
        int covered = 0, most = 0;
        for (int w = 0; w < warps; ++w) {
          int own = 0;
          for (int s = w / parts; s < segments; s += warps / parts)
            own += units * (w % parts + 1) / parts - units * (w % parts) / parts;
          covered += own, most = std::max(most, own);
        }
        EXPECT_EQ(covered, units * segments);
        EXPECT_LE(most, ceil_div(units, parts) * ceil_div(segments * parts, warps));
      }
}

// A weight matrix's tiles cover its rows and columns, and GEMM1's tiles every k-block of GEMM2.
TEST(Layout, TilesCoverOddSizes) {
  for (const auto& [f, name] : format::kFormats)
    for (int64_t inter : {1, 64, 96, 232, 248, 704, 961, 1856, 2688}) {
      MoeSpec s = qwen(f);
      s.inter = inter;
      const auto p = sm90::gemm_problem(s, 1);
      const int k = sm90::k_block_columns(p.operand);
      EXPECT_GE(p.k_blocks[1] * k, inter) << name;
      EXPECT_GE(p.m_tiles[0] * 64, ceil_div<int64_t>(inter, k) * k) << name;
    }
}

}  // namespace
}  // namespace sluice
