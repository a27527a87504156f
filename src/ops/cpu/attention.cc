// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "base/math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"
#include "ops/cpu/tile.h"

namespace sluice::ops::cpu {

namespace {
using kernels::cpu::TileProductArgs;
using kernels::cpu::TileProductFn;

constexpr int64_t kRowTile = 16;   // query rows that share one reading of a tile of keys
constexpr int64_t kHeadTile = 16;  // at most as many heads as well

// One thread's memory and one piece of work: some rows x some query heads of one key head of one sequence.
struct Job {
  const int32_t* blocks;  // of the sequence
  int64_t context;        // position of its first new row
  int64_t begin;          // that row in the batch
  int64_t key_head, first_head, heads, first_row, rows;
};

// Rows of a tile are positions, columns are queries' dimensions. Scores are q times the transposed keys, so that a lane
// is one position and no sum runs across lanes.
struct Scratch {
  float *keys, *transposed_keys, *values, *q, *acc, *scores, *maximum, *sum, *keep;
};

struct Shape {
  int64_t key_stride, value_stride;  // multiples of 16
  int64_t queries;                   // of the largest job
  bool shared;                       // values are columns of the keys

  int64_t floats() const {
    return 2 * kTile * key_stride + (shared ? 0 : kTile * value_stride) +
           queries * (key_stride + value_stride + kTile + 3);
  }
  Scratch split(float* p) const {
    Scratch s{};
    s.keys = p, p += kTile * key_stride;
    s.transposed_keys = p, p += kTile * key_stride;
    s.values = shared ? s.keys : p, p += shared ? 0 : kTile * value_stride;
    s.q = p, p += queries * key_stride;
    s.acc = p, p += queries * value_stride;
    s.scores = p, p += queries * kTile;
    s.maximum = p, p += queries;
    s.sum = p, p += queries;
    s.keep = p;
    return s;
  }
};

void run(const Job& job, const Shape& shape, const Scratch& s, TileProductFn product, ConstMatrix q, const Pages& keys,
         const Pages& values, int64_t value_width, float scale, Matrix out) {
  const int64_t queries = job.rows * job.heads;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = job.begin + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    float* dst = s.q + i * shape.key_stride;
    load(offset(q.row(row), q.dtype, head * keys.width), q.dtype, dst, keys.width);
    std::fill(dst + keys.width, dst + shape.key_stride, 0.0f);
  }
  std::fill_n(s.acc, queries * shape.value_stride, 0.0f);
  std::fill_n(s.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, queries, 0.0f);

  const int64_t end = job.context + job.first_row + job.rows;  // positions that the last row sees
  for (int64_t first = 0; first < end; first += kTile) {
    const int64_t count = std::min(kTile, end - first);
    read_pages(keys, job.blocks, job.key_head, first, count, s.keys, shape.key_stride);
    if (!shape.shared) read_pages(values, job.blocks, job.key_head, first, count, s.values, shape.value_stride);
    // Scores of the positions after `count` are not used, but they are computed.
    std::fill(s.keys + count * shape.key_stride, s.keys + kTile * shape.key_stride, 0.0f);
    transpose_tile(s.keys, shape.key_stride, shape.key_stride, s.transposed_keys);

    const auto seen_by = [&](int64_t r) { return job.context + job.first_row + r + 1 - first; };  // of this tile
    const int64_t blind = std::clamp<int64_t>(first - job.context - job.first_row, 0, job.rows);  // rows that see none
    const int64_t begin = blind * job.heads;
    product(TileProductArgs{.a = s.q + begin * shape.key_stride,
                            .b = s.transposed_keys,
                            .out = s.scores + begin * kTile,
                            .a_stride = shape.key_stride,
                            .b_stride = kTile,
                            .out_stride = kTile,
                            .m = queries - begin,
                            .n = kTile,
                            .k = shape.key_stride});
    for (int64_t i = begin; i < queries; ++i)
      s.keep[i] = softmax_tile(s.scores + i * kTile, std::min(seen_by(i / job.heads), kTile), scale * keys.scale,
                               s.maximum[i], s.sum[i]);
    // Rows that see the whole tile together, each of the others with its own positions alone: what lies after them may
    // be infinite.
    for (int64_t r = blind; r < job.rows;) {
      const bool whole = seen_by(r) >= kTile;
      const int64_t rows = whole ? job.rows - r : 1, from = r * job.heads;
      product(TileProductArgs{.a = s.scores + from * kTile,
                              .b = s.values,
                              .out = s.acc + from * shape.value_stride,
                              .keep = s.keep + from,
                              .a_stride = kTile,
                              .b_stride = shape.shared ? shape.key_stride : shape.value_stride,
                              .out_stride = shape.value_stride,
                              .m = rows * job.heads,
                              .n = shape.value_stride,
                              .k = whole ? kTile : seen_by(r)});
      r += rows;
    }
  }
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = job.begin + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    float* acc = s.acc + i * shape.value_stride;
    const float value_scale = shape.shared ? keys.scale : values.scale;
    for (int64_t c = 0; c < value_width; ++c) acc[c] = acc[c] / s.sum[i] * value_scale;
    store(acc, offset(out.row(row), out.dtype, head * value_width), out.dtype, value_width);
  }
}
}  // namespace

void CpuOps::attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                       const AttentionOptions& options, Matrix out) {
  const int64_t heads = q.cols / keys.width, group = heads / keys.heads;
  const bool shared = values.data == nullptr;
  // With few key heads the query heads of one are shared out between the threads; the result does not depend on it.
  const int64_t wanted = ceil_div<int64_t>(ctx().pool.size(), keys.heads);
  const int64_t per_job = std::min(kHeadTile, ceil_div(group, std::min(group, wanted)));
  const int64_t head_jobs = ceil_div(group, per_job) * keys.heads;
  const auto rows_of = [&](int64_t s) { return int64_t{batch.row_begin[s + 1]} - batch.row_begin[s]; };

  int64_t jobs = 0, work = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    jobs += ceil_div(rows_of(s), kRowTile) * head_jobs;
    work += rows_of(s) * (batch.contexts[s] + rows_of(s)) * heads * keys.width;
  }
  const Shape shape{round_up<int64_t>(keys.width, 16), round_up<int64_t>(value_width, 16), kRowTile * per_job, shared};
  Workspace::Scope scope(workspace());
  const int64_t floats = round_up<int64_t>(shape.floats(), 16);
  float* memory = workspace().take<float>(floats * ctx().pool.size());

  parallel(ctx(), jobs, work, [&](int64_t task, int worker) {
    // Late rows see more: they are taken first, so that no thread is left with the longest job at the end.
    int64_t t = task, s = 0;
    while (t >= ceil_div(rows_of(s), kRowTile) * head_jobs) t -= ceil_div(rows_of(s++), kRowTile) * head_jobs;
    const int64_t row_job = ceil_div(rows_of(s), kRowTile) - 1 - t / head_jobs, head_job = t % head_jobs;
    const int64_t key_head = head_job % keys.heads, part = head_job / keys.heads;
    const Job job{batch.blocks + batch.block_begin[s],
                  batch.contexts[s],
                  batch.row_begin[s],
                  key_head,
                  key_head * group + part * per_job,
                  std::min(per_job, group - part * per_job),
                  row_job * kRowTile,
                  std::min(kRowTile, rows_of(s) - row_job * kRowTile)};
    run(job, shape, shape.split(memory + worker * floats), tile_product_, q, keys, values, value_width, options.scale,
        out);
  });
}

}  // namespace sluice::ops::cpu
