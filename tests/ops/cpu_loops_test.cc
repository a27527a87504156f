// SPDX-License-Identifier: Apache-2.0
// The CPU's inner loops: exp, pieces of rows, tiles of attention.
#include <bit>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/exp.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/row.h"
#include "ops/cpu/tile.h"
#include "tests/ops/conformance.h"

namespace sluice::ops::cpu {
namespace {

struct Row : testing::Test, FreshRandom {};
struct Tile : testing::Test, FreshRandom {};

std::vector<float> normals(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal();
  return v;
}

TEST(Exp, TwoUlpEverywhereAndTheEdges) {
  double worst = 0;
  for (uint32_t bits = 0; bits < 0x42b20000u; bits += 97) {  // up to 89
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double exact = std::exp(static_cast<double>(x));
      const float y = exp_float(x);
      if (exact > 3.4028234e38) {
        ASSERT_EQ(y, INFINITY) << x;
      } else if (exact < 1.1754944e-38) {
        ASSERT_LE(y, 1.1754944e-38f) << x;
      } else {
        worst = std::max(worst, std::abs(y - exact) / exact);
      }
    }
  }
  EXPECT_LE(worst, 2 * 0x1p-23);
  EXPECT_EQ(exp_float(0.0f), 1.0f);
  EXPECT_EQ(exp_float(-INFINITY), 0.0f);
  EXPECT_EQ(exp_float(INFINITY), INFINITY);
  EXPECT_EQ(exp_float(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_float(NAN)));
}

TEST_F(Row, LoadsAndStoresBothTypes) {
  for (const int64_t n : {1, 15, 16, 33, 1024}) {
    const std::vector<float> x = normals(n);
    std::vector<bf16_t> narrow(static_cast<size_t>(n + 1), 0x7fc0);
    std::vector<float> wide(static_cast<size_t>(n + 1), NAN), rounded = x;
    store(x.data(), narrow.data(), DType::bf16, n);
    load(narrow.data(), DType::bf16, wide.data(), n);
    round_to(DType::bf16, rounded.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(wide[i], round_to_bf16(x[i]));
      ASSERT_EQ(rounded[i], wide[i]);
    }
    EXPECT_EQ(narrow.back(), 0x7fc0);
    EXPECT_TRUE(std::isnan(wide.back()));
    rounded = x;
    round_to(DType::f32, rounded.data(), n);
    EXPECT_EQ(rounded, x);
  }
}

TEST_F(Row, SquareSumIsOfTheLengthAloneAndOfAnyPieces) {
  for (const int64_t n : {1, 16, 31, 1000}) {
    const std::vector<float> x = normals(n);
    double exact = 0;
    for (const float v : x) exact += double{v} * double{v};
    SquareSum whole, pieces;
    whole.add(x.data(), n);
    for (int64_t i = 0; i < n; i += 32) pieces.add(x.data() + i, std::min<int64_t>(32, n - i));
    EXPECT_NEAR(whole.total(), exact, exact * sum_error(n));
    EXPECT_EQ(whole.total(), pieces.total());
  }
}

TEST_F(Row, NormsOfHeadsAreThoseOfRows) {
  ThreadPool pool(1);
  Context ctx{pool};
  CpuOps ops(ctx);
  const int64_t head = 18;
  const std::vector<float> x = normals(head);
  Tensor weight(DType::f32, {head});
  for (int64_t i = 0; i < head; ++i) weight.as<float>()[i] = normal(1, 0.5f);
  for (const DType d : kTypes) {
    Tensor row(d, {head}), one(d, {head});
    store(x.data(), row.data(), d, head);
    norm_row(row.data(), d, weight.as<float>(), head, 1e-6f, one.data(), d);
    const Matrix m{row.data(), d, 1, head, head};
    ops.rms_norm(m, {weight, 1e-6f}, m, {});
    EXPECT_EQ(0, std::memcmp(row.data(), one.data(), static_cast<size_t>(one.bytes())));
  }
}

TEST_F(Tile, DotRowsAndMixRowsAgainstDoubles) {
  for (const int64_t stride : {16, 64, 80, 576})
    for (const int64_t count : {1, 4, 5, 63, 64}) {
      const std::vector<float> q = normals(stride), rows = normals(kTile * stride);
      std::vector<float> out(kTile, NAN);
      dot_rows(q.data(), rows.data(), stride, count, 0.3f, out.data());
      for (int64_t i = 0; i < count; ++i) {
        Sum exact;
        for (int64_t c = 0; c < stride; ++c)
          exact.add(double{0.3f} * double{q[static_cast<size_t>(c)]} *
                    double{rows[static_cast<size_t>(i * stride + c)]});
        ASSERT_NEAR(out[static_cast<size_t>(i)], exact.value,
                    exact.size * (static_cast<double>(stride) / 16 + 8) * 0x1p-24);
      }
      for (int64_t i = (count + 3) / 4 * 4; i < kTile; ++i) ASSERT_TRUE(std::isnan(out[static_cast<size_t>(i)]));

      const std::vector<float> p = normals(count);
      std::vector<float> acc = normals(stride);
      const std::vector<float> before = acc;
      mix_rows(p.data(), rows.data(), stride, count, stride, 0.7f, acc.data());
      for (int64_t c = 0; c < stride; ++c) {
        Sum exact;
        exact.add(double{0.7f} * double{before[static_cast<size_t>(c)]});
        for (int64_t i = 0; i < count; ++i)
          exact.add(double{p[static_cast<size_t>(i)]} * double{rows[static_cast<size_t>(i * stride + c)]});
        ASSERT_NEAR(acc[static_cast<size_t>(c)], exact.value, exact.size * (static_cast<double>(count) + 2) * 0x1p-24);
      }
    }
}

TEST_F(Tile, TransposesTiles) {
  for (const int64_t width : {16, 48, 128}) {
    const int64_t stride = width + 16;
    const std::vector<float> rows = normals(kTile * stride);
    std::vector<float> out(static_cast<size_t>((width + 1) * kTile), NAN);
    transpose_tile(rows.data(), stride, width, out.data());
    for (int64_t r = 0; r < kTile; ++r)
      for (int64_t c = 0; c < width; ++c)
        ASSERT_EQ(out[static_cast<size_t>(c * kTile + r)], rows[static_cast<size_t>(r * stride + c)]);
    for (int64_t r = 0; r < kTile; ++r) ASSERT_TRUE(std::isnan(out[static_cast<size_t>(width * kTile + r)]));
  }
}

TEST_F(Tile, SoftmaxAdvancesByTiles) {
  const float scale = 0.7f;
  const std::vector<float> unscaled = normals(3 * kTile - 5);
  std::vector<float> scores = unscaled;
  for (float& v : scores) v *= scale;
  float maximum = -INFINITY, sum = 0;
  double largest = -INFINITY, total = 0;
  for (size_t first = 0; first < scores.size(); first += kTile) {
    const auto count = static_cast<int64_t>(std::min<size_t>(kTile, scores.size() - first));
    std::vector<float> tile(kTile, NAN);
    std::copy_n(unscaled.begin() + static_cast<std::ptrdiff_t>(first), count, tile.begin());
    const float old = maximum;
    const float keep = softmax_tile(tile.data(), count, scale, maximum, sum);
    for (size_t i = 0; i < first + static_cast<size_t>(count); ++i) largest = std::max(largest, double{scores[i]});
    EXPECT_EQ(double{maximum}, largest);
    const double shrunk = std::exp(double{old} - largest);
    EXPECT_NEAR(keep, shrunk, shrunk * 4 * 0x1p-23);
    for (int64_t i = 0; i < kTile; ++i) {
      const double p = i < count ? std::exp(double{scores[first + static_cast<size_t>(i)]} - largest) : 0;
      ASSERT_NEAR(tile[static_cast<size_t>(i)], p, p * 4 * 0x1p-23);
    }
    total = 0;
    for (size_t i = 0; i < first + static_cast<size_t>(count); ++i) total += std::exp(double{scores[i]} - largest);
    EXPECT_NEAR(sum, total, total * 32 * 0x1p-24);
  }
}

}  // namespace
}  // namespace sluice::ops::cpu
