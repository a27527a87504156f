// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/grouped_gemm/heuristic.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sluice::sm90 {

namespace {

constexpr Instance kInstances[] = {
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, slabs, blocks, cluster) \
  {Operand::op, m_tiles, max_n, slabs, blocks, cluster},
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
};

const char* name_of(Operand o) {
  switch (o) {
    case Operand::bf16:
      return "bf16";
    case Operand::fp8:
      return "fp8";
    case Operand::fp8_block:
      return "fp8_block";
    case Operand::mxfp8:
      return "mxfp8";
    case Operand::nvfp4:
      return "nvfp4";
    case Operand::mxfp4:
      return "mxfp4";
    case Operand::fp8_f32:
      return "fp8_f32";
    case Operand::fp8_block_f32:
      return "fp8_block_f32";
  }
  return "?";
}

// What 19 of 20 experts get at most: mean and 1.65 standard deviations of a binomial choice. An expert beyond takes two
// narrow passes; a tile for the largest of all would be wide for every one (4 deviations: NVFP4, Nemotron-3-Nano, 512
// and 2048 tokens 351 and 660 us instead of 316 and 576).
double likely_rows(const GemmProblem& p) {
  const double chance = static_cast<double>(p.top_k) / static_cast<double>(std::max<int64_t>(p.experts, 1));
  const double mean = static_cast<double>(p.tokens) * chance;
  return std::min(static_cast<double>(p.tokens), mean + 1.65 * std::sqrt(mean * (1.0 - std::min(chance, 1.0))));
}

// Tiles of the experts that an average routing touches.
double likely_tiles(const GemmProblem& p, const Instance& i) {
  const double pairs = static_cast<double>(p.tokens) * static_cast<double>(p.top_k);
  const double missed = 1.0 - 1.0 / static_cast<double>(std::max<int64_t>(p.experts, 1));
  return static_cast<double>(p.locals) * (1.0 - std::pow(missed, pairs)) * std::ceil(likely_rows(p) / i.max_n);
}
int units(const GemmProblem& p, int gemm, const Instance& i) { return ceil_div(p.row_tiles[gemm], i.m_tiles); }
bool one_matrix(const GemmProblem& p) { return p.row_tiles[1] == 0; }

// Whether one block a multiprocessor, with all of its memory in stages, is quicker than two. It is where tasks are few:
// a task then takes half as long, so the last ones leave less idle (one token, BF16, Nemotron-3-Super 77 -> 68 us; 8
// tokens, DeepSeek-V3 EP8, 146 -> 139). Where tasks are many, two blocks hide each other's epilogues and decoding
// (NVFP4, Qwen3, 8 tokens, 51 us against 61), as they do where GEMM2's are so short that little else is left
// (DeepSeek-V3 TP8). Between one and two tasks a multiprocessor only two blocks hold all of them at once, which counts
// for what waits for memory alone (BF16, Qwen3, one token, 31.7 us against 34.2), not for what is decoded (NVFP4 26.1
// against 25.4), unless the GEMMs are launches apart (NVFP4 per token, Nemotron-3-Super, one token, 50 us against 56).
// Limits are where five shapes at 1 to 16 tokens cross over, in tasks of 128 weight rows.
bool alone(const GemmProblem& p, const Instance& i, int multiprocessors) {
  if (one_matrix(p) || p.slabs[1] * slab_k(p.operand) < 512) return false;
  double tasks = 0;
  for (const int row_tiles : p.row_tiles) {
    const double of_one = likely_tiles(p, i) * row_tiles / multiprocessors;
    if (p.apart && of_one > 1 && of_one < 2) return false;
    tasks += of_one;
  }
  if (!decodes(p.operand)) return tasks <= 1 || (tasks > 2 && tasks <= 10);
  return tasks <= (decodes_e4m3(p.operand) ? 8.5 : 5);
}

// Of two instances that differ in blocks a multiprocessor alone.
bool has_twin(const Instance& i) {
  Instance twin = i;
  twin.blocks_per_sm = 3 - i.blocks_per_sm;
  return std::find(std::begin(kInstances), std::end(kInstances), twin) != std::end(kInstances);
}

// Few tasks of GEMM1: cut K, so that GEMM2 waits less long for it. As many parts as leave no task without a block, but
// no more than four: joining costs two round trips through memory. A task of two row tiles counts twice where it waits
// for memory; where a single row tile is decoded by a block alone, four parts take the blocks that GEMM2's weights
// would come to (NVFP4, DeepSeek-V3 EP8, one token, 36.9 us against 32.4 in two). GEMM2 itself has streamed its weights
// by the time that it may start, and is not cut: it gained in one of five shapes, and less than one block did.
int parts_of_k(const GemmProblem& p, const Instance& i, int multiprocessors) {
  const double tasks = likely_tiles(p, i) * units(p, 0, i);
  const int slots = multiprocessors * i.blocks_per_sm;
  if (tasks <= 0) return 1;
  // One matrix alone has nothing to start meanwhile: enough blocks to fill the memory's pipe, 90, whatever they are.
  if (one_matrix(p)) {
    if (tasks >= (decodes(p.operand) ? 0.45 : 0.35) * slots) return 1;
    return std::clamp(static_cast<int>(std::ceil(0.4 * slots / (tasks * i.m_tiles))), 1, std::max(1, p.slabs[0] / 4));
  }
  const double weight = decodes(p.operand) ? 1 : i.m_tiles;
  const int most = decodes(p.operand) ? 2 * i.m_tiles * i.blocks_per_sm : 4;
  return std::clamp(static_cast<int>(slots / (tasks * weight)), 1, std::clamp(p.slabs[0] / 4, 1, most));
}

}  // namespace

std::string Instance::name() const {
  return fmt::format("{}_{}x{}_k{}_{}", name_of(operand), 128 * m_tiles, max_n, slabs * slab_k(operand),
                     cluster > 1 ? fmt::format("c{}", cluster) : fmt::format("b{}", blocks_per_sm));
}

std::span<const Instance> instances() { return kInstances; }

GemmChoice choose_gemm(const GemmProblem& p, int multiprocessors, const GemmForce& force) {
  const std::string& forced = force.instance;
  const double rows = likely_rows(p);
  const auto slots = [&](const Instance& i) { return multiprocessors * i.blocks_per_sm; };
  GemmChoice choice{};
  bool found = false;
  for (const Instance& i : kInstances) {
    if (i.operand != p.operand) continue;
    if (forced.empty() ? !i.rounds(p.gated) : i.name() != forced) continue;
    if (forced.empty() && has_twin(i) && (i.blocks_per_sm == 1) != alone(p, i, multiprocessors)) continue;
    // Rows are in ascending order of max_n: the first that holds a likely expert in one pass, or the largest. But where
    // that leaves over three of four blocks without work (one small matrix), several narrow passes are quicker.
    if (found && forced.empty() && likely_tiles(p, i) * units(p, 0, i) < 0.24 * slots(i)) break;
    choice.instance = i;
    found = true;
    if (forced.empty() && i.max_n >= rows) break;
  }
  check(found, "no grouped GEMM instance \"{}\" for this weight format", forced);
  choice.splits[0] = p.tokens <= 64 ? parts_of_k(p, choice.instance, multiprocessors) : 1;
  choice.splits[1] = 1;
  for (int g = 0; g < 2; ++g)
    if (force.splits[g] > 0) choice.splits[g] = std::clamp(force.splits[g], 1, std::max(1, p.slabs[g]));
  return choice;
}

std::string reason(const GemmProblem& p, const GemmChoice& c, int multiprocessors) {
  const auto tasks = [&](int g) { return std::ceil(likely_tiles(p, c.instance) * units(p, g, c.instance)); };
  return fmt::format(
      "at {} tokens a likely expert has up to {:.0f} rows in passes of {}; {:.0f} and {:.0f} tasks for {} "
      "blocks",
      p.tokens, std::ceil(likely_rows(p)), c.instance.max_n, tasks(0), tasks(1),
      multiprocessors * c.instance.blocks_per_sm);
}

}  // namespace sluice::sm90
