// SPDX-License-Identifier: Apache-2.0
// Input rows of every instruction set, rounded and packed: the values of format/quantize_rows.h bit for bit.
#include "kernels/cpu/packed_rows.h"

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "format/quantize_rows.h"
#include "tensor/tensor.h"
#include "tests/kernels/cpu/row_ops.h"
#include "tests/support/random.h"

namespace sluice::kernels::cpu {
namespace {

using format::Format;
using format::InputFormat;

// Rows of special values: wide exponents, ties, zeros, infinities, NaN, subnormals, one value far above the others.
std::vector<float> corner_row(std::mt19937_64& rng, int64_t n, int kind) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) {
    const uint32_t bits = static_cast<uint32_t>(rng());
    switch (kind) {
      case 0:  // any float but NaN and infinity
        v = std::bit_cast<float>((bits & 0x80ffffffu) | (static_cast<uint32_t>(rng() % 254) << 23 & 0x7f800000u));
        break;
      case 1:  // near one
        v = std::bit_cast<float>((bits & 0x807fffffu) | (120u + static_cast<uint32_t>(rng() % 16)) << 23);
        break;
      case 2:  // multiples of a quarter: exact ties
        v = 0.25f * static_cast<float>(static_cast<int>(rng() % 129) - 64);
        break;
      case 3:  // subnormal and tiny
        v = std::bit_cast<float>(bits & 0x81ffffffu);
        break;
      default:
        v = 0.0f;
    }
  }
  if (kind == 4 && n > 5) x[5] = -0.0f;
  if (kind == 5) x[static_cast<size_t>(rng() % static_cast<uint64_t>(n))] = INFINITY;
  if (kind == 6) x[static_cast<size_t>(rng() % static_cast<uint64_t>(n))] = NAN;
  if (kind == 7)
    x[static_cast<size_t>(rng() % static_cast<uint64_t>(n))] =
        448.0f * std::exp2(static_cast<float>(rng() % 40) - 20.0f);
  return x;
}
constexpr int kKinds = 8;

TEST_P(RowOps, InputsAreRoundedAsTheDefinitionSays) {
  const Isa isa = GetParam();
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const auto& input : format::kInputFormats)
    for (const int64_t n : {16, 32, 34, 96, 160, 291}) {
      for (int repeat = 0; repeat < 25 * kKinds; ++repeat) {
        const std::vector<float> x = corner_row(rng, n, repeat % kKinds);
        const Format weights = input.value == InputFormat::fp8_group ? Format::fp8_block : Format::mxfp4;
        const CpuKernel kernel = choose_cpu_kernel(isa, weights, input.value, DType::f32);
        PackedRows packed;
        const int64_t padded = (n + 31) / 32 * 32;
        BumpAllocator counter(nullptr);
        allocate_packed_rows(counter, kernel, 1, n, padded);
        Tensor memory(DType::u8, {counter.used()});
        std::memset(memory.data(), 0xff, static_cast<size_t>(memory.bytes()));
        BumpAllocator allocator(memory.data());
        packed = allocate_packed_rows(allocator, kernel, 1, n, padded);
        const float scale = 0.01f;
        pack_row(packed, 0, {x.data(), DType::f32, false}, scale, nullptr);

        std::vector<float> expected(static_cast<size_t>(n));
        std::vector<float> group(static_cast<size_t>(n), 1.0f);
        float row_scale = 1.0f;
        if (input.value == InputFormat::plain) {
          expected = x;
        } else {
          format::QuantRows q = format::quantize_rows(input.value, x.data(), 1, n, scale);
          if (!q.row_scales.empty()) std::swap(row_scale, q.row_scales[0]), q.row_scales[0] = 1.0f;
          for (int64_t i = 0; i < n && !q.group_scales.empty(); ++i)
            group[static_cast<size_t>(i)] = q.group_scales[static_cast<size_t>(i / 128)];
          std::fill(q.group_scales.begin(), q.group_scales.end(), 1.0f);
          format::dequantize_rows(q, expected.data());
        }
        ASSERT_TRUE(same(packed.row_scale[0], row_scale))
            << input.name << " " << packed.row_scale[0] << " " << row_scale;
        for (int64_t i = 0; i < padded; ++i) {
          const float got = reinterpret_cast<const float*>(packed.data)[i];
          const float want = i < n ? expected[static_cast<size_t>(i)] : 0.0f;
          ASSERT_TRUE(same(got, want)) << input.name << " n " << n << " kind " << repeat % kKinds << " i " << i << " x "
                                       << (i < n ? x[static_cast<size_t>(i)] : 0) << ": " << got << ", not " << want;
          if (packed.group_scale != nullptr && i < n) {
            ASSERT_TRUE(same(packed.group_scale[i / 128], group[static_cast<size_t>(i)]));
          }
        }
      }
    }
}

// PackedType::nvfp4 holds the quantised values, in the documented order, with matching offsets.
TEST_P(RowOps, Nvfp4RowsHoldTheSameValues) {
  const Isa isa = GetParam();
  const CpuKernel kernel = choose_cpu_kernel(isa, Format::nvfp4, InputFormat::nvfp4_token, DType::bf16);
  if (kernel.input_type != PackedType::nvfp4) GTEST_SKIP() << "this level multiplies NVFP4 in floating point";
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  const int64_t n = 77, padded = 96;
  BumpAllocator counter(nullptr);
  allocate_packed_rows(counter, kernel, 1, n, padded);
  Tensor memory(DType::u8, {counter.used()}), staging(DType::f32, {padded});
  for (int repeat = 0; repeat < 200; ++repeat) {
    const std::vector<float> x = corner_row(rng, n, repeat % 5);
    std::memset(memory.data(), 0xff, static_cast<size_t>(memory.bytes()));
    BumpAllocator allocator(memory.data());
    const PackedRows packed = allocate_packed_rows(allocator, kernel, 1, n, padded);
    pack_row(packed, 0, {x.data(), DType::f32, false}, 1.0f, staging.as<float>());
    format::QuantRows q = format::quantize_rows(InputFormat::nvfp4_token, x.data(), 1, n);
    ASSERT_EQ(packed.row_scale[0], q.row_scales[0]);
    q.row_scales[0] = 1.0f;
    std::vector<float> expected(static_cast<size_t>(n));
    format::dequantize_rows(q, expected.data());
    constexpr int kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    for (int64_t g = 0; g < padded / 16; ++g) {
      const Nvfp4Group& group = reinterpret_cast<const Nvfp4Group*>(packed.data)[g];
      int sum = 0;
      for (int i = 0; i < 16; ++i) {
        const int64_t k = g * 16 + kOrder[i];
        const float value = 0.5f * static_cast<float>(group.codes[i]) * (4.0f * group.scale);
        ASSERT_EQ(value, k < n ? expected[static_cast<size_t>(k)] : 0.0f) << k;
        sum += group.codes[i];
      }
      ASSERT_EQ(group.offset, -12 * sum);
    }
  }
}

// PackedType::fixed_point: planes and outliers together hold every bfloat16 value bit for bit (-0 as 0), and none
// twice. The sums of a block fit in int32. The low plane is zero in rows of two planes.
TEST_P(RowOps, FixedPointRowsHoldEveryValue) {
  const Isa isa = GetParam();
  const CpuKernel kernel = choose_cpu_kernel(isa, Format::mxfp4, InputFormat::plain, DType::bf16);
  if (kernel.input_type != PackedType::fixed_point) GTEST_SKIP() << "this level multiplies MXFP4 in floating point";
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  const int64_t n = 1077, padded = 1088;
  const FixedPointRow at(padded);
  BumpAllocator counter(nullptr);
  allocate_packed_rows(counter, kernel, 1, n, padded);
  Tensor memory(DType::u8, {counter.used()}), staging(DType::f32, {padded});
  std::set<int> planes_seen;
  for (int repeat = 0; repeat < 100 * (kKinds + 3); ++repeat) {
    const int kind = repeat % (kKinds + 3);
    std::vector<float> x = corner_row(rng, n, kind % kKinds);
    if (kind >= kKinds)  // all near the largest of their block: the sums need the smaller scale
      for (float& v : x) v = std::exp2(static_cast<float>(kind)) * (1.99f - 0.01f * static_cast<float>(rng() % 2));
    if (kind == kKinds + 2)  // that, and as much below as 24 bits hold
      for (size_t i = 1; i < x.size(); i += 2) x[i] *= 0x1p-14f;
    for (float& v : x) v = round_to_bf16(v);
    std::memset(memory.data(), 0xff, static_cast<size_t>(memory.bytes()));
    BumpAllocator allocator(memory.data());
    const PackedRows packed = allocate_packed_rows(allocator, kernel, 1, n, padded);
    pack_row(packed, 0, {x.data(), DType::f32, true}, 1.0f, staging.as<float>());
    ASSERT_EQ(packed.row_scale[0], 1.0f);
    const auto* scales = reinterpret_cast<const float*>(packed.data + at.scales);
    const auto* outlier_starts = reinterpret_cast<const int32_t*>(packed.data + at.outlier_starts) + 1;
    const auto* outliers = reinterpret_cast<const Outlier*>(packed.data + at.outliers);
    const int planes = outlier_starts[-1];
    ASSERT_TRUE(planes == 2 || planes == 3) << planes;
    planes_seen.insert(planes);
    const int64_t chunks = (padded + kFixedChunkK - 1) / kFixedChunkK;
    ASSERT_EQ(outlier_starts[0], 0);
    int64_t next = 0, sum = 0;
    for (int64_t k = 0; k < padded; ++k) {
      const int64_t chunk = k / kFixedChunkK, block = k / kFixedBlockK;
      // Eight k are two groups of four bytes: 0 4 1 5 and 2 6 3 7.
      const int64_t in_block = k % kFixedBlockK / 8 * 8 + (k % 8 / 2 % 2) * 4 + (k % 2) * 2 + k % 8 / 4;
      const int low = packed.data[at.low + 32 * block + in_block];
      const int code =
          (packed.data[64 * block + in_block] << 16 | packed.data[64 * block + 32 + in_block] << 8 | low) - kFixedBias;
      ASSERT_TRUE(planes == 3 || low == 0);
      ASSERT_EQ(scales[2 * block], 256.0f * scales[2 * block + 1]);
      sum = k % kFixedBlockK == 0 ? std::abs(code) : sum + std::abs(code);
      ASSERT_LE(sum, kFixedMaxSum);
      double value = double{static_cast<float>(code)} * double{scales[2 * block + 1]} / double{kFixedFactor};
      if (next < outlier_starts[chunk + 1] && outliers[next].k == k % kFixedChunkK) {
        ASSERT_EQ(code, 0);
        ASSERT_EQ(outliers[next].block, k % kFixedChunkK / kFixedBlockK);
        value = double{outliers[next++].value} / double{kFixedFactor};
      }
      const double expected = k < n ? double{x[static_cast<size_t>(k)]} : 0.0;
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected)
          << "kind " << kind << " k " << k << ": " << value << " instead of " << expected;
      const bool chunk_ends = (k + 1) % kFixedChunkK == 0 || k + 1 == padded;
      ASSERT_TRUE(!chunk_ends || next == outlier_starts[chunk + 1]) << next << " of " << outlier_starts[chunk + 1];
    }
    ASSERT_EQ(next, outlier_starts[chunks]);
  }
  EXPECT_EQ(planes_seen.size(), 2u) << "rows of two and of three planes";
}

}  // namespace
}  // namespace sluice::kernels::cpu
