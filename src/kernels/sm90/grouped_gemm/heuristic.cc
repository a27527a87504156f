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

// Few tasks: cut K so that enough bytes are in flight. A block keeps about 80 KB in flight and the memory wants about
// 7 MB, so 90 blocks do; joining costs two round trips through memory, so no more parts than that. Packed weights are
// waited for by the decoding, not by the memory, and gain from a few more blocks (1 to 2 us of 33 for one token). Tasks
// of two row tiles are worth two: FP8 block, DeepSeek-V3 EP8, one token, 7 and 4 parts 45.9 us, 4 and 2 40.9.
int choose_splits(double tasks, int slabs, int slots, const Instance& i) {
  if (tasks <= 0 || tasks >= (decodes(i.operand) ? 0.45 : 0.35) * slots) return 1;
  const double wanted = 0.4 * slots / (tasks * i.m_tiles);
  return std::clamp(static_cast<int>(std::ceil(wanted)), 1, std::max(1, slabs / 4));
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
    // Rows are in ascending order of max_n: the first that holds a likely expert in one pass, or the largest. But where
    // that leaves over three of four blocks without work (one small matrix), several narrow passes are quicker.
    if (found && forced.empty() && likely_tiles(p, i) * units(p, 0, i) < 0.24 * slots(i)) break;
    choice.instance = i;
    found = true;
    if (forced.empty() && i.max_n >= rows) break;
  }
  check(found, "no grouped GEMM instance \"{}\" for this weight format", forced);
  const Instance& tile = choice.instance;
  for (int g = 0; g < 2; ++g) {
    choice.splits[g] =
        p.tokens <= 64 ? choose_splits(likely_tiles(p, tile) * units(p, g, tile), p.slabs[g], slots(tile), tile) : 1;
    if (force.splits[g] > 0) choice.splits[g] = std::min(force.splits[g], p.slabs[g]);
  }
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
