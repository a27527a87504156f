// SPDX-License-Identifier: Apache-2.0
// The CPU's inner loops: exp, pieces of rows, tiles of attention.
#include <bit>

#include "ops/cpu/attention_sums.h"
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

TEST(Codes, WidenToTheirValues) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<bf16_t> wide(codes.size() + 1, 0x7fc0);
  widen_codes(codes.data(), wide.data(), 256);
  for (size_t i = 0; i < codes.size(); ++i) {
    const double magnitude = i % 128 < 8
                                 ? static_cast<double>(i % 8) * 0x1p-9
                                 : std::ldexp(1 + static_cast<double>(i % 8) / 8, static_cast<int>(i % 128 / 8) - 7);
    if (i % 128 == 127)
      EXPECT_TRUE(std::isnan(bf16_to_float(wide[i])));
    else
      EXPECT_EQ(double{bf16_to_float(wide[i])}, i < 128 ? magnitude : -magnitude);
  }
  EXPECT_EQ(wide.back(), 0x7fc0);
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

TEST_F(Tile, MergesSumsAgainstDoubles) {
  const int64_t width = 32, count = 70, floats = AttentionSums::floats(count, width);
  std::vector<float> before = normals(floats), after = normals(floats);
  const AttentionSums a(before.data(), count, width), b(after.data(), count, width);
  // Both maxima count; the earlier, the later one alone does; they are equal.
  for (int64_t i = 0; i < count; ++i) b.maximum[i] += i % 4 == 1 ? -200.0f : i % 4 == 2 ? 200.0f : 0.0f;
  for (int64_t i = 3; i < count; i += 4) b.maximum[i] = a.maximum[i];
  std::vector<float> merged = before, single = before;
  const AttentionSums all(merged.data(), count, width), one(single.data(), count, width);
  all.merge(b, count);
  for (int64_t i = 0; i < count; ++i) {
    one.from(i).merge(b.from(i), 1);
    const double largest = std::max(a.maximum[i], b.maximum[i]);
    EXPECT_EQ(double{all.maximum[i]}, largest);
    const double x = std::exp(a.maximum[i] - largest), y = std::exp(b.maximum[i] - largest);
    // A factor is off by two ulp and by the rounding of its exponent, a term by one rounding more, a sum by another.
    const double relative = (6 + std::abs(double{a.maximum[i]} - double{b.maximum[i]})) * 0x1p-24;
    const auto check = [&](float result, double p, double q) {
      ASSERT_NEAR(result, x * p + y * q, relative * (std::abs(x * p) + std::abs(y * q)) + 0x1p-120) << "query " << i;
    };
    check(all.sum[i], a.sum[i], b.sum[i]);
    for (int64_t c = i * width; c < (i + 1) * width; ++c) check(all.values[c], a.values[c], b.values[c]);
  }
  EXPECT_EQ(merged, single);
}

TEST_F(Tile, TransposesRows) {
  for (const int64_t width : {16, 48, 128}) {
    const int64_t stride = width + 16;
    const std::vector<float> rows = normals(16 * stride);
    std::vector<float> out(static_cast<size_t>(width * kTile + 16), NAN);
    transpose_rows(rows.data(), stride, width, out.data());
    for (int64_t c = 0; c <= width; ++c)
      for (int64_t r = 0; r < (c < width ? kTile : 16); ++r) {
        const float x = out[static_cast<size_t>(c * kTile + r)];
        if (c < width && r < 16)
          ASSERT_EQ(x, rows[static_cast<size_t>(r * stride + c)]);
        else
          ASSERT_TRUE(std::isnan(x));
      }
  }
}

TEST_F(Tile, SplitsRowsInParts) {
  for (const int64_t n : {1, 18, 33, 576}) {
    const int64_t words = (n + 31) / 32 * 16, part_stride = words + 5;
    std::vector<float> x = normals(n);
    x[0] = std::nextafter(2.0f, 0.0f);  // all 24 bits
    if (n > 4) x[1] = 0x1.fffffep-110f, x[2] = -0x1.8p100f, x[3] = 0.0f, x[4] = -std::numeric_limits<float>::max();
    std::vector<uint32_t> parts(static_cast<size_t>(kParts * part_stride), 0xffffffffu);
    split_row(x.data(), n, words, parts.data(), part_stride);
    for (int64_t c = 0; c < 2 * words; ++c) {
      double sum = 0;
      for (int64_t part = 0; part < kParts; ++part)
        sum += double{bf16_to_float(
            static_cast<bf16_t>(parts[static_cast<size_t>(part * part_stride + c / 2)] >> (c % 2 == 0 ? 0 : 16)))};
      ASSERT_EQ(sum, c < n ? double{x[static_cast<size_t>(c)]} : 0.0) << c;
    }
    for (int64_t part = 0; part < kParts; ++part)
      for (int64_t i = words; i < part_stride; ++i)
        ASSERT_EQ(parts[static_cast<size_t>(part * part_stride + i)], 0xffffffffu);
  }
}

TEST_F(Tile, PairsRowsAndClearsThem) {
  for (const int64_t words : {16, 48, 64})
    for (const int64_t count : {int64_t{1}, int64_t{16}, int64_t{45}, kTile}) {
      const int64_t stride = words + 3;
      std::vector<bf16_t> rows(static_cast<size_t>(2 * kTile * stride));
      for (bf16_t& v : rows) v = static_cast<bf16_t>(random()());
      std::vector<uint32_t> pairs(static_cast<size_t>(kTile * words + 1), 0xffffffffu);
      pair_rows(rows.data(), stride, count, words, pairs.data());
      for (int64_t seen = count; seen >= 0; seen = seen == 0 ? -1 : seen / 2) {
        for (int64_t i = count - 1; i >= seen; --i) clear_paired_row(pairs.data(), words, i);
        for (int64_t i = 0; i < kTile; ++i)
          for (int64_t c = 0; c < 2 * words; ++c) {
            const int64_t place = c / 32 * 32 + c % 2 * 16 + c % 32 / 2, row = i / 32 * 16 + i % 16;
            const uint32_t word = pairs[static_cast<size_t>(row * 2 * words + place)];
            ASSERT_EQ(static_cast<bf16_t>(word >> (i % 32 < 16 ? 0 : 16)),
                      i < seen ? rows[static_cast<size_t>(2 * i * stride + c)] : 0)
                << i << " " << c << " of " << seen;
          }
      }
      EXPECT_EQ(pairs.back(), 0xffffffffu);
    }
}

// Query i sees `seen` + i / per_row scores of all tiles together.
TEST_F(Tile, SoftmaxAdvancesByTiles) {
  const float scale = 0.7f;
  for (const int64_t queries : {1, 6, 40})
    for (const int64_t per_row : {1, 3})
      for (const int64_t seen : {int64_t{1}, kTile - 4, 3 * kTile - 5}) {
        const int64_t longest = seen + (queries - 1) / per_row;
        const std::vector<float> unscaled = normals(queries * longest);
        std::vector<float> maximum(static_cast<size_t>(queries), -INFINITY), sum(static_cast<size_t>(queries), 0.0f);
        std::vector<double> largest(static_cast<size_t>(queries), -INFINITY);
        for (int64_t first = 0; first < longest; first += kTile) {
          // Queries from `blind` on see some of this tile.
          const int64_t blind = first < seen ? 0 : (first - seen + 1) * per_row, count = queries - blind;
          std::vector<float> tile(static_cast<size_t>(count * kTile), NAN), keep(static_cast<size_t>(count), NAN);
          const auto position = [&](int64_t i, int64_t j) {
            return j < seen + (blind + i) / per_row - first ? (blind + i) * longest + first + j : -1;
          };
          for (int64_t i = 0; i < count; ++i)
            for (int64_t j = 0; j < kTile; ++j)
              if (const int64_t at = position(i, j); at >= 0)
                tile[static_cast<size_t>(i * kTile + j)] = unscaled[static_cast<size_t>(at)];
          const std::vector<float> before = maximum;
          softmax_tile({.scores = tile.data(),
                        .queries = count,
                        .per_row = per_row,
                        .seen = seen + blind / per_row - first,
                        .scale = scale,
                        .maximum = maximum.data() + blind,
                        .sum = sum.data() + blind,
                        .keep = keep.data()});
          for (int64_t i = 0; i < count; ++i) {
            const auto q = static_cast<size_t>(blind + i);
            const auto score = [&](int64_t at) { return double{scale * unscaled[static_cast<size_t>(at)]}; };
            for (int64_t j = 0; j < kTile; ++j)
              if (const int64_t at = position(i, j); at >= 0) largest[q] = std::max(largest[q], score(at));
            ASSERT_EQ(double{maximum[q]}, largest[q]);
            const double shrunk = std::exp(double{before[q]} - largest[q]);
            ASSERT_NEAR(keep[static_cast<size_t>(i)], shrunk, shrunk * 4 * 0x1p-23);
            for (int64_t j = 0; j < kTile; ++j) {
              const int64_t at = position(i, j);
              const double p = at >= 0 ? std::exp(score(at) - largest[q]) : 0;
              ASSERT_NEAR(tile[static_cast<size_t>(i * kTile + j)], p, p * 4 * 0x1p-23);
            }
            double total = 0;
            const int64_t seen_so_far = std::min(first + kTile, seen + (blind + i) / per_row);
            for (int64_t j = 0; j < seen_so_far; ++j) total += std::exp(score((blind + i) * longest + j) - largest[q]);
            ASSERT_NEAR(sum[q], total, total * 32 * 0x1p-24);
          }
        }
      }
}

// Differences up to those whose exponential is zero, infinite scores and NaN.
TEST_F(Tile, SoftmaxOfDistantAndOfInfiniteScores) {
  std::vector<float> scores(3 * kTile), before, maximum(3, -INFINITY), sum(3, 0.0f), keep(3, NAN);
  for (float& v : scores) v = -std::abs(normal()) * 60;
  scores[5] = 0;
  scores[7] = -INFINITY;
  for (int64_t j = 0; j < kTile; ++j) scores[static_cast<size_t>(kTile + j)] = -87.3f - 0.001f * static_cast<float>(j);
  scores[kTile] = 0;
  scores[2 * kTile + 3] = NAN;
  before = scores;
  softmax_tile({.scores = scores.data(),
                .queries = 3,
                .per_row = 3,
                .seen = kTile,
                .maximum = maximum.data(),
                .sum = sum.data(),
                .keep = keep.data()});
  for (size_t i = 0; i < 2 * kTile; ++i) {
    const double p = std::exp(double{before[i]});  // the maximum is 0
    if (p < 0x1p-126)
      ASSERT_LE(scores[i], 0x1p-126f) << before[i];
    else
      ASSERT_NEAR(scores[i], p, p * 4 * 0x1p-23) << before[i];
  }
  EXPECT_TRUE(std::isnan(scores[2 * kTile + 3]));
  EXPECT_TRUE(std::isnan(sum[2]));
}

TEST_F(Tile, FinishesRowsInOrder) {
  const int64_t n = 96;
  const std::vector<float> x = normals(n);
  for (const bool split : {false, true}) {
    std::vector<float> row(static_cast<size_t>(n + 1), NAN);
    for (int64_t c = 0; c < n; ++c) {
      const int64_t place = split ? c / 32 * 32 + c % 2 * 16 + c % 32 / 2 : c;
      row[static_cast<size_t>(place)] = x[static_cast<size_t>(c)];
    }
    finish_row(row.data(), n, split, 3.0f, 0.7f);
    for (int64_t c = 0; c < n; ++c) ASSERT_EQ(row[static_cast<size_t>(c)], x[static_cast<size_t>(c)] / 3.0f * 0.7f);
    EXPECT_TRUE(std::isnan(row.back()));
  }
}

}  // namespace
}  // namespace sluice::ops::cpu
