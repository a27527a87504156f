// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/grouped_gemm/heuristic.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sluice::sm90 {

namespace {

constexpr Instance kInstances[] = {
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, k_blocks, blocks, cluster) \
  {WeightOperand::op, m_tiles, max_n, k_blocks, blocks, cluster},
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
};

// The rows that 19 of 20 experts do not exceed if tokens choose independently (a binomial distribution). A tile for the
// largest expert would be too wide for all others.
double expected_rows(const GemmProblem& p) {
  const double chance = static_cast<double>(p.top_k) / static_cast<double>(std::max<int64_t>(p.experts, 1));
  const double mean = static_cast<double>(p.tokens) * chance;
  return std::min(static_cast<double>(p.tokens),
                  mean + tuning::kExpectedRowsDeviations * std::sqrt(mean * (1.0 - std::min(chance, 1.0))));
}

// Tiles of the experts that an average routing touches, each with expected_rows() rows.
double expected_tiles(const GemmProblem& p, const Instance& i) {
  const double pairs = static_cast<double>(p.tokens) * static_cast<double>(p.top_k);
  const double missed = 1.0 - 1.0 / static_cast<double>(std::max<int64_t>(p.experts, 1));
  return static_cast<double>(p.locals) * (1.0 - std::pow(missed, pairs)) * std::ceil(expected_rows(p) / i.max_n);
}
int m_groups(const GemmProblem& p, int gemm, const Instance& i) { return ceil_div(p.m_tiles[gemm], i.m_tiles); }
bool one_matrix(const GemmProblem& p) { return p.m_tiles[1] == 0; }

// Whether one block per multiprocessor, with all shared memory in its stages, is quicker than two.
// It is if tasks are few. A task then takes half as long, so the last ones leave less idle (one token, BF16,
// Nemotron-3-Super 77 -> 68 us; 8 tokens, DeepSeek-V3 EP8, 146 -> 139).
// If tasks are many, two blocks overlap their epilogues and decoding (NVFP4, Qwen3, 8 tokens, 51 us against 61). They
// also do if the tasks of GEMM2 are so short that they are mostly epilogue (DeepSeek-V3 TP8).
// With one to two tasks per multiprocessor only two blocks hold all of them at once. This counts for weights that are
// not decoded and only wait for memory (BF16, Qwen3, one token, 31.7 us against 34.2). It does not count for decoded
// weights (NVFP4 26.1 against 25.4), unless GEMM2 is a separate launch (NVFP4 per token, Nemotron-3-Super, one token,
// 50 us against 56).
bool one_block_per_sm(const GemmProblem& p, const Instance& i, int multiprocessors, bool separate) {
  if (one_matrix(p) || p.k_blocks[1] * k_block_columns(p.operand) < tuning::kOneBlockMinColumns) return false;
  double tasks = 0;
  for (const int m_tiles : p.m_tiles) {
    const double of_one = expected_tiles(p, i) * m_tiles / multiprocessors;
    if (separate && of_one > tuning::kTwoBlocksFrom && of_one < tuning::kTwoBlocksTo) return false;
    tasks += of_one;
  }
  if (!decodes(p.operand))
    return tasks <= tuning::kTwoBlocksFrom || (tasks > tuning::kTwoBlocksTo && tasks <= tuning::kOneBlockTasks);
  return tasks <= (decodes_e4m3(p.operand) ? tuning::kOneBlockTasksE4m3 : tuning::kOneBlockTasksE2m1);
}

// Whether the same tile is also compiled for the other number of blocks per multiprocessor (1 or 2).
bool has_other_occupancy(const Instance& i) {
  Instance other = i;
  other.blocks_per_sm = 3 - i.blocks_per_sm;
  return std::find(std::begin(kInstances), std::end(kInstances), other) != std::end(kInstances);
}

// Into how many splits K of GEMM1 is cut. If its tasks are few, GEMM2 then waits less long for it. As many splits as
// leave no task without a block, but at most four: adding partial sums costs two round trips through memory.
// A task of two M-tiles counts twice if it waits for memory. If one block per multiprocessor decodes one M-tile per
// task, four splits would take the blocks that stream the weights of GEMM2 meanwhile (NVFP4, DeepSeek-V3 EP8, one
// token, 36.9 us against 32.4 with two).
// GEMM2 is not split: it has streamed its weights by the time that it may start. Splitting it gained in one of five
// shapes, and one block per multiprocessor gained more there.
int splits_of_k(const GemmProblem& p, const Instance& i, int multiprocessors) {
  const double tasks = expected_tiles(p, i) * m_groups(p, 0, i);
  const int slots = multiprocessors * i.blocks_per_sm;
  if (tasks <= 0) return 1;
  const int longest = std::max(1, p.k_blocks[0] / tuning::kMinKBlocksPerSplit);  // as many splits as are not too short
  // Without a second GEMM nothing else can be streamed meanwhile: as many blocks as keep the memory busy.
  if (one_matrix(p)) {
    if (tasks >= (decodes(p.operand) ? tuning::kSplitBelowShareDecoded : tuning::kSplitBelowShare) * slots) return 1;
    return std::clamp(static_cast<int>(std::ceil(tuning::kFilledShare * slots / (tasks * i.m_tiles))), 1, longest);
  }
  const double weight = decodes(p.operand) ? 1 : i.m_tiles;
  const int most = decodes(p.operand) ? tuning::kMaxSplitsDecoded * i.m_tiles * i.blocks_per_sm : tuning::kMaxSplits;
  return std::clamp(static_cast<int>(slots / (tasks * weight)), 1, std::min(longest, most));
}

// The share of the blocks that must have work for a wider tile to be taken.
double least_busy_share(const GemmProblem& p, const Instance& i) {
  const bool wide = one_matrix(p) && p.tokens > tuning::kSplitTokens && i.max_n > tuning::kNarrowTile;
  return wide ? tuning::kMinBusyShareWide : tuning::kMinBusyShare;
}

}  // namespace

const char* name_of(WeightOperand o) {
  switch (o) {
    case WeightOperand::bf16:
      return "bf16";
    case WeightOperand::fp8:
      return "fp8";
    case WeightOperand::fp8_block:
      return "fp8_block";
    case WeightOperand::mxfp8:
      return "mxfp8";
    case WeightOperand::nvfp4:
      return "nvfp4";
    case WeightOperand::mxfp4:
      return "mxfp4";
    case WeightOperand::fp8_f32:
      return "fp8_f32";
    case WeightOperand::fp8_block_f32:
      return "fp8_block_f32";
  }
  return "?";
}

std::string Instance::name() const {
  return fmt::format("{}_{}x{}_k{}_{}", name_of(operand), 128 * m_tiles, max_n, k_blocks * k_block_columns(operand),
                     cluster > 1 ? fmt::format("c{}", cluster) : fmt::format("b{}", blocks_per_sm));
}

std::span<const Instance> instances() { return kInstances; }

bool sums_alike(const Instance& i) { return !tokens_first(i.operand, i.max_n); }

int tiles_in_turn(const Instance& i, int k_blocks) {
  if (!takes_turns(i.max_n)) return 1;
  const int64_t tile_bytes = int64_t{128} * i.max_n * std::max(k_blocks, 1);
  return static_cast<int>(std::clamp<int64_t>(tuning::kTurnBytes / tile_bytes, 1, tuning::kMaxTilesInTurn));
}

GemmChoice choose_gemm(const GemmProblem& p, int multiprocessors, const GemmForce& force) {
  const std::string& forced = force.instance;
  const double rows = expected_rows(p);
  const auto slots = [&](const Instance& i) { return multiprocessors * i.blocks_per_sm; };
  GemmChoice choice{};
  bool found = false;
  for (const Instance& i : kInstances) {
    if (i.operand != p.operand) continue;
    if (forced.empty() ? !i.rounds(p.gated) : i.name() != forced) continue;
    if (forced.empty() && p.deterministic && !sums_alike(i)) continue;
    if (forced.empty() && has_other_occupancy(i) &&
        (i.blocks_per_sm == 1) !=
            one_block_per_sm(p, i, multiprocessors, p.needs_separate_launch || force.separate_rounding))
      continue;
    // Instances are in ascending order of max_n. The choice is the first whose tile holds expected_rows(), or the
    // largest. But if that leaves more than three of four blocks without work (one small matrix), several narrow tiles
    // are quicker.
    if (found && forced.empty() && expected_tiles(p, i) * m_groups(p, 0, i) < least_busy_share(p, i) * slots(i)) break;
    choice.instance = i;
    found = true;
    if (forced.empty() && i.max_n >= rows) break;
  }
  check(found, "no grouped GEMM instance \"{}\" for this weight format", forced);
  const bool splits = p.tokens <= tuning::kSplitTokens && !p.deterministic;
  choice.splits[0] = splits ? splits_of_k(p, choice.instance, multiprocessors) : 1;
  choice.splits[1] = 1;
  for (int g = 0; g < 2; ++g)
    if (force.splits[g] > 0) choice.splits[g] = std::clamp(force.splits[g], 1, std::max(1, p.k_blocks[g]));
  return choice;
}

std::string reason(const GemmProblem& p, const GemmChoice& c, int multiprocessors) {
  const auto tasks = [&](int g) { return std::ceil(expected_tiles(p, c.instance) * m_groups(p, g, c.instance)); };
  return fmt::format(
      "at {} tokens 19 of 20 experts have up to {:.0f} rows, in tiles of {}; {:.0f} and {:.0f} tasks for {} "
      "blocks",
      p.tokens, std::ceil(expected_rows(p)), c.instance.max_n, tasks(0), tasks(1),
      multiprocessors * c.instance.blocks_per_sm);
}

}  // namespace sluice::sm90
