// SPDX-License-Identifier: Apache-2.0
// Random logits, which choose every expert as often: benchmarks of models with random weights, whose own routers send
// most tokens to the same few experts.
#pragma once

#include <bit>
#include <cstdint>

#include "base/hd.h"

namespace sluice::routing {

// The logit of an expert for row `row`, at position `position`, of expert layer `layer`: of either sign, from 2^-5 up
// to 1 in size, each of its 10 * 2^23 values as likely. bfloat16 keeps 1280 of these by cutting the lower half off, so
// two experts are equal once in 1280 pairs, and the lower one is then chosen. Sizes below 1 keep the weights of the
// chosen experts near each other; smaller ones would become equal as probabilities or sigmoids.
HD inline float random_logit(int64_t layer, int32_t position, int64_t row, int64_t expert) {
  const auto mix = [](uint64_t z) {  // splitmix64's finaliser (Steele et al., 2014)
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  const uint64_t of_row =
      mix(mix(static_cast<uint64_t>(layer)) ^
          (static_cast<uint64_t>(static_cast<uint32_t>(position)) << 32 | static_cast<uint32_t>(row)));
  const uint64_t random = mix(of_row + static_cast<uint64_t>(expert));
  constexpr uint32_t kSmallest = 0x3d000000, kSizes = 5u << 23;  // the bits of 2^-5, and the floats from it up to 1
  const auto size = static_cast<uint32_t>((random >> 32) * kSizes >> 32);
  return std::bit_cast<float>((kSmallest + size) | static_cast<uint32_t>(random) << 31);
}
// As bfloat16, cut off.
HD inline float random_logit_bf16(int64_t layer, int32_t position, int64_t row, int64_t expert) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(random_logit(layer, position, row, expert)) & 0xffff0000u);
}

}  // namespace sluice::routing
