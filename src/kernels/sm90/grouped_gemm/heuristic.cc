// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/grouped_gemm/heuristic.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sluice::sm90 {

namespace {

constexpr Instance kInstances[] = {
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, slabs, blocks) {Operand::op, m_tiles, max_n, slabs, blocks},
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
};

const char* name_of(Operand o) {
  switch (o) {
    case Operand::bf16: return "bf16";
    case Operand::fp8: return "fp8";
    case Operand::fp8_block: return "fp8_block";
    case Operand::mxfp8: return "mxfp8";
    case Operand::nvfp4: return "nvfp4";
    case Operand::mxfp4: return "mxfp4";
  }
  return "?";
}

// Fewer tasks than a few waves: cut K so that the last wave is full. A part keeps at least 4 slabs, or its fixed cost
// (fill of the pipeline, partial sums) exceeds what balance gains.
int choose_splits(double tiles, int units, int slabs, int slots) {
  const double tasks = tiles * units;
  if (tasks <= 0 || tasks >= 6.0 * slots) return 1;
  int best = 1;
  double best_time = 1e30;
  for (int s = 1; s <= 16 && slabs / s >= 4; ++s) {
    const double waves = std::ceil(tasks * s / slots);
    const double time = waves / s + 0.02 * s;
    if (time < best_time - 1e-9) best = s, best_time = time;
  }
  return best;
}

}  // namespace

std::string Instance::name() const {
  return fmt::format("{}_{}x{}_k{}", name_of(operand), 128 * m_tiles, max_n, slabs * slab_k(operand));
}

std::span<const Instance> instances() { return kInstances; }

GemmChoice choose_gemm(const GemmProblem& p, int multiprocessors, const std::string& forced) {
  const double pairs = static_cast<double>(p.tokens) * static_cast<double>(p.top_k);
  const double each = pairs / static_cast<double>(std::max<int64_t>(p.experts, 1));
  GemmChoice choice{};
  bool found = false;
  for (const Instance& i : kInstances) {
    if (i.operand != p.operand) continue;
    if (!forced.empty() ? i.name() == forced : (i.max_n <= 64) == (each <= 40.0)) {
      choice.instance = i;
      found = true;
      break;
    }
  }
  check(found, "no grouped GEMM instance \"{}\" for this weight format", forced);
  // Experts that an average routing touches.
  const double touched =
      static_cast<double>(p.locals) * (1.0 - std::pow(1.0 - 1.0 / static_cast<double>(std::max<int64_t>(p.experts, 1)), pairs));
  const int slots = multiprocessors * choice.instance.blocks_per_sm;
  for (int g = 0; g < 2; ++g) {
    const int units = (p.row_tiles[g] + choice.instance.m_tiles - 1) / choice.instance.m_tiles;
    choice.splits[g] = p.tokens <= 64 ? choose_splits(touched, units, p.slabs[g], slots) : 1;
  }
  return choice;
}

}  // namespace sluice::sm90
