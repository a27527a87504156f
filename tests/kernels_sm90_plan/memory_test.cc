// SPDX-License-Identifier: Apache-2.0
// The memory of repacked weights: every part is inside of it, aligned, disjoint from all others, and large enough.
#include <gtest/gtest.h>

#include "bench/moe_shapes.h"
#include "kernels/sm90/dense/plan.h"
#include "kernels/sm90/fused_moe/plan.h"
#include "kernels/sm90/route_permute/route_permute.h"

namespace sluice {
namespace {

using sm90::Span;

struct Part {
  const char* name;
  Span span;
  int64_t expected;
};

void expect_disjoint(const std::vector<Part>& parts, int64_t bytes) {
  int64_t sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [name, span, expected] = parts[i];
    EXPECT_EQ(span.bytes, expected) << name;
    EXPECT_EQ(span.offset % 256, 0) << name;
    EXPECT_GE(span.offset, 0) << name;
    EXPECT_LE(span.offset + span.bytes, bytes) << name;
    for (size_t j = 0; j < i; ++j) {
      const Span other = parts[j].span;
      const bool disjoint = span.bytes == 0 || other.bytes == 0 || span.offset >= other.offset + other.bytes ||
                            other.offset >= span.offset + span.bytes;
      EXPECT_TRUE(disjoint) << name << " and " << parts[j].name;
    }
    sum += (span.bytes + 255) / 256 * 256;
  }
  EXPECT_EQ(bytes, sum);  // nothing but the parts and their alignment
}

// Of one matrix, from its shape: codes and block scales of whole tiles, a float per row where the format has one.
void add_matrix(std::vector<Part>& parts, const sm90::WeightShape& s, const sm90::MatrixMemory& m) {
  const bool block_scaled = sm90::block_scaled(s.operand), bf16 = s.operand == sm90::WeightOperand::bf16;
  parts.push_back({"weights", m.weights, s.bytes()});
  parts.push_back({"row scales", m.row_scale, bf16 || block_scaled ? 0 : 4 * s.experts * s.m_tiles() * 128});
  parts.push_back({"block scales", m.block_scale, 4 * s.block_scales()});
}

TEST(Memory, OfALayer) {
  for (const bench::BenchShape& shape : bench::shapes())
    for (const auto& [f, name] : format::kFormats)
      for (const bool extras : {false, true})
        for (const bool f32_sums : {false, true}) {
          MoeSpec s = bench::spec_of(shape, f);
          s.bias = extras;
          s.act_params = extras && s.act == activation::Activation::swiglu;
          s.fp8_f32_sums = f32_sums && format::is_fp8(f);
          SCOPED_TRACE(to_string(s));
          const sm90::MoeMemory m = sm90::moe_memory(s);
          std::vector<Part> parts;
          add_matrix(parts, sm90::first_shape(s), m.first);
          add_matrix(parts, sm90::second_shape(s), m.second);
          const int64_t locals = s.locals(), rows = s.bias ? 4 * locals : 0, params = s.act_params ? 4 * locals : 0;
          parts.push_back({"up bias", m.bias_up, rows * s.inter});
          parts.push_back({"gate bias", m.bias_gate, s.gated() ? rows * s.inter : 0});
          parts.push_back({"down bias", m.bias_down, rows * s.hidden});
          parts.push_back({"alpha", m.alpha, params});
          parts.push_back({"beta", m.beta, params});
          parts.push_back({"limit", m.limit, params});
          parts.push_back({"input scales", m.input_scales, 2 * static_cast<int64_t>(sizeof(sm90::InputScale))});
          parts.push_back({"warm_up", m.warm_up, sm90::warm_up_bytes(s.experts)});
          expect_disjoint(parts, m.bytes);
          // No less than the checkpoint's own bits.
          const int64_t codes = locals * s.hidden * s.inter * (s.gated() ? 3 : 2) * format::info(f).bits / 8;
          EXPECT_GE(m.bytes, codes);
        }
}

TEST(Memory, OfADenseGemm) {
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32}, {257, 224}, {4096, 7168}}) {
      const sm90::DenseSpec s{rows, cols, f, format::info(f).input, DType::bf16, false, false};
      SCOPED_TRACE(fmt::format("{} [{}, {}]", name, rows, cols));
      const sm90::DenseMemory m = sm90::dense_memory(s);
      std::vector<Part> parts;
      add_matrix(parts, sm90::dense_shape(s), m.matrix);
      parts.push_back({"bias", m.bias, 4 * rows});
      parts.push_back({"input scales", m.input_scales, 2 * static_cast<int64_t>(sizeof(sm90::InputScale))});
      expect_disjoint(parts, m.bytes);
    }
}

}  // namespace
}  // namespace sluice
