// SPDX-License-Identifier: Apache-2.0
// The choice of tile and splits is a pure function: tested on any machine.
#include <gtest/gtest.h>

#include "base/math.h"
#include "kernels/sm90/fused_moe/fused_moe.h"

namespace sluice {
namespace {

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
          EXPECT_LE(c.splits[g], p.slabs[g]) << name;
        }
      }
}

TEST(Heuristic, PassesGrowWithTheBatch) {
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

// Where the measured cells cross over (bench/results/moe_h200.md): one block a multiprocessor for few tasks.
TEST(Heuristic, FewTasksTakeOneBlockAMultiprocessor) {
  const auto blocks = [](const MoeSpec& s, int64_t tokens) {
    return sm90::choose_gemm(sm90::gemm_problem(s, tokens), 132).instance.blocks_per_sm;
  };
  EXPECT_EQ(blocks(qwen(format::Format::nvfp4), 1), 1);
  EXPECT_EQ(blocks(qwen(format::Format::nvfp4), 8), 2);
  EXPECT_EQ(blocks(qwen(format::Format::bf16), 1), 2);  // 217 tasks: two blocks hold all, one does not
  EXPECT_EQ(blocks(qwen(format::Format::bf16), 4), 1);
  EXPECT_EQ(blocks(qwen(format::Format::bf16), 8), 2);
  MoeSpec slice = qwen(format::Format::nvfp4);  // GEMM2's tasks of 256 columns are too short
  slice.hidden = 7168, slice.inter = 256, slice.experts = 256;
  EXPECT_EQ(blocks(slice, 1), 2);
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

TEST(Heuristic, DeterministicDoesNotLookAtTheBatch) {
  for (const auto& [f, name] : format::kFormats) {
    MoeSpec s = qwen(f);
    s.deterministic = true;
    const auto first = sm90::gemm_problem(s, 1);
    for (int64_t tokens : {3, 100, 10000}) EXPECT_EQ(sm90::gemm_problem(s, tokens).tokens, first.tokens) << name;
    EXPECT_NE(sm90::explain_choice(s, 132).find("the same for every batch"), std::string::npos);
  }
}

TEST(Heuristic, ExplainNamesTheTileAndItsReason) {
  MoeSpec s = qwen(format::Format::mxfp8);
  s.tokens = 32;
  const std::string text = sm90::explain_choice(s, 132);
  const auto c = sm90::choose_gemm(sm90::gemm_problem(s, 32), 132);
  EXPECT_NE(text.find(c.instance.name()), std::string::npos) << text;
  EXPECT_NE(text.find("32 tokens"), std::string::npos) << text;
}

// A weight matrix's tiles cover its rows and columns, and GEMM1's tiles every slab of GEMM2.
TEST(Layout, TilesCoverOddSizes) {
  for (const auto& [f, name] : format::kFormats)
    for (int64_t inter : {1, 64, 96, 232, 248, 704, 961, 1856, 2688}) {
      MoeSpec s = qwen(f);
      s.inter = inter;
      const auto p = sm90::gemm_problem(s, 1);
      const int k = sm90::slab_k(p.operand);
      EXPECT_GE(p.slabs[1] * k, inter) << name;
      EXPECT_GE(p.row_tiles[0] * 64, ceil_div<int64_t>(inter, k) * k) << name;
    }
}

}  // namespace
}  // namespace sluice
