// SPDX-License-Identifier: Apache-2.0
// Rotary embedding: frequencies, angles, and the steps around it that fill the pages.
#include "ops/rope.h"

#include <complex>

#include "tests/ops/angles.h"
#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {
namespace {

// Values of transformers 5.17 (_compute_yarn_parameters, _compute_linear_scaling_rope_parameters).
TEST(Rope, YarnAndLinearFrequenciesOfTransformers) {
  RopeConfig c;
  c.type = RopeType::yarn;
  c.dim = 12;
  c.theta = 1000;
  c.factor = 4;
  c.original_max_positions = 64;
  c.beta_fast = 8;
  c.beta_slow = 1;
  c.mscale = 0.9;
  c.mscale_all_dim = 0.7;
  const RopeFrequencies f = rope_frequencies(c);
  const double yarn[] = {1, 0.237170815, 0.0499999933, 0.00790569466, 0.00249999971, 0.000790569524};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(f.inv_freq[i], yarn[i], 1e-6 * yarn[i]) << i;
  EXPECT_NEAR(f.attention_factor, 1.02527335, 1e-6);
  c.mscale = c.mscale_all_dim = 0;
  EXPECT_NEAR(rope_frequencies(c).attention_factor, 0.1 * std::log(4.0) + 1, 1e-6);
  c.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(c).attention_factor, 1.25f);
  // DeepSeek-V3's published values: 64 dimensions, theta 10,000, factor 40, 4096 positions, beta 32 and 1.
  RopeConfig published;
  published.type = RopeType::yarn;
  published.dim = 64;
  published.factor = 40;
  published.original_max_positions = 4096;
  published.mscale = published.mscale_all_dim = 1;
  const RopeFrequencies p = rope_frequencies(published);
  const std::pair<size_t, double> values[] = {{0, 1},
                                              {9, 0.0749894157},
                                              {10, 0.0562341288},
                                              {11, 0.0390069261},
                                              {15, 0.0083345091},
                                              {20, 0.000790569407},
                                              {23, 3.3338034e-05},
                                              {24, 2.49999994e-05},
                                              {31, 3.33380353e-06}};
  for (const auto& [i, v] : values) EXPECT_NEAR(p.inv_freq[i], v, 1e-6 * v) << i;
  EXPECT_EQ(p.attention_factor, 1.0f);
  RopeConfig linear;
  linear.type = RopeType::linear;
  linear.dim = 8;
  linear.factor = 2;
  const RopeFrequencies l = rope_frequencies(linear);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(l.inv_freq[i], std::pow(10000.0, -static_cast<double>(i) / 4) / 2, 1e-6 * l.inv_freq[i]);
}

TEST_P(Conformance, RopeAngles) {
  const std::vector<int32_t> positions{0, 1, 77, 4000, 131071, 1};
  const auto count = static_cast<int64_t>(positions.size());
  for (const DType d : kTypes)
    for (const int64_t half : {1, 5, 64}) {
      RopeConfig config;
      config.dim = 2 * half;
      RopeFrequencies f = rope_frequencies(config);
      f.attention_factor = 1.3f;
      Rows cosine = rows(DType::f32, count, half, 0), sine = rows(DType::f32, count, half, 0);
      Values on_device = ints(positions);
      ops->rope_angles(f, on_device.ints(), count, d, cosine.floats(), sine.floats());
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < half; ++i) {
          const double angle = double{f.inv_freq[static_cast<size_t>(i)]} * positions[static_cast<size_t>(r)];
          const double scale = double{f.attention_factor};
          // The angle is a float32; sine and cosine are good to 2 ulp of 1; the product and D round once more.
          const double bound = scale * (angle * 0x1p-24 + 2 * 0x1p-23 + 0x1p-24) + half_ulp(d) * scale;
          ASSERT_NEAR(cosine.at(r, i), scale * std::cos(angle), bound);
          ASSERT_NEAR(sine.at(r, i), scale * std::sin(angle), bound);
          if (d == DType::bf16) {
            ASSERT_EQ(cosine.at(r, i), round_to_bf16(static_cast<float>(cosine.at(r, i))));
            ASSERT_EQ(sine.at(r, i), round_to_bf16(static_cast<float>(sine.at(r, i))));
          }
        }
      for (int64_t i = 0; i < half; ++i) {
        ASSERT_EQ(cosine.at(1, i), cosine.at(5, i));
        ASSERT_EQ(sine.at(1, i), sine.at(5, i));
      }
      ops->rope_angles(f, nullptr, 0, d, nullptr, nullptr);
    }
}

// What the rotated value i of `dim` values x(i) is, and the size of its pair.
struct Rotated {
  double value, size;
};
template <class X>
Rotated rotate(X&& x, int64_t i, int64_t dim, RopeLayout layout, const Angles& angles, int64_t row) {
  const bool halves = layout == RopeLayout::halves;
  const int64_t pair = halves ? i % (dim / 2) : i / 2;
  const int64_t a = halves ? pair : 2 * pair, b = a + (halves ? dim / 2 : 1);
  const double c = angles.cosine.at(row, pair), s = angles.sine.at(row, pair);
  return {i == a ? x(a) * c - x(b) * s : x(b) * c + x(a) * s, std::hypot(x(a), x(b))};
}
// |a cos| + |b sin| is at most sqrt(2) of the pair's length (and a little, for cos and sin rounded to D): that much of
// what the values are off by and of the rounding of the products, then the sum is rounded.
double rotation_error(DType d, double of_values) { return 1.43 * (of_values + half_ulp(d)) + 1.03 * half_ulp(d); }

struct QkvCase {
  int64_t heads, kv_heads, head_dim;
  bool q_norm, k_norm, rotary;
  int64_t gap = 3;  // values between rows; 8 keeps rows of whole vectors aligned
};

void check_norm_rope_store(Conformance& t, DType d, const QkvCase& s) {
  SCOPED_TRACE(fmt::format("{} heads {} kv {} dim {} norms {} {} rotary {}", to_string(d), s.heads, s.kv_heads,
                           s.head_dim, s.q_norm, s.k_norm, s.rotary));
  // A prompt, a chunk that ends in another block, single rows, and drafts.
  TestBatch batch(*t.queue, {{0, 5}, {14, 4}, {31, 1}, {40, 3}, {0, 1}});
  const int64_t rows = batch.rows(), dim = s.head_dim, q_cols = s.heads * dim, kv_cols = s.kv_heads * dim;
  Rows qkv = t.rows(d, rows, q_cols + 2 * kv_cols, s.gap);
  qkv.randomize(2.0f);
  const Rows before = qkv;
  Rows q_weight = t.vector(dim, 0.5f, 1), k_weight = t.vector(dim, 0.5f, 1);
  Angles angles(t, d, rows, s.rotary ? dim / 2 : 0);
  PagedRows keys(*t.queue, d, batch.blocks(), batch.block_size(), s.kv_heads, dim), values = keys;
  QkvLayout layout{s.heads, s.kv_heads, dim, {}, {}, s.rotary};
  if (s.q_norm) layout.q_norm = {q_weight.tensor({dim}), 1e-5f};
  if (s.k_norm) layout.k_norm = {k_weight.tensor({dim}), 1e-5f};
  t.ops->norm_rope_store(batch.view(), layout, angles.view(), qkv.view(), keys.view(), values.view());

  // Value i of a head whose first column is `first`, and what it may be off by.
  const auto exact = [&](int64_t row, int64_t first, const RmsNorm& norm, const Rows& weight, int64_t i) {
    const auto raw = [&](int64_t c) { return before.at(row, first + c); };
    const double factor = norm ? norm_factor(dim, norm.eps, raw) : 1;
    const auto normed = [&](int64_t c) { return raw(c) * factor * (norm ? weight.at(0, c) : 1); };
    const double error = norm ? norm_error(d, dim) : 0;
    if (!s.rotary) return Rotated{normed(i), std::abs(normed(i)) * error};
    const Rotated rotated = rotate(normed, i, dim, RopeLayout::halves, angles, row);
    return Rotated{rotated.value, rotated.size * rotation_error(d, error)};
  };
  std::vector<bool> stored(static_cast<size_t>(keys.slots()));
  for (size_t q = 0; q < batch.sequences().size(); ++q)
    for (int64_t r = 0; r < batch.sequences()[q].rows; ++r) {
      const int64_t row = batch.first_row(q) + r, slot = batch.slot(q, batch.sequences()[q].context + r);
      stored[static_cast<size_t>(slot)] = true;
      for (int64_t c = 0; c < q_cols; ++c) {
        const Rotated e = exact(row, c / dim * dim, layout.q_norm, q_weight, c % dim);
        ASSERT_NEAR(qkv.at(row, c), e.value, e.size) << "q, row " << row << " column " << c;
      }
      for (int64_t h = 0; h < s.kv_heads; ++h)
        for (int64_t c = 0; c < dim; ++c) {
          const Rotated e = exact(row, q_cols + h * dim, layout.k_norm, k_weight, c);
          ASSERT_NEAR(keys.at(slot, h, c), e.value, e.size) << "k, row " << row << " head " << h << " column " << c;
          ASSERT_EQ(values.at(slot, h, c), before.at(row, q_cols + kv_cols + h * dim + c)) << "v, row " << row;
        }
    }
  EXPECT_TRUE(qkv.gaps_untouched());
  for (int64_t slot = 0; slot < keys.slots(); ++slot)
    if (!stored[static_cast<size_t>(slot)]) {
      ASSERT_TRUE(keys.slot_untouched(slot) && values.slot_untouched(slot)) << "slot " << slot;
    }

  // Each row alone: the same bits in q and in the pages.
  Rows alone = before;
  PagedRows alone_keys(*t.queue, d, batch.blocks(), batch.block_size(), s.kv_heads, dim), alone_values = alone_keys;
  for (size_t q = 0; q < batch.sequences().size(); ++q)
    for (int64_t r = 0; r < batch.sequences()[q].rows; ++r) {
      const int64_t row = batch.first_row(q) + r;
      TestBatch one = batch.part(q, r, 1);
      t.ops->norm_rope_store(one.view(), layout, angles.view(row), alone.view(row, 1), alone_keys.view(),
                             alone_values.view());
    }
  EXPECT_TRUE(alone_keys.same_bytes(keys) && alone_values.same_bytes(values));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < q_cols; ++c) ASSERT_EQ(alone.at(r, c), qkv.at(r, c)) << "row " << r << " alone";
  TestBatch none(*t.queue, {});
  t.ops->norm_rope_store(none.view(), layout, angles.view(), qkv.view(0, 0), keys.view(), values.view());
  EXPECT_TRUE(alone_keys.same_bytes(keys));
}

TEST_P(Conformance, NormRopeStore) {
  for (const DType d : kTypes)
    for (const QkvCase& s : {QkvCase{4, 2, 64, true, true, true},
                             {5, 5, 18, true, true, false},
                             {6, 1, 20, false, false, true},
                             {3, 3, 128, false, true, true},
                             {4, 2, 6, true, false, true},
                             {2, 1, 1, false, false, false},
                             {1, 1, 2, true, true, true},
                             {2, 2, widest_head(), true, true, true},
                             {7, 3, 64, true, true, true, 8},
                             {4, 1, 128, true, true, true, 8},
                             {5, 5, 128, true, false, false, 8},
                             {3, 3, 256, false, true, true, 8},
                             {3, 1, 128, false, false, false, 8},
                             {2, 1, 512, true, true, true, 8}})
      check_norm_rope_store(*this, d, s);
}

// e4m3 pages: the codes of what pages of D get, and nothing else changes.
void check_e4m3_store(Conformance& t, DType d, const QkvCase& s, float key_scale, float value_scale) {
  SCOPED_TRACE(fmt::format("{} heads {} kv {} dim {} scales {} {}", to_string(d), s.heads, s.kv_heads, s.head_dim,
                           key_scale, value_scale));
  TestBatch batch(*t.queue, {{0, 5}, {14, 4}, {31, 1}, {40, 3}, {0, 1}});
  const int64_t rows = batch.rows(), dim = s.head_dim, q_cols = s.heads * dim;
  Rows qkv = t.rows(d, rows, q_cols + 2 * s.kv_heads * dim, s.gap);
  qkv.randomize(2.0f);
  Rows coded = qkv, q_weight = t.vector(dim, 0.5f, 1), k_weight = t.vector(dim, 0.5f, 1);
  Angles angles(t, d, rows, s.rotary ? dim / 2 : 0);
  QkvLayout layout{s.heads, s.kv_heads, dim, {}, {}, s.rotary};
  if (s.q_norm) layout.q_norm = {q_weight.tensor({dim}), 1e-5f};
  if (s.k_norm) layout.k_norm = {k_weight.tensor({dim}), 1e-5f};
  PagedRows keys(*t.queue, d, batch.blocks(), batch.block_size(), s.kv_heads, dim), values = keys;
  const auto codes = [&](float scale) {
    return PagedRows(*t.queue, DType::e4m3, batch.blocks(), batch.block_size(), s.kv_heads, dim, scale);
  };
  PagedRows key_codes = codes(key_scale), value_codes = codes(value_scale);
  t.ops->norm_rope_store(batch.view(), layout, angles.view(), qkv.view(), keys.view(), values.view());
  t.ops->norm_rope_store(batch.view(), layout, angles.view(), coded.view(), key_codes.view(), value_codes.view());
  std::vector<bool> stored(static_cast<size_t>(keys.slots()));
  for (size_t q = 0; q < batch.sequences().size(); ++q)
    for (int64_t r = 0; r < batch.sequences()[q].rows; ++r) {
      const int64_t row = batch.first_row(q) + r, slot = batch.slot(q, batch.sequences()[q].context + r);
      stored[static_cast<size_t>(slot)] = true;
      for (int64_t c = 0; c < q_cols; ++c) ASSERT_EQ(coded.at(row, c), qkv.at(row, c)) << "q, row " << row;
      for (int64_t h = 0; h < s.kv_heads; ++h)
        for (int64_t c = 0; c < dim; ++c) {
          const auto code = [](double x, float scale) {
            return format::e4m3_to_float(format::float_to_e4m3(static_cast<float>(x) / scale));
          };
          ASSERT_EQ(key_codes.at(slot, h, c), code(keys.at(slot, h, c), key_scale)) << "k, row " << row;
          ASSERT_EQ(value_codes.at(slot, h, c), code(values.at(slot, h, c), value_scale)) << "v, row " << row;
        }
    }
  EXPECT_TRUE(coded.gaps_untouched());
  for (int64_t slot = 0; slot < keys.slots(); ++slot)
    if (!stored[static_cast<size_t>(slot)]) {
      ASSERT_TRUE(key_codes.slot_untouched(slot) && value_codes.slot_untouched(slot)) << "slot " << slot;
    }
}

TEST_P(Conformance, NormRopeStoreInE4m3) {
  for (const DType d : kTypes)
    for (const QkvCase& s : {QkvCase{4, 2, 64, true, true, true},
                             {5, 5, 18, true, true, false},
                             {6, 1, 20, false, false, true},
                             {2, 1, 1, false, false, false},
                             {2, 2, widest_head(), true, true, true},
                             {7, 3, 64, true, true, true, 8},
                             {4, 1, 128, true, true, true, 8},
                             {3, 3, 256, false, true, true, 8},
                             {3, 1, 128, false, false, false, 8}})
      for (const auto& [key_scale, value_scale] :
           {std::pair{1.0f, 1.0f}, {0.037f, 0.003f}, {700.0f, 1e-30f}})  // some saturate, some round to zero
        check_e4m3_store(*this, d, s, key_scale, value_scale);
}

void check_mla_norm_rope_store(Conformance& t, DType d, RopeLayout layout, const MlaShape& shape) {
  SCOPED_TRACE(fmt::format("{} heads {} nope {} rope {} latent {}", to_string(d), shape.heads, shape.nope, shape.rope,
                           shape.latent));
  TestBatch batch(*t.queue, {{0, 5}, {14, 4}, {31, 1}, {0, 1}});
  const int64_t rows = batch.rows(), width = shape.cached();
  Rows q = t.rows(d, rows, shape.heads * shape.query()), latent = t.rows(d, rows, width);
  q.randomize(), latent.randomize(2.0f);
  const Rows q_before = q, latent_before = latent;
  Rows weight = t.vector(shape.latent, 0.5f, 1);
  const RmsNorm norm{weight.tensor({shape.latent}), 1e-5f};
  Angles angles(t, d, rows, shape.rope / 2);
  PagedRows keys(*t.queue, d, batch.blocks(), batch.block_size(), 1, width), alone_keys = keys;
  t.ops->mla_norm_rope_store(batch.view(), shape, layout, angles.view(), norm, q.view(), latent.view(), keys.view());

  std::vector<bool> stored(static_cast<size_t>(keys.slots()));
  for (size_t s = 0; s < batch.sequences().size(); ++s)
    for (int64_t r = 0; r < batch.sequences()[s].rows; ++r) {
      const int64_t row = batch.first_row(s) + r, slot = batch.slot(s, batch.sequences()[s].context + r);
      stored[static_cast<size_t>(slot)] = true;
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t c = 0; c < shape.query(); ++c) {
          const int64_t first = h * shape.query();
          if (c < shape.nope) {
            ASSERT_EQ(q.at(row, first + c), q_before.at(row, first + c));
            continue;
          }
          const auto x = [&](int64_t i) { return q_before.at(row, first + shape.nope + i); };
          const Rotated e = rotate(x, c - shape.nope, shape.rope, layout, angles, row);
          ASSERT_NEAR(q.at(row, first + c), e.value, e.size * rotation_error(d, 0)) << "row " << row << " head " << h;
        }
      const double factor = norm_factor(shape.latent, norm.eps, [&](int64_t c) { return latent_before.at(row, c); });
      for (int64_t c = 0; c < width; ++c) {
        if (c < shape.latent) {
          const Interval exact = normed(d, shape.latent, latent_before.at(row, c), factor, weight.at(0, c));
          ASSERT_TRUE(exact.holds(keys.at(slot, 0, c))) << "row " << row << " column " << c;
          continue;
        }
        const auto x = [&](int64_t i) { return latent_before.at(row, shape.latent + i); };
        const Rotated e = rotate(x, c - shape.latent, shape.rope, layout, angles, row);
        ASSERT_NEAR(keys.at(slot, 0, c), e.value, e.size * rotation_error(d, 0)) << "row " << row;
      }
    }
  EXPECT_TRUE(q.gaps_untouched() && latent.gaps_untouched());
  for (int64_t slot = 0; slot < keys.slots(); ++slot)
    if (!stored[static_cast<size_t>(slot)]) {
      ASSERT_TRUE(keys.slot_untouched(slot)) << "slot " << slot;
    }

  Rows q_alone = q_before, latent_alone = latent_before;
  for (size_t s = 0; s < batch.sequences().size(); ++s)
    for (int64_t r = 0; r < batch.sequences()[s].rows; ++r) {
      const int64_t row = batch.first_row(s) + r;
      TestBatch one = batch.part(s, r, 1);
      t.ops->mla_norm_rope_store(one.view(), shape, layout, angles.view(row), norm, q_alone.view(row, 1),
                                 latent_alone.view(row, 1), alone_keys.view());
    }
  EXPECT_TRUE(q_alone.same_bytes(q) && alone_keys.same_bytes(keys));
  TestBatch none(*t.queue, {});
  t.ops->mla_norm_rope_store(none.view(), shape, layout, angles.view(), norm, q.view(0, 0), latent.view(0, 0),
                             keys.view());
  EXPECT_TRUE(alone_keys.same_bytes(keys));
}

TEST_P(Conformance, MlaNormRopeStore) {
  for (const DType d : kTypes)
    for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::interleaved})
      for (const MlaShape& shape :
           {MlaShape{6, 32, 16, 32, 64}, {3, 20, 12, 28, 36}, {2, 5, 2, 7, 1}, {1, 3, 64, 5, widest_head() - 64}})
        check_mla_norm_rope_store(*this, d, layout, shape);
}

// From positions to rotated pairs: angles and rotation together against complex multiplication.
TEST_P(Conformance, RopeRotatesPairs) {
  const MlaShape shape{3, 10, 10, 4, 8};
  const int64_t head = shape.query(), half = shape.rope / 2;
  RopeConfig config;
  config.dim = 2 * half;
  config.theta = 1000;
  const RopeFrequencies f = rope_frequencies(config);
  const std::vector<int32_t> positions{0, 1, 77, 4000};
  for (const DType d : kTypes)
    for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::interleaved}) {
      TestBatch batch(*queue, {{0, 4}});
      Rows x = rows(d, 4, head * shape.heads), latent = rows(d, 4, shape.cached()), weight = vector(shape.latent, 0, 1);
      x.randomize(), latent.randomize();
      const Rows before = x;
      Rows cosine = rows(DType::f32, 4, half, 0), sine = cosine;
      Values on_device = ints(positions);
      ops->rope_angles(f, on_device.ints(), 4, d, cosine.floats(), sine.floats());
      PagedRows keys(*queue, d, batch.blocks(), batch.block_size(), 1, shape.cached());
      ops->mla_norm_rope_store(batch.view(), shape, layout, {cosine.floats(), sine.floats(), half},
                               {weight.tensor({shape.latent})}, x.view(), latent.view(), keys.view());
      for (int64_t r = 0; r < 4; ++r)
        for (int64_t h = 0; h < shape.heads; ++h)
          for (int64_t i = 0; i < head; ++i) {
            const int64_t c = h * head + i, in = i - shape.nope;
            if (in < 0) {
              ASSERT_EQ(x.at(r, c), before.at(r, c));
              continue;
            }
            const bool halves = layout == RopeLayout::halves;
            const int64_t pair = halves ? in % half : in / 2;
            const int64_t a = h * head + shape.nope + (halves ? pair : 2 * pair), b = a + (halves ? half : 1);
            // float32 angles of up to 4000 radians: 4000 * 2^-24 each way.
            const double angle = positions[static_cast<size_t>(r)] *
                                 std::pow(1000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(2 * half));
            const std::complex<double> rotated =
                std::complex<double>(before.at(r, a), before.at(r, b)) * std::polar(1.0, angle);
            ASSERT_NEAR(x.at(r, c), c == a ? rotated.real() : rotated.imag(),
                        std::abs(rotated) * (4 * half_ulp(d) + 3 * angle * 0x1p-24 + 0x1p-22));
          }
      EXPECT_TRUE(x.gaps_untouched());
    }
}

}  // namespace
}  // namespace sluice::ops
