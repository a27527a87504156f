// SPDX-License-Identifier: Apache-2.0
// Paged attention and latent attention against plain double-precision softmax, on scrambled blocks.
#include "ops/cpu/cpu_ops.h"
#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {
namespace {

struct AttentionCase {
  int64_t heads, key_heads, key_width, value_width, block_size;
  bool shared;                                         // values are columns of the keys
  std::vector<std::pair<int64_t, int64_t>> sequences;  // context, rows
  float query_size = 1;                                // large ones make one key win
  float key_scale = 1, value_scale = 1;                // of e4m3 pages
};

// One call's inputs. Pages that belong to no position are NaN.
struct AttentionData {
  TestBatch batch;
  Rows q;
  PagedRows keys, values;
  AttentionData(Conformance& t, DType q_type, DType d, const AttentionCase& s, int64_t gap = 3)
      : batch(*t.queue, sequences_of(s), s.block_size),
        q(t.rows(q_type, batch.rows(), s.heads * s.key_width, gap)),
        keys(*t.queue, d, batch.blocks(), s.block_size, s.key_heads, s.key_width, s.key_scale),
        values(*t.queue, d, batch.blocks(), s.block_size, s.key_heads, s.value_width, s.value_scale) {
    q.randomize(s.query_size);
    for (size_t i = 0; i < batch.sequences().size(); ++i)
      for (int64_t p = 0; p < batch.sequences()[i].context + batch.sequences()[i].rows; ++p)
        for (int64_t h = 0; h < s.key_heads; ++h) {
          for (int64_t c = 0; c < s.key_width; ++c) keys.set(batch.slot(i, p), h, c, normal() / s.key_scale);
          for (int64_t c = 0; c < s.value_width; ++c) values.set(batch.slot(i, p), h, c, normal() / s.value_scale);
        }
  }
  static std::vector<SequenceRows> sequences_of(const AttentionCase& s) {
    std::vector<SequenceRows> out;
    for (const auto& [context, rows] : s.sequences) out.push_back({context, rows});
    return out;
  }
};

constexpr float kScale = 0.3f;

// rounded: probabilities may be rounded to bfloat16.
void check_row(const AttentionCase& s, const AttentionData& data, size_t sequence, int64_t r, const Rows& out,
               bool rounded = false) {
  const int64_t group = s.heads / s.key_heads, row = data.batch.first_row(sequence) + r;
  const int64_t seen = data.batch.sequences()[sequence].context + r + 1;
  const double value_scale = double{s.shared ? s.key_scale : s.value_scale};
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t kh = h / group;
    std::vector<double> p(static_cast<size_t>(seen));
    double largest = -INFINITY, reach = 0, total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      Sum dot;
      for (int64_t c = 0; c < s.key_width; ++c)
        dot.add(data.q.at(row, h * s.key_width + c) * double{s.key_scale} *
                data.keys.at(data.batch.slot(sequence, j), kh, c));
      p[static_cast<size_t>(j)] = dot.value * double{kScale};
      reach = std::max(reach, dot.size * double{kScale});
      largest = std::max(largest, p[static_cast<size_t>(j)]);
    }
    for (double& v : p) total += v = std::exp(v - largest);
    // A score is off by at most width + 8 half-ulps of its terms in any order of its sum, a probability by that much
    // relative, the sum of `seen` products by as many half-ulps of their sizes.
    const double relative =
        (2 * reach * (static_cast<double>(s.key_width) + 8) + static_cast<double>(seen) + 16) * 0x1p-24 +
        (rounded ? 2 * half_ulp(DType::bf16) : 0);  // probabilities, and partial results
    // A probability below 2^-126 may be zero: where all values but unlikely ones are zero, that is all there is.
    const double lost = static_cast<double>(seen) * 0x1p-110;
    for (int64_t c = 0; c < s.value_width; ++c) {
      Sum exact;
      for (int64_t j = 0; j < seen; ++j)
        exact.add(p[static_cast<size_t>(j)] / total * value_scale *
                  (s.shared ? data.keys : data.values).at(data.batch.slot(sequence, j), kh, c));
      ASSERT_NEAR(out.at(row, h * s.value_width + c), exact.value,
                  relative * exact.size + std::abs(exact.value) * half_ulp(out.dtype()) + lost)
          << "sequence " << sequence << " row " << r << " head " << h << " column " << c;
    }
  }
}

// Pages of D; q and out of `type`.
void check_attention(Conformance& t, DType type, DType d, const AttentionCase& s) {
  SCOPED_TRACE(fmt::format("q {}, pages {}, {} heads of {}, {} key heads, values of {}, blocks of {}", to_string(type),
                           to_string(d), s.heads, s.key_width, s.key_heads, s.value_width, s.block_size));
  AttentionData data(t, type, d, s);
  const auto run = [&](Ops& ops, TestBatch& batch, Matrix q, Matrix out) {
    ops.attention(batch.view(), q, data.keys.view(), s.shared ? Pages{} : data.values.view(), s.value_width, {kScale},
                  out);
  };
  Rows out = t.rows(type, data.batch.rows(), s.heads * s.value_width);
  run(*t.ops, data.batch, data.q.view(), out.view());
  for (size_t i = 0; i < data.batch.sequences().size(); ++i)
    for (int64_t r = 0; r < data.batch.sequences()[i].rows; ++r) check_row(s, data, i, r, out);
  EXPECT_TRUE(out.gaps_untouched());

  // Each row in a batch of its own, as decoding would compute it, and each sequence alone.
  Rows alone = t.rows(type, data.batch.rows(), s.heads * s.value_width), whole = alone;
  for (size_t i = 0; i < data.batch.sequences().size(); ++i) {
    const int64_t first = data.batch.first_row(i), rows = data.batch.sequences()[i].rows;
    TestBatch sequence = data.batch.part(i, 0, rows);
    run(*t.ops, sequence, data.q.view(first, rows), whole.view(first, rows));
    for (int64_t r = 0; r < rows; ++r) {
      TestBatch one = data.batch.part(i, r, 1);
      run(*t.ops, one, data.q.view(first + r, 1), alone.view(first + r, 1));
      ASSERT_TRUE(alone.same_row(first + r, out, first + r)) << "row " << r << " of sequence " << i << " alone";
    }
  }
  EXPECT_TRUE(whole.same_bytes(out));

  // However the host's threads share the work.
  for (const int threads : {1, 5}) {
    ThreadPool pool(threads);
    Context ctx{.pool = pool, .queue = *t.queue};
    Rows again = t.rows(type, data.batch.rows(), s.heads * s.value_width);
    run(*make_ops(ctx), data.batch, data.q.view(), again.view());
    ASSERT_TRUE(again.same_bytes(out)) << threads << " threads";
  }
  if (!t.ctx.device().id().is_host()) return;
  for (const auto& isa : kernels::cpu::kIsas) {
    if (!kernels::cpu::supported(isa.value)) continue;
    SCOPED_TRACE(isa.name);
    cpu::CpuOps ops(t.ctx, isa.value);
    Rows level = t.rows(type, data.batch.rows(), s.heads * s.value_width), single = level;
    run(ops, data.batch, data.q.view(), level.view());
    for (size_t i = 0; i < data.batch.sequences().size(); ++i)
      for (int64_t r = 0; r < data.batch.sequences()[i].rows; r += 1 + r / 4) {
        check_row(s, data, i, r, level);
        const int64_t row = data.batch.first_row(i) + r;
        TestBatch one = data.batch.part(i, r, 1);
        run(ops, one, data.q.view(row, 1), single.view(row, 1));
        ASSERT_TRUE(single.same_row(row, level, row)) << "row " << r << " of sequence " << i << " alone";
      }
  }
}

TEST_P(Conformance, AttentionOfGroupedQueries) {
  for (const DType d : kTypes)
    for (const AttentionCase& s :
         {AttentionCase{4, 2, 64, 64, 16, false, {{0, 1}, {0, 70}, {63, 1}, {64, 1}, {200, 3}}},
          {6, 2, 18, 18, 64, false, {{5, 40}, {130, 2}}},
          {6, 3, 20, 20, 48, false, {{47, 5}, {0, 48}}},  // blocks that straddle tiles
          {8, 8, 128, 128, 16, false, {{300, 1}}},
          {40, 1, 16, 16, 64, false, {{33, 17}}},  // more heads than one job takes
          {1, 1, 1, 1, 1, false, {{0, 3}, {9, 1}}},
          {2, 1, 24, 10, 16, false, {{0, 17}, {15, 1}, {16, 1}}},      // keys and values of two widths
          {2, 2, 16, 16, 16, false, {{1100, 1}, {1020, 9}}},           // longer than a piece of 1024
          {2, 1, 16, 16, 32, false, {{150, 2}, {0, 66}, {3, 1}}, 40},  // scores of some hundreds
          {7, 1, 96, 96, 128, false, {{100, 150}, {0, 1}, {127, 2}}},  // blocks longer than a tile, several jobs
          {3, 3, 33, 50, 40, false, {{0, 140}, {61, 70}}},
          {2, 2, 64, 100, 24, false, {{90, 200}}}})
      check_attention(*this, d, d, s);
}

// Keys and values in codes of half the size: what is attended to is exactly what the codes say.
TEST_P(Conformance, AttentionOverE4m3Pages) {
  for (const DType d : kTypes)
    for (const AttentionCase& s : {
             AttentionCase{8, 2, 128, 128, 64, false, {{0, 1}, {0, 70}, {63, 1}, {64, 1}, {300, 2}}},
             {8, 1, 128, 128, 16, false, {{200, 1}, {5, 3}, {62, 5}}, 1, 0.02f, 0.3f},
             {4, 2, 64, 64, 16, false, {{0, 1}, {0, 70}, {63, 1}, {200, 3}}, 1, 3.7f, 0.01f},
             {6, 2, 18, 18, 64, false, {{5, 40}, {130, 2}}},
             {6, 3, 20, 20, 48, false, {{47, 5}, {0, 48}}, 1, 0.5f, 2},
             {2, 1, 24, 10, 16, false, {{0, 17}, {15, 1}, {16, 1}}},
             {2, 2, 128, 128, 32, false, {{1100, 1}, {1020, 9}}, 20},
         })
      check_attention(*this, d, DType::e4m3, s);
}

TEST_P(Conformance, AttentionOverE4m3PagesThatIsNotRowInvariant) {
  for (const DType d : kTypes)
    for (const AttentionCase& s :
         {AttentionCase{8, 2, 128, 128, 64, false, {{0, 1}, {1000, 1}, {130, 2}}, 1, 0.1f, 0.2f},
          {8, 2, 128, 128, 64, false, {{40, 1}, {0, 200}, {130, 128}, {5, 3}}},
          {4, 2, 64, 64, 16, false, {{200, 1}}}}) {
      AttentionData data(*this, d, DType::e4m3, s, 8);
      Rows out = rows(d, data.batch.rows(), s.heads * s.value_width, 16);
      ops->attention(data.batch.view(), data.q.view(), data.keys.view(), data.values.view(), s.value_width,
                     {kScale, false}, out.view());
      for (size_t i = 0; i < s.sequences.size(); ++i)
        for (int64_t r = 0; r < s.sequences[i].second; r += 1 + r / 8) check_row(s, data, i, r, out, d == DType::bf16);
      EXPECT_TRUE(out.gaps_untouched());
    }
}

TEST_P(Conformance, AttentionOfTokensThatAreNotRowInvariant) {
  for (const DType d : kTypes)
    for (const AttentionCase& s : {AttentionCase{8, 2, 128, 128, 64, false, {{0, 1}, {1000, 1}, {130, 2}}},
                                   {4, 2, 64, 64, 16, false, {{200, 1}}}}) {
      AttentionData data(*this, d, d, s);
      Rows out = rows(d, data.batch.rows(), s.heads * s.value_width);
      ops->attention(data.batch.view(), data.q.view(), data.keys.view(), data.values.view(), s.value_width,
                     {kScale, false}, out.view());
      for (size_t i = 0; i < s.sequences.size(); ++i)
        for (int64_t r = 0; r < s.sequences[i].second; ++r) check_row(s, data, i, r, out);
      EXPECT_TRUE(out.gaps_untouched());
    }
}

// What may be computed by another kernel where bits need not be the same: prompts beside new tokens, in aligned rows.
TEST_P(Conformance, AttentionOfPromptsThatAreNotRowInvariant) {
  const AttentionCase s{8, 2, 128, 128, 64, false, {{40, 1}, {0, 200}, {130, 128}, {64, 127}, {5, 3}}};
  for (const DType d : kTypes) {
    AttentionData data(*this, d, d, s, 8);
    Rows out = rows(d, data.batch.rows(), s.heads * s.value_width, 16);
    for (const size_t only : {size_t{0}, size_t{1}}) {  // all sequences, then the first prompt alone
      TestBatch batch = only == 0 ? data.batch : data.batch.part(only, 0, s.sequences[only].second);
      const int64_t first = only == 0 ? 0 : data.batch.first_row(only), count = batch.rows();
      ops->attention(batch.view(), data.q.view(first, count), data.keys.view(), data.values.view(), s.value_width,
                     {kScale, false}, out.view(first, count));
      for (size_t i = 0; i < s.sequences.size(); ++i)
        for (int64_t r = 0; r < s.sequences[i].second; r += 1 + r / 8)
          if (only == 0 || i == only) check_row(s, data, i, r, out, d == DType::bf16);
      EXPECT_TRUE(out.gaps_untouched());
    }
  }
}

TEST_P(Conformance, AttentionWithValuesInsideTheKeys) {
  for (const DType d : kTypes)
    for (const AttentionCase& s : {AttentionCase{6, 1, 80, 64, 64, true, {{0, 20}, {100, 1}}},
                                   {3, 1, 48, 36, 16, true, {{7, 66}}},
                                   {33, 1, 576, 512, 64, true, {{70, 2}}}}) {
      check_attention(*this, d, d, s);
      if (d != DType::f32) check_attention(*this, DType::f32, d, s);  // between mla_absorb and mla_expand
    }
}

// A host's rows at every level of instructions: of a whole prompt, of its chunks however it is cut, and of single
// tokens beside another sequence. Nothing of what comes after a row changes it, even if it is infinite.
TEST_P(Conformance, AttentionOfChunksHasTheBitsOfAPrompt) {
  if (!ctx.device().id().is_host()) GTEST_SKIP() << "levels of instructions are the host's";
  struct Case {
    DType queries, pages;
    AttentionCase shape;
  };
  for (const Case& c : {Case{DType::bf16, DType::bf16, {8, 1, 128, 128, 64, false, {{30, 300}, {3, 2}}}},
                        {DType::bf16, DType::bf16, {14, 2, 48, 80, 16, false, {{0, 150}, {77, 1}}}},
                        {DType::bf16, DType::e4m3, {5, 1, 64, 64, 32, false, {{63, 140}, {5, 3}}, 1, 0.1f, 0.2f}},
                        {DType::f32, DType::bf16, {16, 1, 576, 512, 64, true, {{17, 60}, {64, 1}}, 0.3f}}}) {
    const AttentionCase& s = c.shape;
    AttentionData data(*this, c.queries, c.pages, s);
    const auto [context, count] = s.sequences[0];
    const int64_t infinite = count / 2;  // this row's position and all before it stay finite
    for (const auto& isa : kernels::cpu::kIsas) {
      if (!kernels::cpu::supported(isa.value)) continue;
      SCOPED_TRACE(fmt::format("{}, keys of {}", isa.name, s.key_width));
      cpu::CpuOps level(ctx, isa.value);
      Rows whole = rows(c.queries, data.batch.rows(), s.heads * s.value_width), cut = whole;
      const auto run = [&](TestBatch& batch, int64_t first, Rows& out) {
        level.attention(batch.view(), data.q.view(first, batch.rows()), data.keys.view(),
                        s.shared ? Pages{} : data.values.view(), s.value_width, {kScale},
                        out.view(first, batch.rows()));
      };
      run(data.batch, 0, whole);
      for (int64_t first = 0; first < count;) {
        const int64_t n =
            std::min<int64_t>(count - first, random()() % 3 == 0 ? 1 : 1 + static_cast<int64_t>(random()() % 70));
        TestBatch chunk = data.batch.part(0, first, n);
        run(chunk, first, cut);
        for (int64_t i = first; i < first + n; ++i)
          ASSERT_TRUE(cut.same_row(i, whole, i)) << "row " << i << " of " << n;
        first += n;
      }
      if (c.pages == DType::e4m3) continue;  // has no infinity
      PagedRows& later = s.shared ? data.keys : data.values;
      const int64_t slot = data.batch.slot(0, context + infinite + 1);
      std::vector<float> before;
      for (int64_t i = 0; i < s.value_width; ++i) {
        before.push_back(static_cast<float>(later.at(slot, 0, i)));
        later.set(slot, 0, i, i % 2 == 0 ? INFINITY : NAN);
      }
      run(data.batch, 0, cut);
      for (int64_t i = 0; i <= infinite; ++i) ASSERT_TRUE(cut.same_row(i, whole, i)) << "row " << i;
      EXPECT_FALSE(std::isfinite(cut.at(infinite + 1, 1)));
      for (int64_t i = 0; i < s.value_width; ++i) later.set(slot, 0, i, before[static_cast<size_t>(i)]);
    }
  }
}

TEST_P(Conformance, AttentionOfNoRows) {
  for (const DType d : kTypes) {
    AttentionData data(*this, d, d, {4, 2, 16, 16, 16, false, {{3, 2}}});
    Rows out = rows(d, 2, 64);
    TestBatch none(*queue, {});
    ops->attention(none.view(), data.q.view(0, 0), data.keys.view(), data.values.view(), 16, {kScale}, out.view(0, 0));
    EXPECT_TRUE(out.row_untouched(0) && out.row_untouched(1) && out.gaps_untouched());
  }
}

// Latent attention in the type that the device prefers, in aligned rows: one row, drafts, a chunk of a prompt, long
// contexts.
TEST_P(Conformance, AttentionOfAbsorbedQueries) {
  for (const int64_t heads : {1, 16, 128}) {
    const DType type = ops->absorbed_type({heads, 128, 64, 128, 512}, DType::bf16);
    const AttentionCase s{
        heads, 1, 576, 512, 64, true, {{0, 1}, {63, 1}, {64, 2}, {heads == 1 ? 1500 : 100, 1}, {66, 5}}, 0.3f};
    for (const bool row_invariant : {true, false}) {
      SCOPED_TRACE(fmt::format("{} heads, {}", heads, row_invariant));
      AttentionData data(*this, type, DType::bf16, s, 16);
      Rows out = rows(type, data.batch.rows(), heads * 512, 8), alone = out;
      const auto run = [&](TestBatch& batch, int64_t first, Rows& to) {
        ops->attention(batch.view(), data.q.view(first, batch.rows()), data.keys.view(), {}, 512,
                       {kScale, row_invariant}, to.view(first, batch.rows()));
      };
      run(data.batch, 0, out);
      for (size_t i = 0; i < s.sequences.size(); ++i)
        for (int64_t r = 0; r < s.sequences[i].second; r += 4) {
          check_row(s, data, i, r, out, type == DType::bf16);
          TestBatch one = data.batch.part(i, r, 1);
          run(one, data.batch.first_row(i) + r, alone);
          if (row_invariant)
            ASSERT_TRUE(alone.same_row(data.batch.first_row(i) + r, out, data.batch.first_row(i) + r));
          else
            check_row(s, data, i, r, alone, type == DType::bf16);
        }
      EXPECT_TRUE(out.gaps_untouched() && alone.gaps_untouched());
    }
  }
}

const MlaShape kMlaShapes[] = {
    {6, 32, 16, 32, 64}, {3, 20, 12, 28, 36}, {2, 5, 2, 7, 1}, {1, 70, 4, 1, 1030}, {2, 128, 64, 128, 512}};

TEST_P(Conformance, MlaAbsorbAndExpandAreTheTwoHalvesOfKvB) {
  constexpr int64_t kRows = 5;
  for (const DType weight_type : kTypes)
    for (const DType d : kTypes)
      for (const MlaShape& shape : kMlaShapes) {
        Rows kv_b = rows(weight_type, shape.heads * (shape.nope + shape.value), shape.latent, 0);
        Rows q = rows(d, kRows, shape.heads * shape.query());
        const DType type = ops->absorbed_type(shape, d);
        Rows absorbed = rows(type, kRows, shape.heads * shape.cached());
        Rows mixed = rows(type, kRows, shape.heads * shape.latent, 1);
        Rows out = rows(d, kRows, shape.heads * shape.value);
        kv_b.randomize(), q.randomize(), mixed.randomize();
        ops->mla_absorb(shape, kv_b.tensor(), q.view(), absorbed.view());
        ops->mla_expand(shape, kv_b.tensor(), mixed.view(), out.view());
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t h = 0; h < shape.heads; ++h) {
            const int64_t first = h * (shape.nope + shape.value);
            for (int64_t c = 0; c < shape.latent; ++c) {
              Sum exact;
              for (int64_t i = 0; i < shape.nope; ++i)
                exact.add(q.at(r, h * shape.query() + i) * kv_b.at(first + i, c));
              ASSERT_NEAR(
                  absorbed.at(r, h * shape.cached() + c), exact.value,
                  exact.size * static_cast<double>(shape.nope) * 0x1p-24 + std::abs(exact.value) * half_ulp(type));
            }
            for (int64_t i = 0; i < shape.rope; ++i)
              ASSERT_EQ(absorbed.at(r, h * shape.cached() + shape.latent + i),
                        q.at(r, h * shape.query() + shape.nope + i));
            for (int64_t i = 0; i < shape.value; ++i) {
              Sum exact;
              for (int64_t c = 0; c < shape.latent; ++c)
                exact.add(mixed.at(r, h * shape.latent + c) * kv_b.at(first + shape.nope + i, c));
              ASSERT_NEAR(out.at(r, h * shape.value + i), exact.value,
                          exact.size * (static_cast<double>(shape.latent) / 16 + 8) * 0x1p-24 +
                              std::abs(exact.value) * half_ulp(d));
            }
          }
        EXPECT_TRUE(absorbed.gaps_untouched() && out.gaps_untouched());
        Rows absorbed_alone = rows(type, kRows, shape.heads * shape.cached());
        Rows out_alone = rows(d, kRows, shape.heads * shape.value);
        for (int64_t r = 0; r < kRows; ++r) {
          ops->mla_absorb(shape, kv_b.tensor(), q.view(r, 1), absorbed_alone.view(r, 1));
          ops->mla_expand(shape, kv_b.tensor(), mixed.view(r, 1), out_alone.view(r, 1));
        }
        EXPECT_TRUE(absorbed_alone.same_bytes(absorbed) && out_alone.same_bytes(out));
        ops->mla_absorb(shape, kv_b.tensor(), q.view(0, 0), absorbed.view(0, 0));
        ops->mla_expand(shape, kv_b.tensor(), mixed.view(0, 0), out.view(0, 0));
      }
}

// Whole latent attention of one head of one sequence, from the keys and values that kv_b makes of its latent rows.
class LatentHead {
 public:
  LatentHead(const MlaShape& shape, const Rows& kv_b, int64_t head, const PagedRows& pages, const TestBatch& batch,
             size_t sequence)
      : s_(shape), kv_b_(kv_b), first_(head * (shape.nope + shape.value)), length_(length_of(batch, sequence)) {
    for (int64_t p = 0; p < length_; ++p) {
      for (int64_t c = 0; c < s_.cached(); ++c) latent_.push_back(pages.at(batch.slot(sequence, p), 0, c));
      const double* row = latent_.data() + p * s_.cached();
      for (int64_t i = 0; i < s_.nope + s_.value; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < s_.latent; ++c) sum += kv_b.at(first_ + i, c) * row[c];
        expanded_.push_back(sum);
      }
    }
  }

  // The last `rows` rows of the sequence are new. q: of the head of new row r. check(i, exact, error) for its values.
  template <class Check>
  void row(const std::vector<double>& q, int64_t seen, float scale, DType d, Check&& check) const {
    const double unit = d == DType::bf16 ? half_ulp(d) : 0;
    std::vector<double> p, off;
    double largest = -INFINITY, total = 0;
    std::vector<double> absorbed(static_cast<size_t>(s_.latent));
    for (int64_t c = 0; c < s_.latent; ++c)
      for (int64_t i = 0; i < s_.nope; ++i)
        absorbed[static_cast<size_t>(c)] += q[static_cast<size_t>(i)] * kv_b_.at(first_ + i, c);
    for (int64_t j = 0; j < seen; ++j) {
      Sum dot;
      double keys = 0, latents = 0, size = 0;
      const double *key = expanded_.data() + j * (s_.nope + s_.value), *latent = latent_.data() + j * s_.cached();
      for (int64_t i = 0; i < s_.query(); ++i) {
        const double term = q[static_cast<size_t>(i)] * (i < s_.nope ? key[i] : latent[s_.latent + i - s_.nope]);
        dot.add(term);
        keys += term * term;
      }
      for (int64_t c = 0; c < s_.latent; ++c) {
        const double term = absorbed[static_cast<size_t>(c)] * latent[c];
        latents += term * term;
        size += std::abs(term);
      }
      p.push_back(dot.value * double{scale});
      // Keys or absorbed queries are rounded: by Hoeffding's inequality within 7 roots of the sum of squares but for
      // one score in 2e10. Sums in float32: of the sizes of their terms.
      off.push_back((unit * 7 * std::sqrt(std::max(keys, latents)) +
                     (dot.size + size) * (static_cast<double>(s_.latent + s_.query())) * 0x1p-24) *
                    double{scale});
      largest = std::max(largest, p.back());
    }
    for (double& v : p) total += v = std::exp(v - largest);
    std::vector<double> mixed(static_cast<size_t>(s_.latent)), sizes = mixed;
    for (int64_t j = 0; j < seen; ++j)
      for (int64_t c = 0; c < s_.latent; ++c) {
        const double term = p[static_cast<size_t>(j)] / total * latent_[static_cast<size_t>(j * s_.cached() + c)];
        mixed[static_cast<size_t>(c)] += term;
        sizes[static_cast<size_t>(c)] += std::abs(term);
      }
    for (int64_t i = 0; i < s_.value; ++i) {
      double exact = 0, size = 0, squares = 0, shifted = 0, halves = 0;
      const auto value = [&](int64_t j) {
        return expanded_[static_cast<size_t>(j * (s_.nope + s_.value) + s_.nope + i)];
      };
      for (int64_t j = 0; j < seen; ++j) exact += p[static_cast<size_t>(j)] / total * value(j);
      for (int64_t j = 0; j < seen; ++j) {
        const double weight = p[static_cast<size_t>(j)] / total;
        squares += weight * weight * value(j) * value(j);
        shifted += weight * std::expm1(off[static_cast<size_t>(j)]) * std::abs(value(j) - exact);
      }
      for (int64_t c = 0; c < s_.latent; ++c) {
        const double weight = kv_b_.at(first_ + s_.nope + i, c), term = mixed[static_cast<size_t>(c)] * weight;
        halves += term * term;
        size += sizes[static_cast<size_t>(c)] * std::abs(weight);
      }
      // Probabilities, values or the latent results, and these once more where positions are cut.
      const double rounding = unit * 7 * (2 * std::sqrt(squares) + 2 * std::sqrt(halves));
      check(i, exact,
            2 * shifted + rounding + size * static_cast<double>(2 * s_.latent + seen) * 0x1p-24 +
                std::abs(exact) * half_ulp(d));
    }
  }

 private:
  static int64_t length_of(const TestBatch& batch, size_t sequence) {
    return batch.sequences()[sequence].context + batch.sequences()[sequence].rows;
  }
  MlaShape s_;
  const Rows& kv_b_;
  int64_t first_, length_;
  std::vector<double> latent_, expanded_;
};

// Prompts that are computed in another form where bits need not be the same, cold and after a cached prefix, beside
// new tokens and short chunks.
TEST_P(Conformance, MlaAttentionOfPromptsAndTokens) {
  constexpr float kMlaScale = 0.07f;
  const MlaShape shape{16, 128, 64, 128, 512};
  for (const DType d : kTypes)
    for (const std::vector<SequenceRows>& sequences :
         {std::vector<SequenceRows>{{40, 1}, {0, 300}, {130, 257}, {5, 3}, {200, 256}, {64, 1}}, {{0, 401}}}) {
      Rows kv_b = rows(d, shape.heads * (shape.nope + shape.value), shape.latent, 0);
      kv_b.randomize(0.044f);  // keys and values of about one
      TestBatch batch(*queue, sequences, 64);
      Rows q = rows(d, batch.rows(), shape.heads * shape.query(), 8);
      q.randomize(3);
      PagedRows pages(*queue, d, batch.blocks(), 64, 1, shape.cached());
      for (size_t s = 0; s < sequences.size(); ++s)
        for (int64_t p = 0; p < sequences[s].context + sequences[s].rows; ++p)
          for (int64_t c = 0; c < shape.cached(); ++c) pages.set(batch.slot(s, p), 0, c, normal());
      for (const bool row_invariant : {true, false}) {
        Rows out = rows(d, batch.rows(), shape.heads * shape.value, 8);
        ops->mla_attention(batch.view(), shape, kv_b.tensor(), q.view(), pages.view(), {kMlaScale, row_invariant},
                           out.view());
        EXPECT_TRUE(out.gaps_untouched());
        for (size_t s = 0; s < sequences.size(); ++s) {
          const auto head = static_cast<int64_t>(random()() % static_cast<uint32_t>(shape.heads));
          const LatentHead exact(shape, kv_b, head, pages, batch, s);
          for (const int64_t r : {int64_t{0}, sequences[s].rows / 2, sequences[s].rows - 1}) {
            const int64_t row = batch.first_row(s) + r;
            std::vector<double> query;
            for (int64_t i = 0; i < shape.query(); ++i) query.push_back(q.at(row, head * shape.query() + i));
            exact.row(query, sequences[s].context + r + 1, kMlaScale, d, [&](int64_t i, double value, double error) {
              ASSERT_NEAR(out.at(row, head * shape.value + i), value, error)
                  << "sequence " << s << " row " << r << " head " << head << " column " << i;
            });
          }
        }
        for (int64_t r = 0; r < batch.rows(); ++r)
          for (int64_t c = 0; c < shape.heads * shape.value; ++c) ASSERT_TRUE(std::isfinite(out.at(r, c)));
      }
    }
}

}  // namespace
}  // namespace sluice::ops
