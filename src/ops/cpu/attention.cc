// SPDX-License-Identifier: Apache-2.0
// docs/kernels/cpu_attention.md explains how it works.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/math.h"
#include "kernels/cpu/cpu_kernel.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"
#include "ops/cpu/tile.h"

namespace sluice::ops::cpu {

namespace {
using kernels::cpu::SoftmaxFn;
using kernels::cpu::TileOperands;
using kernels::cpu::TileProductArgs;
using kernels::cpu::TileProductFn;

// Queries (rows times heads) that share one reading of a tile of keys and values. With heads of 128 they and what
// belongs to them take 128 KiB, which stay in L2, and transposing a tile of keys costs 3 % of what is done with it.
constexpr int64_t kQueries = 128;
// By tile instructions the products take a fifth of the time, and transposing does not. There twice as many queries are
// quicker (10 %) if all stay in L2, of which processors with these instructions have 2 MiB; DeepSeek's 1.5 MiB do not.
constexpr int64_t kMoreQueriesBytes = 512 << 10;
constexpr int64_t kHeadTile = 16;  // at most as many heads
// Where there are many threads, jobs of more rows than these are split. What transposing a tile of keys costs grows to
// at most 24 % of what is done with it (one head: 16 queries where kQueries are 3 %).
constexpr int64_t kLeastJobRows = 16;

// Queries that tile instructions take together.
constexpr int64_t kBlockQueries = 16;
static_assert(kHeadTile <= kBlockQueries);

// Some rows x some query heads of one key head of one sequence.
struct Job {
  const int32_t* blocks;  // of the sequence
  int64_t context;        // position of its first new row
  int64_t begin;          // that row in the batch
  int64_t key_head, first_head, heads, first_row, rows;
};

// One thread's memory. Scores are queries times the transposed keys, so that a lane is one position and no sum runs
// across lanes. Keys and queries are words of four bytes: a float, or two bfloat16 values.
struct Scratch {
  float *keys, *transposed_keys, *values, *q, *acc, *scores, *maximum, *sum, *keep;
  uint32_t *paired_values, *parts;  // of a plan in parts
};

// What all jobs of a call have in common.
struct Plan {
  const Pages &keys, &values;  // values.data null: they are columns of the keys
  bool shared;
  int64_t value_width;
  float scale;                              // of the scores
  DType type;                               // of the rows of keys and values in the products
  int64_t key_stride, value_stride;         // elements, multiples of 32
  int64_t key_words, value_words, q_words;  // of one row
  bool pairs = false;                       // queries stay bfloat16
  // Both products by tile instructions, which multiply bfloat16 values: float32 queries and the probabilities are sums
  // of three of them.
  bool parts = false;
  int64_t q_parts = 1;
  TileProductFn score, mix;
  SoftmaxFn softmax_step = softmax_tile;

  Plan(kernels::cpu::Isa isa, DType q_type, const Pages& k, const Pages& v, int64_t width, float score_scale)
      : keys(k),
        values(v),
        shared(v.data == nullptr),
        value_width(width),
        scale(score_scale * k.scale),
        type(row_type(k)),
        key_stride(round_up<int64_t>(k.width, 32)),
        value_stride(round_up<int64_t>(width, 32)) {
    const int64_t per_word = type == DType::bf16 ? 2 : 1;
    key_words = key_stride / per_word;
    value_words = shared ? key_words : value_stride / per_word;
    if (type == DType::f32) {
      score = mix = tile_product(isa, TileOperands::f32);
    } else if (const TileProductFn product = tile_product(isa, TileOperands::bf16_parts); product != nullptr) {
      score = mix = product;
      softmax_step = kernels::cpu::softmax_parts(isa);
      parts = true;
      pairs = q_type == DType::bf16;
      q_parts = pairs ? 1 : kParts;
    } else {
      mix = tile_product(isa, TileOperands::bf16_rows);
      score = q_type == DType::bf16 ? tile_product(isa, TileOperands::bf16_pairs) : nullptr;
      pairs = score != nullptr;
      if (!pairs) score = tile_product(isa, TileOperands::bf16_columns);
    }
    q_words = pairs || parts ? key_words : key_stride;
  }

  // Rows of a job whose scores are there at the same time: as many as fill a tile register, or all.
  int64_t block_rows(const Job& job) const { return parts ? std::min(job.rows, kBlockQueries / job.heads) : job.rows; }
  float* scores_of(const Scratch& s, int64_t query) const { return parts ? s.scores : s.scores + query * kTile; }

  // The probabilities and factors of `queries` queries from `first` on, out of their scores.
  void softmax(const Job& job, const Scratch& s, int64_t first, int64_t queries, int64_t seen,
               int64_t part_stride) const {
    softmax_step({.scores = scores_of(s, first),
                  .queries = queries,
                  .per_row = job.heads,
                  .seen = seen,
                  .scale = scale,
                  .maximum = s.maximum + first,
                  .sum = s.sum + first,
                  .keep = s.keep + first,
                  .parts = parts ? s.parts + first * (kTile / 2) : nullptr,
                  .part_stride = part_stride});
  }

  int64_t floats_of_query() const {
    return q_parts * q_words + value_stride + 3 + (parts ? kParts * (kTile / 2) : kTile);
  }
  int64_t floats(int64_t queries) const {
    return kTile * (2 * key_words + (shared ? 0 : value_words)) + queries * floats_of_query() +
           (parts ? kBlockQueries * kTile + kTile / 2 * value_stride : 0);
  }
  // Of a job.
  int64_t most_queries() const {
    const int64_t bytes = 2 * kQueries * floats_of_query() * bytes_of(DType::f32);
    return parts && bytes <= kMoreQueriesBytes ? 2 * kQueries : kQueries;
  }

  Scratch split(float* p, int64_t queries) const {
    Scratch s{};
    s.keys = p, p += kTile * key_words;
    s.transposed_keys = p, p += kTile * key_words;
    s.values = p, p += shared ? 0 : kTile * value_words;
    s.q = p, p += queries * q_parts * q_words;
    s.acc = p, p += queries * value_stride;
    s.scores = p, p += (parts ? kBlockQueries : queries) * kTile;
    if (parts) {
      s.paired_values = reinterpret_cast<uint32_t*>(p), p += kTile / 2 * value_stride;
      s.parts = reinterpret_cast<uint32_t*>(p), p += kTile / 2 * kParts * queries;
    }
    s.maximum = p, p += queries;
    s.sum = p, p += queries;
    s.keep = p;
    return s;
  }
};

void load_query(const Plan& plan, const void* src, DType dtype, float* dst, int64_t part_stride) {
  if (plan.q_parts > 1)
    return split_row(static_cast<const float*>(src), plan.keys.width, plan.q_words, reinterpret_cast<uint32_t*>(dst),
                     part_stride);
  const int64_t width = plan.keys.width, bytes = bytes_of(plan.pairs ? DType::bf16 : DType::f32);
  if (plan.pairs)
    std::memcpy(dst, src, static_cast<size_t>(width * bytes));
  else
    load(src, dtype, dst, width);
  std::memset(reinterpret_cast<std::byte*>(dst) + width * bytes, 0,
              static_cast<size_t>((plan.key_stride - width) * bytes));
}

void run(const Job& job, const Plan& plan, const Scratch& s, ConstMatrix q, Matrix out) {
  const int64_t queries = job.rows * job.heads, q_part_stride = queries * plan.q_words;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = job.begin + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    load_query(plan, offset(q.row(row), q.dtype, head * plan.keys.width), q.dtype, s.q + i * plan.q_words,
               q_part_stride);
  }
  std::fill_n(s.acc, queries * plan.value_stride, 0.0f);
  std::fill_n(s.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, queries, 0.0f);

  const int64_t block_rows = plan.block_rows(job), part_stride = queries * (kTile / 2);
  int tile_rows = 0;
  const int64_t end = job.context + job.first_row + job.rows;  // positions that the last row sees
  for (int64_t first = 0; first < end; first += kTile) {
    const int64_t count = std::min(kTile, end - first), readable = round_up<int64_t>(count, 16);
    const void* keys = page_rows(plan.keys, job.blocks, job.key_head, first, count, readable, plan.key_stride, s.keys);
    // Positions from `count` on get scores as well, of whatever lies there. They are not used.
    for (int64_t i = 0; i < readable; i += 16)
      transpose_rows(static_cast<const float*>(keys) + i * plan.key_words, plan.key_words, plan.key_words,
                     s.transposed_keys + i);

    const auto seen_by = [&](int64_t r) { return job.context + job.first_row + r + 1 - first; };  // of this tile
    const int64_t blind = std::clamp<int64_t>(first - job.context - job.first_row, 0, job.rows);  // rows that see none
    // The values come while scores are computed, the next keys with the last product.
    const PageRun values_run = plan.shared ? PageRun{} : page_run(plan.values, job.blocks, job.key_head, first, count);
    const PageRun keys_run = page_run(plan.keys, job.blocks, job.key_head, first + kTile,
                                      std::clamp<int64_t>(end - first - kTile, 0, kTile));
    int64_t fetched = 0;
    for (int64_t r = blind; r < job.rows; r += block_rows) {
      const int64_t rows = std::min(block_rows, job.rows - r), from = r * job.heads;
      const int64_t fetch = values_run.bytes * (r + rows - blind) / (job.rows - blind);
      plan.score(TileProductArgs{.a = s.q + from * plan.q_words,
                                 .b = s.transposed_keys,
                                 .out = plan.scores_of(s, from),
                                 .a_stride = plan.q_words,
                                 .b_stride = kTile,
                                 .out_stride = kTile,
                                 .m = rows * job.heads,
                                 .n = plan.parts ? round_up<int64_t>(count, 32) : readable,
                                 .k = plan.key_stride,
                                 .next = static_cast<const std::byte*>(values_run.data) + fetched,
                                 .next_bytes = fetch - fetched,
                                 .parts = static_cast<int>(plan.q_parts),
                                 .part_stride = q_part_stride,
                                 .tile_rows = &tile_rows});
      fetched = fetch;
      plan.softmax(job, s, from, rows * job.heads, seen_by(r), part_stride);
    }
    const void* values = plan.shared ? keys
                                     : page_rows(plan.values, job.blocks, job.key_head, first, count, count,
                                                 plan.value_stride, s.values);
    if (plan.parts) pair_rows(values, plan.value_words, count, plan.value_stride / 2, s.paired_values);
    const auto mix = [&](int64_t r, int64_t rows, int64_t seen) {
      const int64_t from = r * job.heads;
      plan.mix(TileProductArgs{
          .a = plan.parts ? static_cast<const void*>(s.parts + from * (kTile / 2)) : plan.scores_of(s, from),
          .b = plan.parts ? s.paired_values : values,
          .out = s.acc + from * plan.value_stride,
          .keep = s.keep + from,
          .a_stride = plan.parts ? kTile / 2 : kTile,
          .b_stride = plan.parts ? plan.value_stride : plan.value_words,
          .out_stride = plan.value_stride,
          .m = rows * job.heads,
          .n = plan.value_stride,
          .k = plan.parts ? round_up<int64_t>(seen, 32) : seen,
          .next = keys_run.data,
          .next_bytes = keys_run.bytes,
          .parts = static_cast<int>(kParts),
          .part_stride = part_stride,
          .tile_rows = &tile_rows});
    };
    // Rows that see the whole tile together, each of the others with its own positions alone: what lies after them may
    // be infinite. In parts it is made zero, so the row that sees most comes first.
    const int64_t whole = std::clamp<int64_t>(first + kTile - job.context - job.first_row - 1, blind, job.rows);
    if (whole < job.rows) mix(whole, job.rows - whole, kTile);
    for (int64_t r = whole - 1, left = count; r >= blind; --r) {
      while (plan.parts && left > seen_by(r)) clear_paired_row(s.paired_values, plan.value_stride / 2, --left);
      mix(r, 1, seen_by(r));
    }
  }
  if (plan.parts) plan.mix({.tile_rows = &tile_rows});  // gives the tile registers back
  const float value_scale = plan.shared ? plan.keys.scale : plan.values.scale;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = job.begin + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    float* acc = s.acc + i * plan.value_stride;
    finish_row(acc, plan.value_stride, plan.type == DType::bf16, s.sum[i], value_scale);
    store(acc, offset(out.row(row), out.dtype, head * plan.value_width), out.dtype, plan.value_width);
  }
}
}  // namespace

void CpuOps::attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                       const AttentionOptions& options, Matrix out) {
  const int64_t heads = q.cols / keys.width, group = heads / keys.heads;
  const Plan plan(isa_, q.dtype, keys, values, value_width, options.scale);
  // With few key heads the query heads of one are shared out between the threads; the result does not depend on it.
  const int64_t wanted = ceil_div<int64_t>(ctx().pool.size(), keys.heads);
  const int64_t per_job = std::min(kHeadTile, ceil_div(group, std::min(group, wanted)));
  const int64_t head_jobs = ceil_div(group, per_job) * keys.heads;
  const auto rows_of = [&](int64_t s) { return int64_t{batch.row_begin[s + 1]} - batch.row_begin[s]; };
  int64_t rows_per_job = std::max<int64_t>(1, plan.most_queries() / per_job);
  const auto count_jobs = [&] {
    int64_t jobs = 0;
    for (int64_t s = 0; s < batch.sequences; ++s) jobs += ceil_div(rows_of(s), rows_per_job) * head_jobs;
    return jobs;
  };
  int64_t jobs = count_jobs(), work = 0, most_rows = 0;
  while (rows_per_job > kLeastJobRows && jobs < 4 * ctx().pool.size()) rows_per_job /= 2, jobs = count_jobs();
  for (int64_t s = 0; s < batch.sequences; ++s) {
    work += rows_of(s) * (batch.contexts[s] + rows_of(s)) * heads * keys.width;
    most_rows = std::max(most_rows, rows_of(s));
  }
  const int64_t queries = std::min(rows_per_job, most_rows) * per_job;
  Workspace::Scope scope(workspace());
  const int64_t floats = round_up<int64_t>(plan.floats(queries), 16);
  float* memory = workspace().take<float>(floats * ctx().pool.size());

  parallel(ctx(), jobs, work, [&](int64_t task, int worker) {
    // Late rows see more: they are taken first, so that no thread is left with the longest job at the end.
    int64_t t = task, s = 0;
    while (t >= ceil_div(rows_of(s), rows_per_job) * head_jobs) t -= ceil_div(rows_of(s++), rows_per_job) * head_jobs;
    const int64_t row_job = ceil_div(rows_of(s), rows_per_job) - 1 - t / head_jobs, head_job = t % head_jobs;
    const int64_t key_head = head_job % keys.heads, part = head_job / keys.heads;
    const Job job{batch.blocks + batch.block_begin[s],
                  batch.contexts[s],
                  batch.row_begin[s],
                  key_head,
                  key_head * group + part * per_job,
                  std::min(per_job, group - part * per_job),
                  row_job * rows_per_job,
                  std::min(rows_per_job, rows_of(s) - row_job * rows_per_job)};
    run(job, plan, plan.split(memory + worker * floats, queries), q, out);
  });
}

}  // namespace sluice::ops::cpu
