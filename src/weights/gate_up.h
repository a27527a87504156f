// SPDX-License-Identifier: Apache-2.0
// Stacks that hold gate and up in one matrix, in any order that is published, and the canonical pair.
#pragma once

#include "base/named.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

enum class GateUpOrder : uint8_t {
  gate_up,      // rows [0, I) gate (w1), [I, 2I) up (w3): Hugging Face checkpoints
  up_gate,      // the halves the other way round: what the fused Blackwell kernels take
  interleaved,  // gate 0, up 0, gate 1, ...: gpt-oss
};

inline constexpr std::array<Named<GateUpOrder>, 3> kGateUpOrders{
    {{GateUpOrder::gate_up, "gate_up"}, {GateUpOrder::up_gate, "up_gate"}, {GateUpOrder::interleaved, "interleaved"}}};

struct GateUp {
  QuantTensor gate, up;  // [E, I, H] each
};

// Where row i of gate or up lies in a merged matrix of 2 * inter rows: begin + i * step.
struct RowWalk {
  int64_t begin = 0, step = 1;
};
constexpr RowWalk gate_rows(GateUpOrder order, int64_t inter) {
  return order == GateUpOrder::interleaved ? RowWalk{0, 2} : RowWalk{order == GateUpOrder::gate_up ? 0 : inter, 1};
}
constexpr RowWalk up_rows(GateUpOrder order, int64_t inter) {
  return order == GateUpOrder::interleaved ? RowWalk{1, 2} : RowWalk{order == GateUpOrder::gate_up ? inter : 0, 1};
}

// merged [E, 2I, H]. Throws where a scale covers rows of both (fp8_block with I % 128 != 0, or interleaved).
GateUp split_gate_up(const QuantTensor& merged, GateUpOrder order);

// The inverse. Both must share their scales where a format has one for the whole matrix (fp8_tensor, NVFP4's global);
// refused otherwise, because one merged matrix cannot say both.
QuantTensor merge_gate_up(const GateUp& pair, GateUpOrder order);

}  // namespace sluice::weights
