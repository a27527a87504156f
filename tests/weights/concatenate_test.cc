// SPDX-License-Identifier: Apache-2.0
// Rows of several matrices as one tensor: the same values, or nothing.
#include "tests/weights/random_weights.h"

namespace sluice::weights {
namespace {

using format::Format;

// Parts whose scales of whole matrices agree, so that they fit one tensor.
std::vector<QuantTensor> equal_parts(Random& random, Format f, int64_t experts, const std::vector<int64_t>& rows,
                                     int64_t cols) {
  std::vector<QuantTensor> parts;
  for (const int64_t n : rows) {
    parts.push_back(random_quant(random, f, experts, n, cols));
    parts.back().global = parts[0].global;
    if (f == Format::fp8_tensor) parts.back().scales = parts[0].scales;
  }
  return parts;
}

TEST(ConcatenateRows, KeepsEveryValueInEveryFormat) {
  Random random;
  for (const auto& f : format::kFormats)
    for (const int64_t experts : {1, 3})
      for (const int64_t cols : {32, 160, 290}) {
        SCOPED_TRACE(fmt::format("{} {} experts {} columns", f.name, experts, cols));
        // Blocks of 128 rows do not straddle parts when all but the last are multiples of 128.
        const std::vector<int64_t> rows =
            f.value == Format::fp8_block ? std::vector<int64_t>{128, 256, 5} : std::vector<int64_t>{33, 1, 130};
        const std::vector<QuantTensor> parts = equal_parts(random, f.value, experts, rows, cols);
        const std::optional<QuantTensor> one = concatenate_rows(parts);
        ASSERT_TRUE(one.has_value());
        EXPECT_EQ(one->format, f.value);
        EXPECT_EQ(one->experts, experts);
        EXPECT_EQ(one->rows, rows[0] + rows[1] + rows[2]);
        EXPECT_EQ(one->cols, cols);
        // The shapes of a tensor that was made whole.
        const QuantTensor whole = make_quant_tensor(f.value, experts, one->rows, cols);
        for (const auto& [a, b] : {std::pair(&one->codes, &whole.codes), std::pair(&one->scales, &whole.scales),
                                   std::pair(&one->global, &whole.global)}) {
          EXPECT_EQ(a->empty(), b->empty());
          EXPECT_EQ(a->dtype(), b->dtype());
          EXPECT_EQ(a->shape(), b->shape());
        }
        const Tensor joined = dequantize(*one);
        for (int64_t e = 0; e < experts; ++e) {
          int64_t first = 0;
          for (const QuantTensor& part : parts) {
            const Tensor own = dequantize(part);
            ASSERT_EQ(0, std::memcmp(joined.as<float>() + (e * one->rows + first) * cols,
                                     own.as<float>() + e * part.rows * cols,
                                     static_cast<size_t>(part.rows * cols) * sizeof(float)))
                << "expert " << e << " rows from " << first;
            first += part.rows;
          }
        }
      }
}

TEST(ConcatenateRows, OneIsItselfAndNoneIsNothing) {
  Random random;
  const QuantTensor part = random_quant(random, Format::fp8_block, 2, 70, 96);
  const std::optional<QuantTensor> one = concatenate_rows({&part, 1});
  ASSERT_TRUE(one.has_value());
  EXPECT_TRUE(same_bytes(*one, part));
  EXPECT_FALSE(concatenate_rows({}).has_value());
}

TEST(ConcatenateRows, RefusesWhatOneTensorCannotHold) {
  Random random;
  const auto refused = [](const std::vector<QuantTensor>& parts) { return !concatenate_rows(parts).has_value(); };
  for (const auto& f : format::kFormats) {
    SCOPED_TRACE(f.name);
    std::vector<QuantTensor> parts = equal_parts(random, f.value, 2, {128, 128}, 64);
    EXPECT_FALSE(refused(parts));
    // Another number of experts, of columns, another format.
    EXPECT_TRUE(refused({parts[0], random_quant(random, f.value, 1, 128, 64)}));
    EXPECT_TRUE(refused({parts[0], random_quant(random, f.value, 2, 128, 96)}));
    const Format other = f.value == Format::bf16 ? Format::fp8_channel : Format::bf16;
    EXPECT_TRUE(refused({parts[0], random_quant(random, other, 2, 128, 64)}));
    // A global scale that differs in one expert only.
    if (!parts[1].global.empty()) {
      parts[1].global = parts[1].global.clone();
      parts[1].global.as<float>()[1] *= 2;
      EXPECT_TRUE(refused(parts));
    }
    if (f.value == Format::fp8_tensor) {
      parts[1].scales = parts[1].scales.clone();
      parts[1].scales.as<float>()[1] *= 2;
      EXPECT_TRUE(refused(parts));
    }
    // Blocks of 128 rows that would straddle two parts; the last part may be short.
    const bool blocks = f.value == Format::fp8_block;
    EXPECT_EQ(refused(equal_parts(random, f.value, 1, {100, 128}, 64)), blocks);
    EXPECT_EQ(refused(equal_parts(random, f.value, 1, {128, 64, 128}, 64)), blocks);
    EXPECT_FALSE(refused(equal_parts(random, f.value, 1, {128, 100}, 64)));
  }
}

}  // namespace
}  // namespace sluice::weights
