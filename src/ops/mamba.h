// SPDX-License-Identifier: Apache-2.0
// The shapes of a Mamba-2 mixer and of its recurrent states.
#pragma once

#include <cstdint>

namespace sluice::ops {

struct MambaShape {
  int64_t heads = 0, head_dim = 0, groups = 0, state = 0, taps = 0;
  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * state; }  // x | B | C
  bool operator==(const MambaShape&) const = default;
};
inline constexpr int64_t kMaxTaps = 16;

// The states of one kind of one layer, float32 [places, floats]. Batch::state_in and state_out name places.
struct States {
  float* data = nullptr;
  int64_t floats = 0;  // of one state

  float* at(int64_t place) const { return data + place * floats; }
};

}  // namespace sluice::ops
