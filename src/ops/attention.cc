// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <algorithm>
#include <limits>

#include "base/math.h"
#include "ops/parallel.h"
#include "ops/row.h"
#include "ops/tile.h"

namespace sluice::ops {

namespace {
constexpr int64_t kRowTile = 16;   // query rows that share one reading of a tile of keys
constexpr int64_t kHeadTile = 16;  // at most as many heads as well

// One thread's memory and one piece of work: some rows x some query heads of one key head of one sequence.
struct Job {
  const Sequence& sequence;
  int64_t key_head, first_head, heads, first_row, rows;
};

struct Scratch {
  float *keys, *values, *q, *acc, *scores, *maximum, *sum;
};

struct Shape {
  int64_t key_stride, value_stride;  // multiples of 16
  int64_t queries;                   // of the largest job
  bool shared;                       // values are columns of the keys

  int64_t floats() const {
    return kTile * key_stride + (shared ? 0 : kTile * value_stride) + queries * (key_stride + value_stride + 2) + kTile;
  }
  Scratch split(float* p) const {
    Scratch s{};
    s.keys = p, p += kTile * key_stride;
    s.values = shared ? s.keys : p, p += shared ? 0 : kTile * value_stride;
    s.q = p, p += queries * key_stride;
    s.acc = p, p += queries * value_stride;
    s.scores = p, p += kTile;
    s.maximum = p, p += queries;
    s.sum = p;
    return s;
  }
};

void run(const Job& job, const Shape& shape, const Scratch& s, ConstMatrix q, const Pages& keys, const Pages& values,
         int64_t value_width, float scale, Matrix out) {
  const Sequence& sequence = job.sequence;
  const int64_t queries = job.rows * job.heads;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = sequence.first_row + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    float* dst = s.q + i * shape.key_stride;
    load(offset(q.row(row), q.dtype, head * keys.width), q.dtype, dst, keys.width);
    std::fill(dst + keys.width, dst + shape.key_stride, 0.0f);
  }
  std::fill_n(s.acc, queries * shape.value_stride, 0.0f);
  std::fill_n(s.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, queries, 0.0f);

  const int64_t end = sequence.context + job.first_row + job.rows;  // positions that the last row sees
  for (int64_t first = 0; first < end; first += kTile) {
    const int64_t count = std::min(kTile, end - first);
    read_pages(keys, sequence.blocks, job.key_head, first, count, s.keys, shape.key_stride);
    if (!shape.shared) read_pages(values, sequence.blocks, job.key_head, first, count, s.values, shape.value_stride);
    const int64_t stride = shape.shared ? shape.key_stride : shape.value_stride;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t seen = sequence.context + job.first_row + i / job.heads + 1 - first;
      if (seen <= 0) continue;
      const int64_t n = std::min(seen, kTile);
      dot_rows(s.q + i * shape.key_stride, s.keys, shape.key_stride, n, scale, s.scores);
      const float keep = softmax_tile(s.scores, n, s.maximum[i], s.sum[i]);
      mix_rows(s.scores, s.values, stride, n, shape.value_stride, keep, s.acc + i * shape.value_stride);
    }
  }
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t row = sequence.first_row + job.first_row + i / job.heads, head = job.first_head + i % job.heads;
    float* acc = s.acc + i * shape.value_stride;
    for (int64_t c = 0; c < value_width; ++c) acc[c] /= s.sum[i];
    store(acc, offset(out.row(row), out.dtype, head * value_width), out.dtype, value_width);
  }
}
}  // namespace

void attention(Context& ctx, Workspace& workspace, ConstMatrix q, const Pages& keys, const Pages& values,
               int64_t value_width, std::span<const Sequence> sequences, float scale, Matrix out) {
  const int64_t heads = q.cols / keys.width, group = heads / keys.heads;
  const bool shared = values.data == nullptr;
  // With few key heads the query heads of one are shared out between the threads; the result does not depend on it.
  const int64_t wanted = ceil_div<int64_t>(ctx.pool.size(), keys.heads);
  const int64_t per_job = std::min(kHeadTile, ceil_div(group, std::min(group, wanted)));
  const int64_t head_jobs = ceil_div(group, per_job) * keys.heads;

  int64_t jobs = 0, work = 0;
  for (const Sequence& s : sequences) {
    jobs += ceil_div(s.rows, kRowTile) * head_jobs;
    work += s.rows * (s.context + s.rows) * heads * keys.width;
  }
  const Shape shape{round_up<int64_t>(keys.width, 16), round_up<int64_t>(value_width, 16), kRowTile * per_job, shared};
  Workspace::Scope scope(workspace);
  const int64_t floats = round_up<int64_t>(shape.floats(), 16);
  float* memory = workspace.take<float>(floats * ctx.pool.size());

  parallel(ctx, jobs, work, [&](int64_t task, int worker) {
    // Late rows see more: they are taken first, so that no thread is left with the longest job at the end.
    int64_t t = task;
    size_t i = 0;
    while (t >= ceil_div(sequences[i].rows, kRowTile) * head_jobs)
      t -= ceil_div(sequences[i++].rows, kRowTile) * head_jobs;
    const Sequence& s = sequences[i];
    const int64_t row_job = ceil_div(s.rows, kRowTile) - 1 - t / head_jobs, head_job = t % head_jobs;
    const int64_t key_head = head_job % keys.heads, part = head_job / keys.heads;
    const Job job{s,
                  key_head,
                  key_head * group + part * per_job,
                  std::min(per_job, group - part * per_job),
                  row_job * kRowTile,
                  std::min(kRowTile, s.rows - row_job * kRowTile)};
    run(job, shape, shape.split(memory + worker * floats), q, keys, values, value_width, scale, out);
  });
}

}  // namespace sluice::ops
