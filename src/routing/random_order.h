// SPDX-License-Identifier: Apache-2.0
// Logits that put the experts of each row in a random order: benchmarks of models with random weights, whose own
// routers send most tokens to the same few experts.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace sluice::routing {

inline constexpr int64_t kMaxRandomOrder = 4096;  // experts

// The first `top_k` experts of a row by ascending key are a random choice of distinct ones. The lowest 12 bits are the
// expert, so that keys differ; the 20 above them are random, and equal ones favour the lower expert once in a million
// pairs.
HD inline uint32_t random_order_key(uint64_t seed, int32_t position, int64_t row, int64_t expert) {
  const auto mix = [](uint64_t z) {  // splitmix64's finaliser (Steele et al., 2014)
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  const uint64_t of_row =
      mix(mix(seed) ^ (static_cast<uint64_t>(static_cast<uint32_t>(position)) << 32 | static_cast<uint32_t>(row)));
  return (static_cast<uint32_t>(mix(of_row + static_cast<uint64_t>(expert))) & ~0xfffu) | static_cast<uint32_t>(expert);
}

// The logit of the expert at a place of the order. It falls by 2^-8 per place, which bfloat16 holds exactly, so that
// the weights of the chosen ones are nearly equal; places from 256 on share one.
HD inline float random_order_logit(int64_t place) {
  return static_cast<float>(256 - (place < 256 ? place : 256)) * 0x1p-8f;
}

}  // namespace sluice::routing
