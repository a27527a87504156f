// SPDX-License-Identifier: Apache-2.0
// The host's attention over more than one chunk of positions, which threads may share: the same bits whoever computes
// what, at every level of instructions.
#include <array>

#include "ops/cpu/attention_job.h"
#include "tests/ops/attention_case.h"

namespace sluice::ops {
namespace {
using cpu::kChunk;

struct ChunksCase {
  DType queries, pages;
  AttentionCase shape;
};

// A level of instructions with as many threads. Scratch memory begins as NaN.
struct HostAttention {
  HostAttention(Queue& queue, kernels::cpu::Isa isa, int threads) : pool(threads), ops(ctx, isa) {
    ops.workspace().isolate([&queue](int64_t bytes) { return guarded(queue, bytes); });
  }
  // The rows of `batch` are those from `first` on in q and out.
  void run(const ChunksCase& c, AttentionData& data, TestBatch& batch, int64_t first, Rows& out) {
    ops.attention(batch.view(), data.q.view(first, batch.rows()), data.keys.view(),
                  c.shape.shared ? Pages{} : data.values.view(), c.shape.value_width, {kScale},
                  out.view(first, batch.rows()));
  }
  ThreadPool pool;
  Context ctx{pool};
  cpu::CpuOps ops;
};

// Each sequence in single rows, drafts and pieces of up to 67 rows has the bits of `whole`.
void check_pieces(Conformance& t, const ChunksCase& c, AttentionData& data, HostAttention& host, const Rows& whole) {
  Rows cut = t.rows(c.queries, data.batch.rows(), whole.cols());
  for (size_t s = 0; s < data.batch.sequences().size(); ++s)
    for (int64_t r = 0; r < data.batch.sequences()[s].rows;) {
      const uint64_t most = std::array<uint64_t, 3>{1, 6, 67}[random()() % 3];
      const int64_t n = std::min(data.batch.sequences()[s].rows - r, 1 + static_cast<int64_t>(random()() % most));
      const int64_t first = data.batch.first_row(s) + r;
      TestBatch piece = data.batch.part(s, r, n);
      host.run(c, data, piece, first, cut);
      for (int64_t i = first; i < first + n; ++i)
        ASSERT_TRUE(cut.same_row(i, whole, i))
            << "row " << i << " in " << n << " of sequence " << s << ", " << host.pool.size() << " threads";
      r += n;
    }
}

void check_chunks(Conformance& t, const ChunksCase& c) {
  AttentionData data(t, c.queries, c.pages, c.shape);
  for (const auto& isa : kernels::cpu::kIsas) {
    if (!kernels::cpu::supported(isa.value)) continue;
    SCOPED_TRACE(fmt::format("{}, q {}, pages {}, {} heads of {}", isa.name, to_string(c.queries), to_string(c.pages),
                             c.shape.heads, c.shape.key_width));
    Rows whole = t.rows(c.queries, data.batch.rows(), c.shape.heads * c.shape.value_width);
    HostAttention one(*t.queue, isa.value, 1);
    one.run(c, data, data.batch, 0, whole);
    for (size_t s = 0; s < data.batch.sequences().size(); ++s) {
      const int64_t rows = data.batch.sequences()[s].rows;
      for (int64_t r = rows - 1; r >= 0; r -= 1 + rows / 3) check_row(c.shape, data, s, r, whole);
    }
    EXPECT_TRUE(whole.gaps_untouched());
    for (const int threads : {1, 2, 3, 5, 16}) {
      HostAttention host(*t.queue, isa.value, threads);
      Rows again = t.rows(c.queries, data.batch.rows(), whole.cols());
      host.run(c, data, data.batch, 0, again);
      ASSERT_TRUE(again.same_bytes(whole)) << threads << " threads";
      ASSERT_NO_FATAL_FAILURE(check_pieces(t, c, data, host, whole));
    }
  }
}

TEST_P(Conformance, AttentionOverChunksOfPositions) {
  if (!ctx.device().id().is_host()) GTEST_SKIP() << "chunks are the host's";
  const int64_t k = kChunk;
  // Contexts that end before, at and after the end of a chunk; drafts and pieces of prompts that straddle it.
  for (const DType d : kTypes)
    for (const ChunksCase& c :
         {ChunksCase{d, d, {8, 1, 64, 64, 64, false, {{k - 2, 1}, {k - 1, 1}, {k, 1}, {3 * k + 16, 1}}}},
          {d, d, {8, 1, 32, 48, 16, false, {{k - 2, 4}, {3 * k - 3, 7}, {5, 1}, {2 * k, 1}}}},
          {d, d, {2, 2, 32, 32, 48, false, {{k - 33, 90}, {2 * k + 60, 5}}}},
          {d, DType::e4m3, {8, 1, 64, 64, 64, false, {{k - 2, 3}, {3 * k + 16, 1}}, 1, 0.1f, 0.2f}},
          {d, DType::e4m3, {1, 1, 20, 20, 32, false, {{k, 1}, {3 * k - 2, 4}}, 1, 0.5f, 2}}})
      check_chunks(*this, c);
}

// Values inside the keys, float32 queries between mla_absorb and mla_expand; more heads than a job takes.
TEST_P(Conformance, AttentionOverChunksOfSharedKeys) {
  if (!ctx.device().id().is_host()) GTEST_SKIP() << "chunks are the host's";
  const int64_t k = kChunk;
  for (const DType d : kTypes)
    for (const ChunksCase& c : {ChunksCase{d, d, {20, 1, 80, 64, 64, true, {{k - 2, 3}, {2 * k + 5, 1}}, 0.3f}},
                                {DType::f32, d, {37, 1, 96, 64, 64, true, {{k - 1, 2}, {k + 70, 1}}, 0.3f}},
                                {d, d, {260, 1, 16, 16, 64, false, {{k, 1}, {33, 2}}}}})
      check_chunks(*this, c);
}

// A prompt from its first row on, of queries whose scores reach hundreds: chunks whose sums do not count, and chunks
// after which nothing before counts.
TEST_P(Conformance, AttentionOverChunksOfAPrompt) {
  if (!ctx.device().id().is_host()) GTEST_SKIP() << "chunks are the host's";
  for (const DType d : kTypes) check_chunks(*this, {d, d, {2, 1, 16, 16, 64, false, {{0, kChunk + 70}}, 40}});
}

}  // namespace
}  // namespace sluice::ops
