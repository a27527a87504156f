// SPDX-License-Identifier: Apache-2.0
// Paged attention against plain double-precision softmax.
#include "ops/cpu/cpu_ops.h"
#include "tests/ops/attention_case.h"

namespace sluice::ops {
namespace {

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
          {40, 1, 16, 16, 64, false, {{33, 17}}},  // more heads than tile instructions take together
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

}  // namespace
}  // namespace sluice::ops
