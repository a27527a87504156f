// SPDX-License-Identifier: Apache-2.0
// Mamba-2: the causal depthwise convolution and the state recurrence, one row after another, with their states in
// slots.
#pragma once

#include <span>

#include "base/context.h"
#include "ops/matrix.h"
#include "ops/sequence.h"

namespace sluice::ops {

struct MambaShape {
  int64_t heads = 0, head_dim = 0, groups = 0, state = 0, taps = 0;
  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * state; }  // x | B | C
};
inline constexpr int64_t kMaxTaps = 16;

// The states of one kind of one layer: `versions` float32 states a slot. Version 0 is the sequence's state; a tentative
// sequence leaves the state after its row r in version r + 1 and version 0 as it was. `order` maps versions to places,
// so that accepting a row swaps two integers and copies nothing.
struct StateSlots {
  float* data = nullptr;
  int64_t floats = 0;  // of one state
  int64_t versions = 1;
  const int32_t* order = nullptr;  // [slots, versions]

  float* at(int slot, int64_t version) const {
    return data + (slot * versions + order[slot * versions + version]) * floats;
  }
};

// xbc D [rows, channels] -> out f32 [rows, channels], the values of D(silu(D(sum_t weight[t] * x[row - taps + 1 + t] +
// bias))). weight f32 [taps, channels], last tap the newest; bias f32 [channels] or null. State: the last taps - 1
// input rows, f32 [taps - 1, channels].
void causal_conv(Context& ctx, const MambaShape& shape, ConstMatrix xbc, const float* weight, const float* bias,
                 std::span<const Sequence> sequences, const StateSlots& states, Matrix out);

// For each head h, with g = h / (heads / groups), in float32:
//   dt' = softplus(dt + dt_bias[h]);  S = exp(dt' a[h]) S + (dt' x) outer B_g;  y = S C_g + skip[h] x.
// xbc f32 [rows, channels]; dt D [rows, heads]; a = -exp(A_log), dt_bias and skip (D) f32 [heads]; y f32 [rows, inner].
// State: f32 [heads, state, head_dim]. time_step_limit is (0, infinity) in every published configuration and not
// applied.
void state_scan(Context& ctx, const MambaShape& shape, ConstMatrix xbc, ConstMatrix dt, const float* dt_bias,
                const float* a, const float* skip, std::span<const Sequence> sequences, const StateSlots& states,
                Matrix y);

}  // namespace sluice::ops
