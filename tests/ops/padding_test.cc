// SPDX-License-Identifier: Apache-2.0
// Sequences without rows and rows without a sequence, as a step ends in that is padded to the size of a recorded one:
// what belongs to a sequence is the same bits, and nothing else is stored.
#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {
namespace {

const std::vector<SequenceRows> kSequences = {
    {30, 5, 2, {3}}, {300, 1, 0, {0}}, {0, 2, -1, {1}}, {40, 3, 4, {5, 6, 7}}, {700, 1, 8, {8}}};
constexpr int64_t kPlaces = 10, kPaddingRows = 7;

struct Batches {
  explicit Batches(Conformance& t) : plain(*t.queue, kSequences), padded(plain) { padded.pad(4, kPaddingRows); }
  int64_t rows() const { return plain.rows(); }
  int64_t padded_rows() const { return plain.rows() + kPaddingRows; }
  TestBatch plain, padded;
};

// The same rows, followed by others that hold NaN.
Rows with_padding(Conformance& t, const Rows& from) {
  Rows out = t.rows(from.dtype(), from.rows() + kPaddingRows, from.cols());
  for (int64_t r = 0; r < from.rows(); ++r) out.copy_row(r, from, r);
  return out;
}
void expect_same_rows(const Rows& padded, const Rows& plain, const char* what) {
  for (int64_t r = 0; r < plain.rows(); ++r) ASSERT_TRUE(padded.same_row(r, plain, r)) << what << ", row " << r;
  EXPECT_TRUE(padded.gaps_untouched()) << what;
}

void check_attention(Conformance& t, DType d, int64_t heads, int64_t key_heads, int64_t dim) {
  SCOPED_TRACE(fmt::format("{} {} heads of {}", to_string(d), heads, dim));
  Batches b(t);
  Rows qkv = t.rows(d, b.rows(), (heads + 2 * key_heads) * dim);
  qkv.randomize();
  Rows padded_qkv = with_padding(t, qkv);
  PagedRows keys(*t.queue, d, b.plain.blocks(), b.plain.block_size(), key_heads, dim), values = keys;
  for (int64_t slot = 0; slot < keys.slots(); ++slot)
    for (int64_t h = 0; h < key_heads; ++h)
      for (int64_t c = 0; c < dim; ++c) keys.set(slot, h, c, normal()), values.set(slot, h, c, normal());
  PagedRows padded_keys = keys, padded_values = values;
  Rows norm = t.vector(dim, 0.5f, 1), angles = t.rows(DType::f32, b.padded_rows(), dim / 2, 0);
  angles.randomize();
  const QkvLayout layout{heads, key_heads, dim, {norm.tensor({dim}), 1e-5f}, {norm.tensor({dim}), 1e-5f}, true};
  const auto run = [&](TestBatch& batch, Rows& x, PagedRows& k, PagedRows& v) {
    const RopeAngles turn{angles.floats(), angles.floats(), dim / 2};
    t.ops->norm_rope_store(batch.view(), layout, turn, x.view(), k.view(), v.view());
    Rows out = t.rows(d, x.rows(), heads * dim);
    const Matrix all = x.view();
    const Matrix q{all.data, all.dtype, all.rows, heads * dim, all.stride};
    t.ops->attention(batch.view(), q, k.view(), v.view(), dim, {.scale = 0.2f}, out.view());
    return out;
  };
  const Rows plain = run(b.plain, qkv, keys, values), padded = run(b.padded, padded_qkv, padded_keys, padded_values);
  EXPECT_TRUE(padded_keys.same_bytes(keys) && padded_values.same_bytes(values));
  expect_same_rows(padded, plain, "attention");
}

TEST_P(Conformance, PaddingOfAttention) {
  for (const DType d : kTypes) {
    check_attention(*this, d, 8, 2, 64);
    check_attention(*this, d, 8, 1, 128);
    check_attention(*this, d, 6, 3, 18);
  }
}

TEST_P(Conformance, PaddingOfLatentAttention) {
  const MlaShape shape{6, 32, 16, 32, 64};
  for (const DType d : kTypes) {
    Batches b(*this);
    const int64_t width = shape.cached();
    Rows q = rows(d, b.rows(), shape.heads * shape.query()), latent = rows(d, b.rows(), width);
    q.randomize(), latent.randomize();
    Rows padded_q = with_padding(*this, q), padded_latent = with_padding(*this, latent);
    PagedRows keys(*queue, d, b.plain.blocks(), b.plain.block_size(), 1, width);
    for (int64_t slot = 0; slot < keys.slots(); ++slot)
      for (int64_t c = 0; c < width; ++c) keys.set(slot, 0, c, normal());
    PagedRows padded_keys = keys;
    Rows weight = vector(shape.latent, 0.5f, 1), angles = rows(DType::f32, b.padded_rows(), shape.rope / 2, 0);
    Rows kv_b = rows(d, shape.heads * (shape.nope + shape.value), shape.latent, 0);
    angles.randomize(), kv_b.randomize();
    const auto run = [&](TestBatch& batch, Rows& queries, Rows& rows_of, PagedRows& pages) {
      const RopeAngles turn{angles.floats(), angles.floats(), shape.rope / 2};
      ops->mla_norm_rope_store(batch.view(), shape, RopeLayout::interleaved, turn,
                               {weight.tensor({shape.latent}), 1e-5f}, queries.view(), rows_of.view(), pages.view());
      Rows absorbed = rows(DType::f32, queries.rows(), shape.heads * width);
      ops->mla_absorb(shape, kv_b.tensor(), queries.view(), absorbed.view());
      Rows out = rows(DType::f32, queries.rows(), shape.heads * shape.latent);
      ops->attention(batch.view(), absorbed.view(), pages.view(), {}, shape.latent, {.scale = 0.2f}, out.view());
      return out;
    };
    const Rows plain = run(b.plain, q, latent, keys), padded = run(b.padded, padded_q, padded_latent, padded_keys);
    EXPECT_TRUE(padded_keys.same_bytes(keys));
    expect_same_rows(padded, plain, "latent attention");
  }
}

TEST_P(Conformance, PaddingOfRecurrence) {
  const MambaShape shape{8, 64, 2, 32, 4};
  for (const DType d : kTypes) {
    Batches b(*this);
    Rows xbc = rows(d, b.rows(), shape.channels()), dt = rows(d, b.rows(), shape.heads);
    xbc.randomize(), dt.randomize();
    Rows padded_xbc = with_padding(*this, xbc), padded_dt = with_padding(*this, dt);
    Rows conv_weight = rows(DType::f32, shape.taps, shape.channels(), 0).randomize(0.5f);
    Rows bias = vector(shape.channels(), 0.5f, 0), dt_bias = vector(shape.heads, 0.5f, 0);
    Rows a = vector(shape.heads, 0.1f, -1), skip = vector(shape.heads, 0.5f, 1);
    Rows conv = rows(DType::f32, kPlaces, (shape.taps - 1) * shape.channels(), 0).randomize();
    Rows ssm = rows(DType::f32, kPlaces, shape.state * shape.inner(), 0).randomize();
    Rows padded_conv = conv, padded_ssm = ssm;
    const auto run = [&](TestBatch& batch, Rows& x, Rows& steps, Rows& conv_states, Rows& ssm_states) {
      Rows mixed = rows(DType::f32, x.rows(), shape.channels()), y = rows(DType::f32, x.rows(), shape.inner());
      ops->causal_conv(batch.view(), shape, x.view(), conv_weight.tensor(), bias.tensor({shape.channels()}),
                       {conv_states.floats(), conv_states.cols()}, mixed.view());
      ops->state_scan(batch.view(), shape, mixed.view(), steps.view(),
                      {dt_bias.tensor({shape.heads}), a.tensor({shape.heads}), skip.tensor({shape.heads})},
                      {ssm_states.floats(), ssm_states.cols()}, y.view());
      return y;
    };
    const Rows plain = run(b.plain, xbc, dt, conv, ssm);
    expect_same_rows(run(b.padded, padded_xbc, padded_dt, padded_conv, padded_ssm), plain, "states");
    EXPECT_TRUE(padded_conv.same_bytes(conv) && padded_ssm.same_bytes(ssm));
  }
}

}  // namespace
}  // namespace sluice::ops
