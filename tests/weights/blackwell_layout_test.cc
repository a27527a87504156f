// SPDX-License-Identifier: Apache-2.0
// Against the definitions of spec/fused-moe-contract.md 6.1 as they are printed there: tables and formulas.
#include "weights/blackwell_layout.h"

#include "random_weights.h"

namespace sluice::weights {
namespace {

using format::Format;

const std::vector<int64_t> kMap16{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
const std::vector<int64_t> kMap32{0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
                                  4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};

Tensor random_bytes(Random& random, Shape shape) {
  Tensor t(DType::u8, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>(random.integer(0, 255));
  return t;
}

TEST(Blackwell, ReorderInterleavesTheHalves) {
  Random random;
  const Tensor t = random_bytes(random, {2, 10, 3}), out = reorder_rows_for_gated_act_gemm(t);
  for (int64_t e = 0; e < 2; ++e)
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t c = 0; c < 3; ++c) {
        EXPECT_EQ(out.as<uint8_t>()[(e * 10 + 2 * i) * 3 + c], t.as<uint8_t>()[(e * 10 + i) * 3 + c]);
        EXPECT_EQ(out.as<uint8_t>()[(e * 10 + 2 * i + 1) * 3 + c], t.as<uint8_t>()[(e * 10 + 5 + i) * 3 + c]);
      }
}

TEST(Blackwell, ShuffleMovesRowsByTheTables) {
  Random random;
  for (const auto& [tile, map] : {std::pair{int64_t{128}, kMap32}, {int64_t{64}, kMap16}}) {
    const int64_t block = static_cast<int64_t>(map.size());
    const Tensor t = random_bytes(random, {2, 3 * block, 5}), out = shuffle_matrix_a(t, tile);
    for (int64_t e = 0; e < 2; ++e)
      for (int64_t i = 0; i < 3 * block; ++i) {
        const int64_t to = i / block * block + map[i % block];
        for (int64_t c = 0; c < 5; ++c)
          ASSERT_EQ(out.as<uint8_t>()[(e * 3 * block + to) * 5 + c], t.as<uint8_t>()[(e * 3 * block + i) * 5 + c])
              << "tile " << tile << " row " << i;
      }
  }
}

TEST(Blackwell, ScaleInterleaveIsThe128x4Formula) {
  Random random;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{128, 4}, {256, 12}, {96, 7}, {130, 1}}) {
    const Tensor t = random_bytes(random, {2, rows, cols}), out = block_scale_interleave(t);
    const int64_t wide = (cols + 3) / 4, size = (rows + 127) / 128 * 128 * wide * 4;
    ASSERT_EQ(out.elements(), 2 * size);
    std::vector<int> written(static_cast<size_t>(2 * size), 0);
    for (int64_t e = 0; e < 2; ++e)
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t k = 0; k < cols; ++k) {
          const int64_t at = ((m / 128) * wide + k / 4) * 512 + (m % 32) * 16 + ((m % 128) / 32) * 4 + k % 4;
          EXPECT_EQ(out.as<uint8_t>()[e * size + at], t.as<uint8_t>()[(e * rows + m) * cols + k]);
          written[e * size + at] = 1;
        }
    for (size_t i = 0; i < written.size(); ++i)
      if (!written[i]) {
        ASSERT_EQ(out.as<uint8_t>()[i], 0) << "padding";
      }
    EXPECT_TRUE(same_bytes(block_scale_deinterleave(out, rows, cols), t));
  }
}

TEST(Blackwell, BlockLayoutIsMajorInBlocksOf128Bytes) {
  Random random;
  const Tensor t = random_bf16(random, {2, 5, 192}), out = convert_to_block_layout(t);
  ASSERT_EQ(out.shape(), (Shape{2, 3, 5, 128}));
  const auto* bytes = static_cast<const uint8_t*>(t.data());
  for (int64_t e = 0; e < 2; ++e)
    for (int64_t m = 0; m < 5; ++m)
      for (int64_t b = 0; b < 384; ++b)
        ASSERT_EQ(out.as<uint8_t>()[((e * 3 + b / 128) * 5 + m) * 128 + b % 128], bytes[(e * 5 + m) * 384 + b]);
  const Tensor back = convert_from_block_layout(out);
  EXPECT_EQ(std::memcmp(back.data(), t.data(), static_cast<size_t>(t.bytes())), 0);
}

TEST(Blackwell, ComposedOrderIsReorderThenShuffle) {
  Random random;
  const Tensor t = random_bytes(random, {1, 64, 2});
  const RowOrder both = compose(gated_act_order(64), shuffle_order(64, 128));
  EXPECT_TRUE(same_bytes(permute_rows(t, both), shuffle_matrix_a(reorder_rows_for_gated_act_gemm(t), 128)));
  EXPECT_TRUE(same_bytes(permute_rows(permute_rows(t, both), inverse(both)), t));
}

TEST(Blackwell, PreparedStacksComeBackBitForBit) {
  Random random;
  SCOPED_TRACE(random.seed);
  for (const auto& [format, name] : format::kFormats) {
    if (format == Format::fp8_channel) {
      EXPECT_EQ(error_of([&, f = format] { blackwell_layout(f); }),
                "the Blackwell kernels take no fp8_channel weights");
      continue;
    }
    for (bool gated : {false, true}) {
      const QuantTensor w = random_quant(random, format, 2, 256, 192);
      const BlackwellTensors prepared = to_blackwell(w, gated);
      QuantTensor back{format, 2, 256, 192, {}, {}, w.global};
      from_blackwell(prepared, gated, back);
      EXPECT_TRUE(same_bytes(back, w)) << name;
      EXPECT_EQ(same_bytes(prepared.codes, w.codes), format == Format::fp8_block) << name;
    }
  }
}

TEST(Blackwell, RefusesRowsThatAreNotPadded) {
  Random random;
  EXPECT_EQ(error_of([&] { to_blackwell(random_quant(random, Format::fp8_tensor, 1, 24, 128), false); }),
            "24 rows cannot be shuffled in blocks of 32; pad them to a multiple");
  EXPECT_EQ(error_of([&] { to_blackwell(random_quant(random, Format::mxfp8, 1, 96, 128), false); }),
            "scales of 96 rows cannot be interleaved; pad the rows to a multiple of 128");
  EXPECT_EQ(error_of([&] { to_blackwell(random_quant(random, Format::bf16, 1, 128, 96), false); }),
            "rows of 192 bytes cannot be cut into blocks of 128; pad the columns");
}

}  // namespace
}  // namespace sluice::weights
