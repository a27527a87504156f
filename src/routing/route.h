// SPDX-License-Identifier: Apache-2.0
// Routing on the host: for each token the chosen experts in descending order of their key, and their weights.
#pragma once

#include <cstdint>

#include "routing/methods.h"

namespace sluice::routing {

// Float32 or bfloat16 values; null data reads as "not given".
struct Values {
  const void* data = nullptr;
  bool bf16 = false;

  HD explicit operator bool() const { return data != nullptr; }
  HD float operator[](int64_t i) const {
    return bf16 ? bf16_to_float(static_cast<const bf16_t*>(data)[i]) : static_cast<const float*>(data)[i];
  }
  HD Values from(int64_t i) const {
    return {bf16 ? static_cast<const void*>(static_cast<const bf16_t*>(data) + i)
                 : static_cast<const void*>(static_cast<const float*>(data) + i),
            bf16};
  }
};

// Throws on a contradiction, or on a parameter that the method would ignore.
void validate(Method method, const Params& p);

// Bytes that route() needs at `scratch`, 8-byte aligned; one for each thread.
int64_t route_scratch_bytes(const Params& p);

// logits [T, E]; bias [E] or nothing (read as zeros; ignored by methods that take none). Writes ids [T, K] and weights
// [T, K]: rounded to bfloat16 (and widened) when p.bf16, else float32. Allocates nothing; p must have been validated.
void route(Method method, const Params& p, Values logits, Values bias, int64_t tokens, int32_t* ids, float* weights,
           void* scratch);

// Routing that was given: `count` ids and weights, copied; or, when `given_weights` is nothing, packed
// (id << 16 | bfloat16 weight). Nothing is applied to given weights.
void read_given(const int32_t* given_ids, Values given_weights, float scale, int64_t count, int32_t* ids,
                float* weights);

// id < 32768; the sign of the weight must not run into the id.
HD inline int32_t pack(int32_t id, float weight) {
  return static_cast<int32_t>(static_cast<uint32_t>(id) << 16 | float_to_bf16(weight));
}
HD inline int32_t packed_id(int32_t packed) { return packed >> 16; }  // arithmetic: -1 stays -1
HD inline float packed_weight(int32_t packed) { return bf16_to_float(static_cast<bf16_t>(packed & 0xffff)); }

}  // namespace sluice::routing
