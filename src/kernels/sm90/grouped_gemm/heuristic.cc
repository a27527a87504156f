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
  }
  return "?";
}

// Few tasks: cut K so that enough bytes are in flight. A block keeps about 80 KB in flight and the memory wants about
// 7 MB, so 90 blocks do; joining costs two round trips through memory, so no more parts than that. Packed weights are
// waited for by the decoding, not by the memory, and gain from a few more blocks (1 to 2 us of 33 for one token).
int choose_splits(double tiles, int units, int slabs, int slots, bool decodes) {
  const double tasks = tiles * units;
  if (tasks <= 0 || tasks >= (decodes ? 0.45 : 0.35) * slots) return 1;
  return std::clamp(static_cast<int>(std::ceil(0.4 * slots / tasks)), 1, std::max(1, slabs / 4));
}

// What 19 of 20 experts get at most: mean and 1.65 standard deviations of a binomial choice. An expert beyond takes two
// narrow passes; a tile for the largest of all would be wide for every one (4 deviations: NVFP4, Nemotron-3-Nano, 512
// and 2048 tokens 351 and 660 us instead of 316 and 576).
double likely_rows(const GemmProblem& p) {
  const double chance = static_cast<double>(p.top_k) / static_cast<double>(std::max<int64_t>(p.experts, 1));
  const double mean = static_cast<double>(p.tokens) * chance;
  return std::min(static_cast<double>(p.tokens), mean + 1.65 * std::sqrt(mean * (1.0 - std::min(chance, 1.0))));
}

}  // namespace

std::string Instance::name() const {
  return fmt::format("{}_{}x{}_k{}_{}", name_of(operand), 128 * m_tiles, max_n, slabs * slab_k(operand),
                     cluster > 1 ? fmt::format("c{}", cluster) : fmt::format("b{}", blocks_per_sm));
}

std::span<const Instance> instances() { return kInstances; }

GemmChoice choose_gemm(const GemmProblem& p, int multiprocessors, const GemmForce& force) {
  const std::string& forced = force.instance;
  const double pairs = static_cast<double>(p.tokens) * static_cast<double>(p.top_k);
  const double rows = likely_rows(p);
  GemmChoice choice{};
  bool found = false;
  for (const Instance& i : kInstances) {
    if (i.operand != p.operand) continue;
    if (!forced.empty() && i.name() != forced) continue;
    // Rows are in ascending order of max_n: the first that holds a likely expert in one pass, or the largest.
    choice.instance = i;
    found = true;
    if (forced.empty() && i.max_n >= rows) break;
  }
  check(found, "no grouped GEMM instance \"{}\" for this weight format", forced);
  // Experts that an average routing touches.
  const double touched = static_cast<double>(p.locals) *
                         (1.0 - std::pow(1.0 - 1.0 / static_cast<double>(std::max<int64_t>(p.experts, 1)), pairs));
  const int slots = multiprocessors * choice.instance.blocks_per_sm;
  for (int g = 0; g < 2; ++g) {
    const int units = (p.row_tiles[g] + choice.instance.m_tiles - 1) / choice.instance.m_tiles;
    choice.splits[g] = p.tokens <= 64 ? choose_splits(touched, units, p.slabs[g], slots, decodes(p.operand)) : 1;
    if (force.splits[g] > 0) choice.splits[g] = std::min(force.splits[g], p.slabs[g]);
  }
  return choice;
}

std::string reason(const GemmProblem& p, const GemmChoice& c, int multiprocessors) {
  const double rows = likely_rows(p);
  const double touched =
      static_cast<double>(p.locals) * (1.0 - std::pow(1.0 - 1.0 / static_cast<double>(std::max<int64_t>(p.experts, 1)),
                                                      static_cast<double>(p.tokens * p.top_k)));
  const int slots = multiprocessors * c.instance.blocks_per_sm;
  const auto tasks = [&](int g) { return std::ceil(touched * ceil_div(p.row_tiles[g], c.instance.m_tiles)); };
  return fmt::format(
      "at {} tokens a likely expert has up to {:.0f} rows in passes of {}; {:.0f} and {:.0f} tasks for {} "
      "blocks",
      p.tokens, std::ceil(rows), c.instance.max_n, tasks(0), tasks(1), slots);
}

}  // namespace sluice::sm90
