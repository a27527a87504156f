// SPDX-License-Identifier: Apache-2.0
// The row operations of every instruction set: input rounding against format/quantize_rows.h bit for bit, activations
// against double precision, the weighted sum against its definition.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "activation/activations.h"
#include "format/quantize_rows.h"
#include "kernels/cpu/packed_rows.h"
#include "tensor/tensor.h"
#include "tests/support/random.h"

namespace sluice::kernels::cpu {
namespace {

using format::Format;
using format::InputFormat;

class RowOps : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (const Support s = supported(GetParam()); !s) GTEST_SKIP() << s.reason;
  }
};

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

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

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

TEST_P(RowOps, ActivationsMatchDouble) {
  const KernelTable& rows = *choose_cpu_kernel(GetParam(), Format::bf16, InputFormat::plain, DType::f32).row_ops;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  std::normal_distribution<float> normal(0, 6);
  const activation::Params params[] = {{}, {1.702f, 1.0f, 7.0f}};
  for (const auto& act : activation::kActivations)
    for (const activation::Params& p : params) {
      if (&p != params && !activation::takes_params(act.value)) continue;
      std::vector<float> up(1003), gate(1003), out(1003, NAN);
      for (float& v : up) v = normal(rng);
      for (float& v : gate) v = normal(rng) * 4;
      const float specials[] = {0.0f,    -0.0f,  88.0f,  89.0f,   -88.0f, -104.0f,
                                -200.0f, 300.0f, 1e-30f, -1e-30f, 1e30f,  -1e30f};
      std::copy(std::begin(specials), std::end(specials), gate.begin());
      std::copy(std::begin(specials), std::end(specials), up.begin() + 50);
      ActivateArgs a;
      a.act = static_cast<ActivationCode>(act.value);
      a.up = up.data();
      a.gate = gate.data();
      a.out = out.data();
      a.cols = 1003;
      a.alpha = p.alpha;
      a.beta = p.beta;
      a.limit = p.limit;
      rows.activate(a);
      for (size_t i = 0; i < up.size(); ++i) {
        const double u = up[i], g = gate[i];
        const auto silu = [](double x, double s) { return x / (1 + std::exp(-s * x)); };
        const auto erf_gelu = [](double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); };
        double want = u;
        switch (act.value) {
          case activation::Activation::swiglu:
            want = silu(std::min(g, double{p.limit}), p.alpha) *
                   (std::clamp(u, -double{p.limit}, double{p.limit}) + double{p.beta});
            break;
          case activation::Activation::silu:
            want = silu(u, 1);
            break;
          case activation::Activation::relu2:
            want = u > 0 ? u * u : 0;
            break;
          case activation::Activation::gelu:
            want = erf_gelu(u);
            break;
          case activation::Activation::geglu:
            want = u * erf_gelu(g);
            break;
          case activation::Activation::geglu_tanh:
            want = u * 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
            break;
          default:
            break;
        }
        // exp of an argument that is itself rounded: |x| * 2^-24 relative, beside a few units in the last place. Below
        // 2^-100 results may be flushed, and so may an activation below the smallest normal number, before up
        // multiplies it: gelu(-14.4) * 1e30.
        const double x = activation::is_gated(act.value) ? g : u;
        const double argument = act.value == activation::Activation::geglu_tanh
                                    ? 2 * (std::abs(x) + 0.05 * std::abs(x * x * x))
                                    : std::abs(x) * 1.8 + x * x * 0.5;
        const double tolerance = std::abs(want) * std::exp2(-23) * (6 + std::min(argument, 1e6)) + std::exp2(-90) +
                                 (activation::is_gated(act.value) ? std::abs(u) * std::exp2(-126) : 0);
        if (std::isinf(static_cast<float>(want)))
          ASSERT_TRUE(std::isinf(out[i])) << act.name << " " << u << " " << g;
        else if (act.value == activation::Activation::geglu_tanh && g < -5)
          ASSERT_NEAR(out[i], want, 1e-6 * std::abs(u))
              << act.name << " " << u << " " << g;  // 1 + tanh cancels in the reference
        else
          ASSERT_NEAR(out[i], want, tolerance) << act.name << " " << u << " " << g;
      }
    }
}

TEST_P(RowOps, WeightedSumIsAChainOfFusedMultiplyAdds) {
  const KernelTable& rows = *choose_cpu_kernel(GetParam(), Format::bf16, InputFormat::plain, DType::f32).row_ops;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  std::normal_distribution<float> normal;
  const int64_t n = 531;
  for (const bool bf16 : {false, true})
    for (const int count : {0, 1, 3, 8}) {
      std::vector<std::vector<float>> f(static_cast<size_t>(count));
      std::vector<std::vector<uint16_t>> b(static_cast<size_t>(count));
      std::vector<const void*> pointers(static_cast<size_t>(count));
      std::vector<float> weights(static_cast<size_t>(count));
      for (size_t r = 0; r < f.size(); ++r) {
        weights[r] = bf16 ? round_to_bf16(normal(rng)) : normal(rng);
        for (int64_t i = 0; i < n; ++i) f[r].push_back(bf16 ? round_to_bf16(normal(rng)) : normal(rng));
        for (const float v : f[r]) b[r].push_back(float_to_bf16(v));
        pointers[r] = bf16 ? static_cast<const void*>(b[r].data()) : f[r].data();
      }
      std::vector<float> out(static_cast<size_t>(n) + 1, NAN);
      WeightedSumArgs a;
      a.rows = pointers.data();
      a.weights = weights.data();
      a.count = count;
      a.bf16 = bf16;
      a.cols = n;
      a.out = out.data();
      rows.weighted_sum(a);
      for (int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (size_t r = 0; r < f.size(); ++r) sum = std::fma(weights[r], f[r][static_cast<size_t>(i)], sum);
        const float got =
            bf16 ? bf16_to_float(reinterpret_cast<const uint16_t*>(out.data())[i]) : out[static_cast<size_t>(i)];
        ASSERT_TRUE(same(got, bf16 ? round_to_bf16(sum) : sum)) << got << " " << sum;
      }
    }
}

// Levels above avx512 have one of their own.
class TileProducts : public RowOps {};

// The operands of one tile product and what its definition gives, one fused multiply-add after the other.
struct TileProduct {
  TileOperands operands;
  int64_t m, n, k;
  bool fused;                              // the plain level rounds products, as its GEMM does
  std::vector<float> a, b, keep, out;      // [m][k] of each part, [k][n], [m], [m][n]
  int64_t a_stride, b_stride, out_stride;  // of the packed operands, in words
  int parts = 1;

  bool in_parts() const { return operands == TileOperands::bf16_parts; }
  bool pairs() const { return operands == TileOperands::bf16_pairs || in_parts(); }
  bool sums_two() const { return pairs() || operands == TileOperands::bf16_columns; }
  bool split() const { return operands == TileOperands::bf16_rows; }

  TileProduct(std::mt19937_64& rng, Isa isa, TileOperands o, int64_t rows, int64_t cols, int64_t sum)
      : operands(o), m(rows), n(cols), k(sum), fused(isa != Isa::scalar), parts(o == TileOperands::bf16_parts ? 3 : 1) {
    std::normal_distribution<float> normal;
    const auto normals = [&](int64_t count, bool bf16) {
      std::vector<float> x(static_cast<size_t>(count));
      for (float& v : x) v = bf16 ? round_to_bf16(normal(rng)) : normal(rng);
      return x;
    };
    a = normals(parts * m * k, pairs());
    b = normals(k * n, operands != TileOperands::f32);
    keep = normals(m, false);
    out = normals(m * n, false);
    a_stride = (pairs() ? k / 2 : k) + 3;
    b_stride = pairs() ? n + 16 : split() ? n / 2 + 1 : n + 1;  // a whole number of lines for bf16_pairs
    out_stride = n + 5;
  }
  // The column that comes at position j.
  int64_t column(int64_t j) const { return split() ? j / 32 * 32 + j % 16 * 2 + j / 16 % 2 : j; }
  float expected(int64_t i, int64_t j, bool kept) const {
    float sum = kept ? keep[static_cast<size_t>(i)] * out[static_cast<size_t>(i * n + j)] : 0.0f;
    for (int64_t first = 0; in_parts() && first < k; first += 32)
      for (int64_t part = 0; part < parts; ++part) {
        float chains[2] = {};  // of even and odd l
        for (int64_t l = first; l < first + 32; ++l)
          chains[l % 2] = std::fma(b[static_cast<size_t>(l * n + j)], a[static_cast<size_t>((part * m + i) * k + l)],
                                   chains[l % 2]);
        sum += chains[0] + chains[1];
      }
    if (in_parts()) return sum;
    for (int64_t step = 0; step < k; ++step) {
      const int64_t l = pairs() ? step ^ 1 : step;  // vdpbf16ps adds the odd one of a pair first
      const float x = a[static_cast<size_t>(i * k + l)], w = b[static_cast<size_t>(l * n + column(j))];
      sum = fused ? std::fma(w, x, sum) : w * x + sum;
    }
    return sum;
  }
  static void put(std::byte* words, int64_t word, int64_t half, float value) {
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(words + 4 * word + 2 * half, &bits, sizeof bits);
  }
  void pack_a(std::byte* words) const {
    for (int64_t i = 0; i < parts * m; ++i)
      for (int64_t l = 0; l < k; ++l) {
        const float& v = a[static_cast<size_t>(i * k + l)];
        if (pairs())
          put(words, i * a_stride + l / 2, l % 2, v);
        else
          std::memcpy(words + 4 * (i * a_stride + l), &v, sizeof v);
      }
  }
  void pack_b(std::byte* words) const {
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < n; ++j) {
        const float& v = b[static_cast<size_t>(l * n + j)];
        if (split())
          put(words, l * b_stride + j / 2, j % 2, v);
        else if (sums_two())
          put(words, l / 2 * b_stride + j, l % 2, v);
        else
          std::memcpy(words + 4 * (l * b_stride + j), &v, sizeof v);
      }
  }
};

TEST_P(TileProducts, AreAChainPerOutput) {
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const TileOperands operands : {TileOperands::f32, TileOperands::bf16_rows, TileOperands::bf16_columns,
                                      TileOperands::bf16_pairs, TileOperands::bf16_parts}) {
    const TileProductFn product = tile_product(GetParam(), operands);
    if (product == nullptr) {
      EXPECT_LT(GetParam(), operands == TileOperands::bf16_parts ? Isa::amx : Isa::avx512_bf16);
      EXPECT_TRUE(operands == TileOperands::bf16_parts || operands == TileOperands::bf16_pairs);
      continue;
    }
    int tile_rows = 0;
    for (const int64_t m : {1, 2, 3, 5, 8, 13, 16, 41})
      for (const int64_t n : {16, 32, 48, 64, 80, 96, 128})
        for (const int64_t k : {0, 1, 7, 18, 64, 96}) {
          if (operands == TileOperands::bf16_parts && (n % 32 != 0 || k % 32 != 0)) continue;
          const TileProduct p(rng, GetParam(), operands, m, n, k);
          if ((p.split() && n % 32 != 0) || (p.sums_two() && k % 2 != 0)) continue;
          Tensor a(DType::f32, {p.parts * m * p.a_stride}), b(DType::f32, {std::max<int64_t>(1, k) * p.b_stride});
          std::memset(a.data(), 0xff, static_cast<size_t>(a.bytes()));
          std::memset(b.data(), 0xff, static_cast<size_t>(b.bytes()));
          p.pack_a(static_cast<std::byte*>(a.data()));
          p.pack_b(static_cast<std::byte*>(b.data()));
          for (const bool kept : {false, true}) {
            std::vector<float> out(static_cast<size_t>(m * p.out_stride), NAN);
            for (int64_t i = 0; kept && i < m; ++i)
              std::copy_n(p.out.begin() + i * n, n, out.begin() + i * p.out_stride);
            product({.a = a.data(),
                     .b = b.data(),
                     .out = out.data(),
                     .keep = kept ? p.keep.data() : nullptr,
                     .a_stride = p.a_stride,
                     .b_stride = p.b_stride,
                     .out_stride = p.out_stride,
                     .m = m,
                     .n = n,
                     .k = k,
                     .next = kept ? a.data() : nullptr,
                     .next_bytes = kept ? a.bytes() : 0,
                     .parts = p.parts,
                     .part_stride = m * p.a_stride,
                     .tile_rows = &tile_rows});
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < p.out_stride; ++j)
                ASSERT_TRUE(same(out[static_cast<size_t>(i * p.out_stride + j)], j < n ? p.expected(i, j, kept) : NAN))
                    << "operands " << static_cast<int>(operands) << ", " << m << "x" << n << "x" << k << " at " << i
                    << ", " << j;
          }
        }
    if (operands == TileOperands::bf16_parts) {
      product({.tile_rows = &tile_rows});
      EXPECT_EQ(tile_rows, 0);
    }
  }
}

// Against the definition in double: maxima, factors, sums, and probabilities as the sums of their parts.
TEST_P(TileProducts, SoftmaxInParts) {
  const SoftmaxFn softmax = softmax_parts(GetParam());
  EXPECT_EQ(softmax == nullptr, tile_product(GetParam(), TileOperands::bf16_parts) == nullptr);
  if (softmax == nullptr) return;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  const float scale = 0.7f;
  const auto n = int64_t{kSoftmaxPositions};
  for (const int64_t queries : {1, 3, 16, 37})
    for (const int64_t per_row : {1, 3})
      for (const int64_t seen : {int64_t{1}, int64_t{17}, n - 4, n})
        for (const float spread : {1.0f, 60.0f}) {
          std::normal_distribution<float> normal(0, spread);
          const int64_t part_stride = queries * (n / 2) + 7;
          std::vector<float> scores(static_cast<size_t>(queries * n)), keep(static_cast<size_t>(queries), NAN);
          std::vector<float> maximum(keep), sum(keep);
          std::vector<uint32_t> parts(static_cast<size_t>(3 * part_stride), 0xffffffffu);
          for (float& v : scores) v = normal(rng);
          for (size_t i = 0; i < keep.size(); ++i) {
            const bool first = i % 3 == 0;  // nothing was seen before
            maximum[i] = first ? -INFINITY : normal(rng);
            sum[i] = first ? 0.0f : 2.5f;
          }
          const std::vector<float> before = maximum, sum_before = sum;
          const auto sees = [&](int64_t i) { return std::min(n, seen + i / per_row); };
          for (int64_t i = 0; i < queries; ++i)  // what is not seen may be anything
            for (int64_t j = sees(i); j < n; ++j) scores[static_cast<size_t>(i * n + j)] = j % 2 == 0 ? NAN : INFINITY;
          softmax({.scores = scores.data(),
                   .queries = queries,
                   .per_row = per_row,
                   .seen = seen,
                   .scale = scale,
                   .maximum = maximum.data(),
                   .sum = sum.data(),
                   .keep = keep.data(),
                   .parts = parts.data(),
                   .part_stride = part_stride});
          for (int64_t i = 0; i < queries; ++i) {
            const auto q = static_cast<size_t>(i);
            float largest = before[q];
            for (int64_t j = 0; j < sees(i); ++j)
              largest = std::max(largest, scale * scores[static_cast<size_t>(i * n + j)]);
            ASSERT_EQ(maximum[q], largest);
            // Two units in the last place of exp, half of one of its argument and of the maximum. Parts have no bits
            // below 2^-133, and exp no values below 2^-126.
            const auto near = [&](float got, double x) {
              const double exact = std::exp(x);
              if (exact < 0x1p-125) return got >= 0 && got <= 0x1p-124f;
              const double relative = (8 + std::abs(x) + std::abs(double{largest})) * 0x1p-24;
              return std::abs(double{got} - exact) <= exact * relative + 0x1p-132;
            };
            ASSERT_TRUE(near(keep[q], double{before[q]} - double{largest})) << keep[q];
            double total = double{sum_before[q]} * std::exp(double{before[q]} - double{largest});
            for (int64_t j = 0; j < n; ++j) {
              const int64_t word = i * (n / 2) + j / 32 * 16 + j % 16;
              float p = 0;
              for (int64_t part = 2; part >= 0; --part)
                p += bf16_to_float(static_cast<uint16_t>(parts[static_cast<size_t>(part * part_stride + word)] >>
                                                         (j % 32 < 16 ? 0 : 16)));
              if (j >= sees(i)) {
                ASSERT_EQ(p, 0);
                continue;
              }
              const double x = double{scale} * double{scores[static_cast<size_t>(i * n + j)]} - double{largest};
              ASSERT_TRUE(near(p, x)) << p << " " << x;
              total += std::exp(x);
            }
            ASSERT_NEAR(sum[q], total, total * (64 + std::abs(double{largest})) * 0x1p-24);
          }
        }
}

TEST_P(RowOps, RoundsToBf16) {
  const KernelTable& rows = *choose_cpu_kernel(GetParam(), Format::bf16, InputFormat::plain, DType::f32).row_ops;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  std::vector<float> in(100003);
  for (float& v : in) v = std::bit_cast<float>(static_cast<uint32_t>(rng()));
  in[0] = INFINITY;
  in[1] = NAN;
  in[2] = std::bit_cast<float>(0x3f808000u);  // a tie
  std::vector<uint16_t> out(in.size());
  rows.round_bf16(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], float_to_bf16(in[i])) << in[i];
}

const auto name_of_isa = [](const auto& p) { return std::string(name_of(kIsas, p.param)); };
INSTANTIATE_TEST_SUITE_P(Isas, RowOps, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512), name_of_isa);
INSTANTIATE_TEST_SUITE_P(Isas, TileProducts,
                         testing::Values(Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx), name_of_isa);

}  // namespace
}  // namespace sluice::kernels::cpu
