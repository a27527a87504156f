// SPDX-License-Identifier: Apache-2.0
// The fused-MoE cases that every backend is held against, and fresh random data for one of them.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "moe/backend.h"

namespace sluice::test {

// Where the experts of a token come from.
enum class Choice {
  f32_logits,
  bf16_logits,
  unpacked,    // given ids and float32 weights
  bf16_given,  // given ids and bfloat16 weights
  packed,      // id << 16 | bfloat16 weight
};

// Which experts are given (the last three kinds of Choice).
enum class Pattern {
  distinct,  // random, distinct
  one,       // every slot of every token names the same expert
  absent,    // some -1, some outside the window, some outside [0, E)
  none,      // no token has a local expert
};

struct Case {
  MoeSpec spec;
  int64_t tokens = 0;
  Choice choice = Choice::f32_logits;
  Pattern pattern = Pattern::distinct;
  std::string name() const;  // the spec line, tokens, choice and pattern
};

// Every format x input format x activation x run type; sizes at the edges of each format; every routing method; EP
// windows; absent experts; T = 0, 1; K = 1, K = 22 of 512; extras. Some hundred, small.
std::vector<Case> conformance_cases();

// A valid case with everything drawn at random.
Case random_case(std::mt19937& rng);

// Inputs of one call, ready for MoeArgs.
struct Problem {
  MoeSpec spec;
  int64_t tokens = 0;
  weights::ExpertWeights weights;
  std::vector<float> hidden;  // values of the run's type
  Tensor hidden_tensor;       // the same in the run's type
  Tensor logits, bias;        // empty when the routing is given
  Tensor ids, given_weights;  // given_weights empty: packed

  moe::MoeArgs args() const;  // all but output, workspace and copies
};

// Normal data with a spread of scales over rows and columns, and outliers, as trained models have.
Problem make_problem(const Case& c, std::mt19937& rng);

}  // namespace sluice::test
