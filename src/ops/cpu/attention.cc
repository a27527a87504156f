// SPDX-License-Identifier: Apache-2.0
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
using kernels::cpu::TileOperands;
using kernels::cpu::TileProductArgs;
using kernels::cpu::TileProductFn;

// Queries (rows times heads) that share one reading of a tile of keys and values. With heads of 128 they and what
// belongs to them take 128 KiB, which stay in L2, and transposing a tile of keys costs 3 % of what is done with it.
constexpr int64_t kQueries = 128;
constexpr int64_t kHeadTile = 16;  // at most as many heads
// Where there are many threads, jobs of more rows than these are split. What transposing a tile of keys costs grows to
// at most 24 % of what is done with it (one head: 16 queries where kQueries are 3 %).
constexpr int64_t kLeastJobRows = 16;

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
  TileProductFn score, mix;

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
    } else {
      mix = tile_product(isa, TileOperands::bf16_rows);
      score = q_type == DType::bf16 ? tile_product(isa, TileOperands::bf16_pairs) : nullptr;
      pairs = score != nullptr;
      if (!pairs) score = tile_product(isa, TileOperands::bf16_columns);
    }
    q_words = pairs ? key_words : key_stride;
  }

  int64_t floats(int64_t queries) const {
    return kTile * (2 * key_words + (shared ? 0 : value_words)) + queries * (q_words + value_stride + kTile + 3);
  }
  Scratch split(float* p, int64_t queries) const {
    Scratch s{};
    s.keys = p, p += kTile * key_words;
    s.transposed_keys = p, p += kTile * key_words;
    s.values = p, p += shared ? 0 : kTile * value_words;
    s.q = p, p += queries * q_words;
    s.acc = p, p += queries * value_stride;
    s.scores = p, p += queries * kTile;
    s.maximum = p, p += queries;
    s.sum = p, p += queries;
    s.keep = p;
    return s;
  }
};

void load_query(const Plan& plan, const void* src, DType dtype, float* dst) {
  const int64_t width = plan.keys.width, bytes = bytes_of(plan.pairs ? DType::bf16 : DType::f32);
  if (plan.pairs)
    std::memcpy(dst, src, static_cast<size_t>(width * bytes));
  else
    load(src, dtype, dst, width);
  std::memset(reinterpret_cast<std::byte*>(dst) + width * bytes, 0,
              static_cast<size_t>((plan.key_stride - width) * bytes));
}

void run(const Job& job, const Plan& plan, const Scratch& s, ConstMatrix q, Matrix out) {
  const int64_t queries = job.rows * job.heads;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = job.begin + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    load_query(plan, offset(q.row(row), q.dtype, head * plan.keys.width), q.dtype, s.q + i * plan.q_words);
  }
  std::fill_n(s.acc, queries * plan.value_stride, 0.0f);
  std::fill_n(s.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, queries, 0.0f);

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
    const int64_t begin = blind * job.heads;
    // The values come while scores are computed, the next keys with the last product.
    const PageRun values_run = plan.shared ? PageRun{} : page_run(plan.values, job.blocks, job.key_head, first, count);
    const PageRun keys_run = page_run(plan.keys, job.blocks, job.key_head, first + kTile,
                                      std::clamp<int64_t>(end - first - kTile, 0, kTile));
    plan.score(TileProductArgs{.a = s.q + begin * plan.q_words,
                               .b = s.transposed_keys,
                               .out = s.scores + begin * kTile,
                               .a_stride = plan.q_words,
                               .b_stride = kTile,
                               .out_stride = kTile,
                               .m = queries - begin,
                               .n = readable,
                               .k = plan.key_stride,
                               .next = values_run.data,
                               .next_bytes = values_run.bytes});
    softmax_tile({.scores = s.scores + begin * kTile,
                  .queries = queries - begin,
                  .per_row = job.heads,
                  .seen = seen_by(blind),
                  .scale = plan.scale,
                  .maximum = s.maximum + begin,
                  .sum = s.sum + begin,
                  .keep = s.keep + begin});
    const void* values = plan.shared ? keys
                                     : page_rows(plan.values, job.blocks, job.key_head, first, count, count,
                                                 plan.value_stride, s.values);
    // Rows that see the whole tile together, each of the others with its own positions alone: what lies after them may
    // be infinite.
    for (int64_t r = blind; r < job.rows;) {
      const bool whole = seen_by(r) >= kTile;
      const int64_t rows = whole ? job.rows - r : 1, from = r * job.heads;
      plan.mix(TileProductArgs{.a = s.scores + from * kTile,
                               .b = values,
                               .out = s.acc + from * plan.value_stride,
                               .keep = s.keep + from,
                               .a_stride = kTile,
                               .b_stride = plan.value_words,
                               .out_stride = plan.value_stride,
                               .m = rows * job.heads,
                               .n = plan.value_stride,
                               .k = whole ? kTile : seen_by(r),
                               .next = keys_run.data,
                               .next_bytes = keys_run.bytes});
      r += rows;
    }
  }
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
  int64_t rows_per_job = std::max<int64_t>(1, kQueries / per_job);
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
