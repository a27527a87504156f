// SPDX-License-Identifier: Apache-2.0
#include "weights/gate_up.h"

#include "merged_gate_up.h"
#include "random_weights.h"

namespace sluice::weights {
namespace {

using format::Format;

// Which row of the merged matrix is (half, i): written out from the definition of each order.
int64_t merged_row(GateUpOrder order, bool is_gate, int64_t i, int64_t inter) {
  switch (order) {
    case GateUpOrder::gate_up:
      return is_gate ? i : inter + i;
    case GateUpOrder::up_gate:
      return is_gate ? inter + i : i;
    case GateUpOrder::interleaved:
      break;
  }
  return 2 * i + (is_gate ? 0 : 1);
}

TEST(GateUp, EveryOrderSplitsToTheSameRows) {
  Random random;
  for (const auto& [format, name] : format::kFormats)
    for (const auto& order : kGateUpOrders) {
      if (format == Format::fp8_block && order.value == GateUpOrder::interleaved) continue;
      const int64_t inter = format == Format::fp8_block ? 128 : 37, cols = 64;
      const QuantTensor merged = random_quant(random, format, 2, 2 * inter, cols);
      const GateUp pair = split_gate_up(merged, order.value);
      const Tensor all = dequantize(merged), gate = dequantize(pair.gate), up = dequantize(pair.up);
      for (int64_t e = 0; e < 2; ++e)
        for (int64_t i = 0; i < inter; ++i)
          for (int64_t k = 0; k < cols; ++k) {
            const auto at = [&](bool is_gate) {
              return all.as<float>()[(e * 2 * inter + merged_row(order.value, is_gate, i, inter)) * cols + k];
            };
            ASSERT_EQ(gate.as<float>()[(e * inter + i) * cols + k], at(true)) << name << " " << order.name;
            ASSERT_EQ(up.as<float>()[(e * inter + i) * cols + k], at(false)) << name << " " << order.name;
          }
      EXPECT_TRUE(same_bytes(merge_gate_up(pair, order.value), merged)) << name << " " << order.name;
    }
}

TEST(GateUp, RefusesBlocksThatCoverBothHalves) {
  Random random;
  const QuantTensor odd = random_quant(random, Format::fp8_block, 1, 2 * 96, 128);
  EXPECT_EQ(error_of([&] { split_gate_up(odd, GateUpOrder::gate_up); }),
            "rows cannot be cut at 96: a scale of fp8_block covers 128 of them");
  const QuantTensor even = random_quant(random, Format::fp8_block, 1, 256, 128);
  EXPECT_EQ(error_of([&] { split_gate_up(even, GateUpOrder::interleaved); }),
            "rows of fp8_block cannot be taken with a step of 2: a scale covers 128 rows");
}

TEST(GateUp, MergeRefusesDifferentScalesOfTheWholeMatrix) {
  Random random;
  GateUp pair{random_quant(random, Format::nvfp4, 1, 4, 32), random_quant(random, Format::nvfp4, 1, 4, 32)};
  EXPECT_EQ(error_of([&] { merge_gate_up(pair, GateUpOrder::gate_up); }),
            "gate and up have different nvfp4 scales of the whole matrix and cannot be merged into one");
}

}  // namespace
}  // namespace sluice::weights
