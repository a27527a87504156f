// SPDX-License-Identifier: Apache-2.0
// The published orders of gate and up in one matrix, and where a row of either lies in it.
#pragma once

#include "base/named.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

enum class GateUpOrder : uint8_t {
  gate_up,      // rows [0, I) gate (w1), [I, 2I) up (w3): Hugging Face checkpoints
  up_gate,      // the halves the other way round: TensorRT-LLM's fused MoE, FlashInfer's too
  interleaved,  // gate 0, up 0, gate 1, ...: gpt-oss
};

inline constexpr std::array<Named<GateUpOrder>, 3> kGateUpOrders{
    {{GateUpOrder::gate_up, "gate_up"}, {GateUpOrder::up_gate, "up_gate"}, {GateUpOrder::interleaved, "interleaved"}}};

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

}  // namespace sluice::weights
