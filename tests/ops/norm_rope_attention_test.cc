// SPDX-License-Identifier: Apache-2.0
// From projected rows to attended rows in one operation: against the definition in double, and bit for bit against the
// two operations that it stands for.
#include "tests/ops/angles.h"
#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {
namespace {

struct ProjectedCase {
  int64_t heads, key_heads, dim, block_size;
  std::vector<SequenceRows> sequences;
  bool q_norm = true, k_norm = true, rotary = true;
  bool e4m3 = false;
  int64_t padding = 0;                          // sequences and rows that do not exist
  int64_t gap = 8;                              // values between rows; 8 keeps rows of whole vectors aligned
  float key_scale = 0.04f, value_scale = 0.3f;  // of e4m3 pages
};

constexpr float kScale = 0.1f;

// One call's inputs. Pages hold the positions before the new rows; all others are NaN.
struct ProjectedData {
  ProjectedCase s;
  DType d;
  TestBatch batch;
  int64_t rows;
  Rows qkv, q_weight, k_weight;
  Angles angles;
  PagedRows keys, values;
  double lost_probability;

  ProjectedData(Conformance& t, DType type, const ProjectedCase& problem)
      : s(problem),
        d(type),
        batch(*t.queue, s.sequences, s.block_size),
        rows(batch.rows() + s.padding),
        qkv(t.rows(d, rows, (s.heads + 2 * s.key_heads) * s.dim, s.gap)),
        q_weight(t.vector(s.dim, 0.5f, 1)),
        k_weight(t.vector(s.dim, 0.5f, 1)),
        angles(t, d, rows, s.rotary ? s.dim / 2 : 0),
        keys(*t.queue, s.e4m3 ? DType::e4m3 : d, batch.blocks(), s.block_size, s.key_heads, s.dim, key_scale()),
        values(*t.queue, s.e4m3 ? DType::e4m3 : d, batch.blocks(), s.block_size, s.key_heads, s.dim, value_scale()),
        lost_probability(t.lost_probability(d, s.e4m3 ? DType::e4m3 : d)) {
    batch.pad(s.padding, s.padding);
    qkv.randomize(1.5f);
    for (size_t i = 0; i < s.sequences.size(); ++i)
      for (int64_t p = 0; p < s.sequences[i].context; ++p)
        for (int64_t h = 0; h < s.key_heads; ++h)
          for (int64_t c = 0; c < s.dim; ++c) {
            keys.set(batch.slot(i, p), h, c, normal() / key_scale());
            values.set(batch.slot(i, p), h, c, normal() / value_scale());
          }
  }
  float key_scale() const { return s.e4m3 ? s.key_scale : 1; }
  float value_scale() const { return s.e4m3 ? s.value_scale : 1; }
  QkvLayout layout() {
    QkvLayout l{s.heads, s.key_heads, s.dim, {}, {}, s.rotary};
    if (s.q_norm) l.q_norm = {q_weight.tensor({s.dim}), 1e-5f};
    if (s.k_norm) l.k_norm = {k_weight.tensor({s.dim}), 1e-3f};
    return l;
  }

  // What value i of a head that begins at column `first` is after norm and rotation, rounded to D where ops.h rounds.
  Interval head_value(int64_t row, int64_t first, bool norm, float eps, const Rows& weight, int64_t i) const {
    const auto raw = [&](int64_t c) { return qkv.at(row, first + c); };
    const double factor = norm ? norm_factor(s.dim, eps, raw) : 1;
    const auto value = [&](int64_t c) {
      return norm ? normed(d, s.dim, raw(c), factor, weight.at(0, c)) : Interval{raw(c), raw(c)};
    };
    if (!s.rotary) return value(i);
    const int64_t half = s.dim / 2, pair = i % half;
    const Interval cosine = value(i).times(angles.cosine.at(row, pair)).loosened(1).rounded(d);
    const Interval sine = value(i < half ? i + half : pair).times(angles.sine.at(row, pair)).loosened(1).rounded(d);
    const Interval sum = i < half ? Interval{cosine.low - sine.high, cosine.high - sine.low}
                                  : Interval{cosine.low + sine.low, cosine.high + sine.high};
    return sum.loosened(1).rounded(d);
  }
};

// The pages have the new rows, and nothing else has changed.
void check_pages(const ProjectedData& data, const PagedRows& keys, const PagedRows& values) {
  const ProjectedCase& s = data.s;
  const auto stored = [&](double v, float scale) {
    return s.e4m3 ? format::e4m3_to_float(format::float_to_e4m3(static_cast<float>(v) / scale)) : v;
  };
  std::vector<bool> is_new(static_cast<size_t>(keys.slots()));
  for (size_t i = 0; i < s.sequences.size(); ++i)
    for (int64_t r = 0; r < s.sequences[i].rows; ++r) {
      const int64_t row = data.batch.first_row(i) + r, slot = data.batch.slot(i, s.sequences[i].context + r);
      is_new[static_cast<size_t>(slot)] = true;
      for (int64_t h = 0; h < s.key_heads; ++h)
        for (int64_t c = 0; c < s.dim; ++c) {
          const Interval k = data.head_value(row, (s.heads + h) * s.dim, s.k_norm, 1e-3f, data.k_weight, c);
          const double key = keys.at(slot, h, c);
          ASSERT_TRUE(stored(k.low, data.key_scale()) <= key && key <= stored(k.high, data.key_scale()))
              << "k, row " << row << " head " << h << " column " << c << ": " << key << " of " << k.low << " to "
              << k.high;
          ASSERT_EQ(values.at(slot, h, c),
                    stored(data.qkv.at(row, (s.heads + s.key_heads + h) * s.dim + c), data.value_scale()))
              << "v, row " << row << " head " << h << " column " << c;
        }
    }
  for (int64_t slot = 0; slot < keys.slots(); ++slot) {
    if (is_new[static_cast<size_t>(slot)]) continue;
    for (int64_t h = 0; h < s.key_heads; ++h)
      for (int64_t c = 0; c < s.dim; ++c) {
        const double k = keys.at(slot, h, c), v = values.at(slot, h, c);
        const double old_k = data.keys.at(slot, h, c), old_v = data.values.at(slot, h, c);
        ASSERT_TRUE(k == old_k || (std::isnan(k) && std::isnan(old_k))) << "slot " << slot;
        ASSERT_TRUE(v == old_v || (std::isnan(v) && std::isnan(old_v))) << "slot " << slot;
      }
  }
}

// One row of what was attended, over the pages as they are after the operation. rounded: probabilities may be rounded
// to bfloat16.
void check_row(const ProjectedData& data, const PagedRows& keys, const PagedRows& values, size_t sequence, int64_t r,
               const Rows& out, bool rounded) {
  const ProjectedCase& s = data.s;
  const int64_t row = data.batch.first_row(sequence) + r, seen = s.sequences[sequence].context + r + 1;
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t kh = h / (s.heads / s.key_heads);
    std::vector<Interval> q;
    for (int64_t c = 0; c < s.dim; ++c) q.push_back(data.head_value(row, h * s.dim, s.q_norm, 1e-5f, data.q_weight, c));
    std::vector<double> p(static_cast<size_t>(seen));
    double largest = -INFINITY, reach = 0, total = 0, unknown = 0;
    for (int64_t j = 0; j < seen; ++j) {
      Sum dot;
      double width = 0;
      for (int64_t c = 0; c < s.dim; ++c) {
        const Interval& x = q[static_cast<size_t>(c)];
        const double k = double{data.key_scale()} * keys.at(data.batch.slot(sequence, j), kh, c);
        dot.add((x.low + x.high) / 2 * k);
        width += (x.high - x.low) / 2 * std::abs(k);
      }
      p[static_cast<size_t>(j)] = dot.value * double{kScale};
      reach = std::max(reach, (dot.size + width) * double{kScale});
      unknown = std::max(unknown, width * double{kScale});
      largest = std::max(largest, p[static_cast<size_t>(j)]);
    }
    for (double& v : p) total += v = std::exp(v - largest);
    // A score is off by what q may be, and by at most dim + 8 half-ulps of its terms in any order of its sum; a
    // probability by twice that much relative; the sum of `seen` products by as many half-ulps of their sizes.
    const double relative = std::expm1(2 * unknown) +
                            (2 * reach * (static_cast<double>(s.dim) + 8) + static_cast<double>(seen) + 16) * 0x1p-24 +
                            (rounded ? 2 * half_ulp(DType::bf16) : 0x1p-17);
    for (int64_t c = 0; c < s.dim; ++c) {
      Sum exact;
      double all = 0;
      for (int64_t j = 0; j < seen; ++j) {
        const double value = double{data.value_scale()} * values.at(data.batch.slot(sequence, j), kh, c);
        exact.add(p[static_cast<size_t>(j)] / total * value);
        all += std::abs(value);
      }
      const double lost = data.lost_probability * all / total;
      ASSERT_NEAR(out.at(row, h * s.dim + c), exact.value,
                  relative * exact.size + std::abs(exact.value) * half_ulp(out.dtype()) + lost)
          << "sequence " << sequence << " row " << r << " head " << h << " column " << c;
    }
  }
}

void check_norm_rope_attention(Conformance& t, DType d, const ProjectedCase& s, bool row_invariant) {
  SCOPED_TRACE(
      fmt::format("{} {} heads of {}, {} key heads, blocks of {}, norms {} {}, rotary {}, e4m3 {}, padding {}, "
                  "gap {}, row_invariant {}",
                  to_string(d), s.heads, s.dim, s.key_heads, s.block_size, s.q_norm, s.k_norm, s.rotary, s.e4m3,
                  s.padding, s.gap, row_invariant));
  ProjectedData data(t, d, s);
  const int64_t cols = s.heads * s.dim, real_rows = data.batch.rows();
  const auto run = [&](bool together, PagedRows& keys, PagedRows& values, Rows& out) {
    Rows qkv = data.qkv;
    const AttentionOptions options{kScale, row_invariant};
    if (together)
      t.ops->norm_rope_attention(data.batch.view(), data.layout(), data.angles.view(), qkv.view(), keys.view(),
                                 values.view(), options, out.view());
    else
      t.ops->Ops::norm_rope_attention(data.batch.view(), data.layout(), data.angles.view(), qkv.view(), keys.view(),
                                      values.view(), options, out.view());
    EXPECT_TRUE(qkv.gaps_untouched() && out.gaps_untouched());
  };
  Rows apart = t.rows(d, data.rows, cols, 8);
  PagedRows keys_apart = data.keys, values_apart = data.values;
  run(false, keys_apart, values_apart, apart);
  const auto same = [&](const Rows& out, const PagedRows& keys, const PagedRows& values) {
    for (int64_t r = 0; r < real_rows; ++r) ASSERT_TRUE(out.same_row(r, apart, r)) << "row " << r;
    ASSERT_TRUE(keys.same_bytes(keys_apart) && values.same_bytes(values_apart)) << "pages";
  };
  Rows out = t.rows(d, data.rows, cols, 8);
  PagedRows keys = data.keys, values = data.values;
  run(true, keys, values, out);
  same(out, keys, values);
  check_pages(data, keys, values);
  for (size_t i = 0; i < s.sequences.size(); ++i)
    for (int64_t r = 0; r < s.sequences[i].rows; r += 1 + r / 8) {
      check_row(data, keys, values, i, r, out, d == DType::bf16 && !row_invariant);
      if (testing::Test::HasFailure()) return;
    }
}

// One new row each, which a GPU takes in one kernel: groups of 1 to 16 query heads, tiles that end with the new row
// and that begin with it, contexts that are cut into parts, and steps that are padded.
TEST_P(Conformance, NormRopeAttentionOfNewTokens) {
  for (const DType d : kTypes)
    for (const ProjectedCase& s : {ProjectedCase{8, 2, 128, 64, {{0}, {1}, {63}, {64}, {65}, {127}}},
                                   {32, 4, 128, 64, {{300}}},
                                   {16, 1, 128, 16, {{700}, {62}}, true, true, true, true},
                                   {4, 4, 128, 64, {{130}, {0}, {5}}, false, false, false},
                                   {8, 2, 128, 64, {{0}, {64}, {511}}, false, false, false, true},
                                   {8, 1, 128, 48, {{47}, {96}}, true, false, true, true},
                                   {5, 1, 64, 64, {{63}, {200}}, false, true, true},
                                   {16, 1, 64, 64, {{1}, {128}}, true, true, false, true},
                                   {8, 2, 128, 64, {{0}, {130}, {700}}, true, true, true, false, 2},
                                   {8, 2, 128, 64, {{3}, {64}}, true, true, true, true, 3}})
      for (const bool row_invariant : {true, false}) {
        check_norm_rope_attention(*this, d, s, row_invariant);
        if (HasFailure()) return;
      }
}

// What it leaves to the two operations: prompts, drafts, more heads of a group, other widths, rows that are not
// aligned.
TEST_P(Conformance, NormRopeAttentionOfOtherRows) {
  for (const DType d : kTypes)
    for (const ProjectedCase& s : {ProjectedCase{8, 2, 128, 64, {{40, 1}, {0, 70}, {5, 3}}},
                                   {20, 1, 128, 64, {{30}, {70}}},
                                   {6, 2, 20, 16, {{5}, {65}}, true, true, true, true},
                                   {4, 2, 128, 64, {{5}, {64}}, true, true, true, false, 0, 3},
                                   {4, 2, 256, 64, {{70}, {0}}}})
      for (const bool row_invariant : {true, false}) {
        check_norm_rope_attention(*this, d, s, row_invariant);
        if (HasFailure()) return;
      }
}

TEST_P(Conformance, NormRopeAttentionOfNoRows) {
  for (const DType d : kTypes) {
    ProjectedData data(*this, d, {4, 2, 128, 64, {{3}}});
    PagedRows keys = data.keys, values = data.values;
    Rows out = rows(d, 1, 4 * 128, 8);
    TestBatch none(*queue, {});
    ops->norm_rope_attention(none.view(), data.layout(), data.angles.view(), data.qkv.view(0, 0), keys.view(),
                             values.view(), {kScale}, out.view(0, 0));
    EXPECT_TRUE(out.row_untouched(0) && keys.same_bytes(data.keys) && values.same_bytes(data.values));
  }
}

}  // namespace
}  // namespace sluice::ops
