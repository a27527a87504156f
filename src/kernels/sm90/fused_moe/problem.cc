// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/fused_moe/problem.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/sm90/grouped_gemm/config.h"
#include "kernels/sm90/one_token/one_token.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/repack/repack.h"
#include "kernels/sm90/route/route.h"
#include "kernels/sm90/route_permute/route_permute.h"

namespace sluice::sm90 {

namespace {

WeightOperand operand_of(const MoeSpec& spec) { return sm90::operand_of(spec.weights, spec.fp8_f32_sums); }

// FP8 per token: the most values of a full tile that the warpgroup which completes it rounds
// (docs/kernels/sm90_grouped_gemm.md). Tiles of 16 and 32 rows take rows of 4096 columns, tiles of 64 rows those of
// 2048. What is beyond was not measured.
constexpr int64_t kCompletedValues = 128 * 1024;
// FP8 per token: rows of an expert, on average, up to which a call completes them. On an H200 Qwen3-30B-A3B takes 156.0
// us with 8 of them and 163.8 with a kernel between two launches, but 177.6 and 176.3 with 16, 203.3 and 189.0 with 32.
constexpr int64_t kCompletedRows = 8;

// The longest rows that the block which completes a tile rounds.
int64_t completed_columns(WeightOperand operand, int max_n) {
  if (completes_token_rows(operand, max_n)) return kCompletedColumns;
  if (!completes_by_warpgroup(operand, max_n)) return 0;
  return std::min<int64_t>(kCompletedPieces * 8 * 128, kCompletedValues / max_n);
}

}  // namespace

Support supports_spec(const MoeSpec& spec) {
  const WeightOperand op = operand_of(spec);
  const Round r = round_of(spec.inputs);
  const auto inputs = name_of(format::kInputFormats, spec.inputs);
  const auto weights = name_of(format::kFormats, spec.weights);
  if (spec.dtype != DType::bf16 && spec.dtype != DType::f32)
    return Support::no("hidden states must be bfloat16 or float32");
  if (r == Round::plain && spec.dtype == DType::f32)
    return Support::no("float32 inputs that are not rounded have no tensor core path; use bfloat16");
  if (block_scaled(op) && r != Round::fp8_group)
    return Support::no(fmt::format("fp8_block weights take fp8_group inputs on sm90, not {}", inputs));
  if (sm90::operand_of(spec.weights) == WeightOperand::fp8 && r != Round::fp8_static && r != Round::fp8_token)
    return Support::no(fmt::format("{} weights take fp8_static or fp8_token inputs on sm90, not {}", weights, inputs));
  if (!block_scaled(op) && r == Round::fp8_group)
    return Support::no(fmt::format("fp8_group inputs need fp8_block weights on sm90, not {}", weights));
  if (spec.top_k > kMaxTopK) return Support::no(fmt::format("top_k is {}; sm90 takes up to {}", spec.top_k, kMaxTopK));
  if (spec.experts > kMaxExperts)
    return Support::no(fmt::format("experts is {}; sm90 takes up to {}", spec.experts, kMaxExperts));
  if (spec.groups > 32) return Support::no(fmt::format("groups is {}; sm90 takes up to 32", spec.groups));
  if (spec.fp8_block_trtllm && spec.weight_on_input)
    return Support::no("fp8_block_trtllm with the weight on the input is not built for sm90");
  return Support::yes();
}

WeightShape second_shape(const MoeSpec& s) { return {operand_of(s), s.locals(), s.hidden, s.inter, false, 0}; }
WeightShape first_shape(const MoeSpec& s) {
  const WeightOperand op = operand_of(s);
  const int64_t columns = static_cast<int64_t>(second_shape(s).k_blocks()) * k_block_columns(op);
  return {op, s.locals(), s.inter, s.hidden, s.gated(), ceil_div<int64_t>(columns, s.gated() ? 64 : 128)};
}

bool rounds_in_place(const MoeSpec& s) { return round_of(s.inputs) == Round::nvfp4_token && s.dtype == DType::bf16; }

bool completes_rows(const MoeSpec& s, WeightOperand operand, int max_n) {
  // GEMM1's float32 rows are read in whole eights of columns.
  const bool codes = round_of(s.inputs) == Round::fp8_token && s.inter % 8 == 0;
  return (rounds_in_place(s) || codes) && s.inter <= completed_columns(operand, max_n);
}

bool completing_pays(const MoeSpec& s, int64_t tokens) {
  return rounds_in_place(s) || tokens * s.top_k <= kCompletedRows * s.experts;
}

bool runs_one_token(const MoeSpec& s, int multiprocessors, int64_t tokens) {
  if (tokens != 1 || s.deterministic || s.fp8_block_trtllm) return false;
  if (s.dtype != DType::bf16 || s.hidden % 8 != 0) return false;
  // Warps and rings are shared out for top_k experts that are all here (docs/kernels/sm90_one_token.md).
  if (s.locals() < s.experts) return false;
  const WeightShape first = first_shape(s), second = second_shape(s);
  return one_token_pays({{first.k_blocks(), second.k_blocks()},
                         {static_cast<int>(s.inter), static_cast<int>(s.hidden)},
                         s.gated(),
                         static_cast<int>(s.top_k)},
                        first.operand, multiprocessors);
}

GemmProblem gemm_problem(const MoeSpec& s, int64_t tokens) {
  const WeightShape first = first_shape(s), second = second_shape(s);
  GemmProblem p{};
  p.operand = first.operand;
  p.tokens = tokens;
  p.deterministic = s.deterministic;
  p.top_k = s.top_k;
  p.experts = s.experts;
  p.locals = s.locals();
  p.m_tiles[0] = first.m_tiles();
  p.m_tiles[1] = second.m_tiles();
  p.k_blocks[0] = first.k_blocks();
  p.k_blocks[1] = second.k_blocks();
  p.gated = s.gated();
  constexpr int kFewRows = 16;  // the choice that depends on it is one between tiles of few rows
  p.needs_separate_launch =
      s.fp8_block_trtllm ||
      (scales_rows(round_of(s.inputs)) && !(completes_rows(s, p.operand, kFewRows) && completing_pays(s, tokens)));
  return p;
}

std::string explain_choice(const MoeSpec& s, int multiprocessors) {
  constexpr int64_t kTokens = 128;  // where the spec names none
  if (runs_one_token(s, multiprocessors, s.tokens))
    return fmt::format("one_token: both products of one token in two launches; {} values lie between them",
                       s.top_k * s.inter);
  const GemmProblem p = gemm_problem(s, s.tokens > 0 ? s.tokens : kTokens);
  const GemmChoice c = choose_gemm(p, multiprocessors);
  return fmt::format("grouped_gemm {}, K in {} and {} parts{}: {}", c.instance.name(), c.splits[0], c.splits[1],
                     s.deterministic ? ", sums in the order of every batch" : "", reason(p, c, multiprocessors));
}

}  // namespace sluice::sm90
