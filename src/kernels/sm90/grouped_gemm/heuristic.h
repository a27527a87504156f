// SPDX-License-Identifier: Apache-2.0
// Which compiled tile runs, and into how many splits K is cut: pure functions of the problem, tested on the host.
#pragma once

#include <span>
#include <string>

#include "kernels/sm90/layout.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

const char* name_of(WeightOperand operand);  // "nvfp4"

struct Instance {
  WeightOperand operand;
  int m_tiles, max_n, k_blocks, blocks_per_sm, cluster;
  int step_n() const { return step_of(operand, max_n); }
  // Whether GEMM1 can round its rows: FP8 block's scale of 128 gated columns takes two M-tiles.
  bool rounds(bool gated) const { return !gated || !block_scaled(operand) || m_tiles == 2; }
  std::string name() const;  // "nvfp4_128x64_k128"
  bool operator==(const Instance&) const = default;
};
std::span<const Instance> instances();

struct GemmProblem {
  WeightOperand operand;
  int64_t tokens, top_k, experts, locals;
  int m_tiles[2], k_blocks[2];  // of GEMM1 and GEMM2; a single matrix has no second
  bool gated;
  bool needs_separate_launch;  // another kernel runs between GEMM1 and GEMM2
  bool deterministic;          // the bits of a row do not depend on `tokens`
};
struct GemmChoice {
  Instance instance;
  int splits[2];
};
// Overrules the choice for tests and benchmarks: an instance's name or empty, splits or 0.
struct GemmForce {
  std::string instance;
  int splits[2] = {0, 0};
  bool separate_rounding = false;  // rows of GEMM2 with a scale each are rounded by a kernel between two launches
  bool none() const { return instance.empty() && splits[0] == 0 && splits[1] == 0 && !separate_rounding; }
};
// Whether a row's sums are added in the order of most tiles of its operand: an instruction of every tile adds the same
// 16 (e4m3: 32) products to the sum of those before, however many rows it has. So they have the same bits
// (Tiles.SumsOfAllTilesAreTheSameBits). In a tile whose M side are tokens they need not.
bool sums_alike(const Instance& i);

// How many tiles' tasks take turns at a group of M-tiles (GemmArgs::tiles_in_turn).
int tiles_in_turn(const Instance& i, int k_blocks);

// `multiprocessors` of the device; a value, so that the choice can be tested anywhere.
GemmChoice choose_gemm(const GemmProblem& problem, int multiprocessors, const GemmForce& force = {});
// The numbers that led to a choice, as a clause.
std::string reason(const GemmProblem& problem, const GemmChoice& choice, int multiprocessors);

}  // namespace sluice::sm90
