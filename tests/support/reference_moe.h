// SPDX-License-Identifier: Apache-2.0
// The fused MoE in double precision, written from docs/numerics.md, not from the fast code: its
// own decoding, its own quantisers, roundings exactly where the operation has them, and a derived bound on every value.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/moe_spec.h"
#include "tests/support/tolerance.h"
#include "weights/expert_weights.h"

namespace sluice::test {

// The values of a weight stack, [E, N, K].
std::vector<double> reference_decode(const weights::QuantTensor& w);

struct ReferenceMoe {
  std::vector<double> input;            // [T, H], exact
  std::vector<char> local;              // [T, K], whether the slot's expert is here
  std::vector<Bounded> up, gate;        // [T, K, I]; gate empty when not gated
  std::vector<Bounded> activated;       // [T, K, I]
  std::vector<Bounded> down;            // [T, K, H]
  std::vector<double> output;           // [T, H] ([T, K, H] when not finalized), rounded to the run's type
  std::vector<double> lowest, highest;  // what a correct float32 implementation may return instead
};

// hidden [T, H]: values of the run's type. ids [T, K] global, weights [T, K] as they are used; absent ids contribute
// nothing.
ReferenceMoe reference_moe(const MoeSpec& spec, const weights::ExpertWeights& w, const std::vector<float>& hidden,
                           const std::vector<int32_t>& ids, const std::vector<float>& weights, Arithmetic a = {});

}  // namespace sluice::test
