// SPDX-License-Identifier: Apache-2.0
// The products of attention's tiles at every instruction set, bit for bit against a model of fused multiply-adds, and
// the softmax between them against double precision.
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/cpu_kernel.h"
#include "tensor/tensor.h"
#include "tests/kernels/cpu/row_ops.h"
#include "tests/support/random.h"

namespace sluice::kernels::cpu {
namespace {

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

INSTANTIATE_TEST_SUITE_P(Isas, TileProducts,
                         testing::Values(Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx), name_of_isa);

}  // namespace
}  // namespace sluice::kernels::cpu
