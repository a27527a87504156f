// SPDX-License-Identifier: Apache-2.0
// How attention is shared out between threads. docs/kernels/cpu_attention.md explains it.
#include <algorithm>
#include <limits>

#include "base/math.h"
#include "ops/cpu/attention_job.h"
#include "ops/cpu/parallel.h"

namespace sluice::ops::cpu {

namespace {
// Where there are many threads, jobs of more rows than these are split. What transposing a tile of keys costs grows to
// at most 24 % of what is done with it (one head: 16 queries where kQueries are 3 %).
constexpr int64_t kLeastJobRows = 16;
// The sums of chunks that wait to be merged take at most this much memory; a batch that needs more is shared out by
// rows and heads alone. One row of DeepSeek's latent attention (128 heads, 512 columns) needs 257 bytes per position,
// a quarter of what it reads of keys, so this is enough for 250k positions.
constexpr int64_t kMostChunkBytes = 64 << 20;
// A finer cut has to be quicker by this factor, because its tasks cost what the estimate leaves out; and none is looked
// for where the work would take as long by less than this factor if it were shared out without a rest.
constexpr double kWorthCutting = 1.05;

// The rows of a batch by the query heads, cut into jobs; and jobs into tasks, each of one chunk of positions, where
// that gives the threads more equal work. A row's bits do not depend on it.
class WorkSplit {
 public:
  WorkSplit(const Batch& batch, int64_t heads, int64_t key_heads)
      : batch_(&batch), heads_(heads), key_heads_(key_heads) {}

  // The largest jobs that keep all threads busy for about the whole time: what is read and transposed for a job is read
  // and transposed once.
  void choose(const AttentionPlan& plan, int64_t threads);

  bool by_chunks() const { return by_chunks_; }
  int64_t jobs() const;
  int64_t tasks() const;         // jobs, or jobs by the chunks of their sequence
  int64_t most_queries() const;  // of a job
  int64_t longest() const;       // positions of a sequence
  int64_t chunk_sums() const;    // rows by heads by chunks

  struct Task {
    AttentionJob job;
    int64_t chunk;       // of its sequence
    int64_t first_sums;  // where the job's sums over the first chunk are among all chunk_sums()
    int64_t next_sums;   // from a chunk's to the next one's
  };
  // The i-th of tasks(); of jobs() with whole_jobs.
  Task task(int64_t i, bool whole_jobs) const;

 private:
  int64_t rows(int64_t s) const { return int64_t{batch_->row_begin[s + 1]} - batch_->row_begin[s]; }
  int64_t end(int64_t s) const { return batch_->contexts[s] + rows(s); }
  int64_t chunks(int64_t s) const { return ceil_div(end(s), kChunk); }
  int64_t group() const { return heads_ / key_heads_; }
  int64_t head_jobs() const { return ceil_div(group(), job_heads_) * key_heads_; }
  int64_t jobs(int64_t s) const { return ceil_div(rows(s), job_rows_) * head_jobs(); }
  double time(const AttentionPlan& plan, int64_t threads) const;

  const Batch* batch_;
  int64_t heads_, key_heads_;
  int64_t job_heads_ = 1, job_rows_ = 1;
  bool by_chunks_ = false;
};

int64_t WorkSplit::jobs() const {
  int64_t n = 0;
  for (int64_t s = 0; s < batch_->sequences; ++s) n += jobs(s);
  return n;
}

int64_t WorkSplit::tasks() const {
  if (!by_chunks_) return jobs();
  int64_t n = 0;
  for (int64_t s = 0; s < batch_->sequences; ++s) n += jobs(s) * chunks(s);
  return n;
}

int64_t WorkSplit::most_queries() const {
  int64_t most = 0;
  for (int64_t s = 0; s < batch_->sequences; ++s) most = std::max(most, rows(s));
  return std::min(most, job_rows_) * job_heads_;
}

int64_t WorkSplit::longest() const {
  int64_t most = 0;
  for (int64_t s = 0; s < batch_->sequences; ++s) most = std::max(most, end(s));
  return most;
}

int64_t WorkSplit::chunk_sums() const {
  int64_t n = 0;
  for (int64_t s = 0; s < batch_->sequences; ++s) n += rows(s) * chunks(s) * heads_;
  return n;
}

WorkSplit::Task WorkSplit::task(int64_t i, bool whole_jobs) const {
  const auto tasks = [&](int64_t s) { return jobs(s) * (by_chunks_ && !whole_jobs ? chunks(s) : 1); };
  int64_t s = 0, sums = 0;
  for (; i >= tasks(s); ++s) i -= tasks(s), sums += rows(s) * chunks(s) * heads_;
  // Late rows see more: they are taken first, so that no thread is left with the longest job at the end.
  const int64_t j = i % jobs(s), row_job = ceil_div(rows(s), job_rows_) - 1 - j / head_jobs();
  const int64_t key_head = j % head_jobs() % key_heads_, part = j % head_jobs() / key_heads_;
  const AttentionJob job{batch_->blocks + batch_->block_begin[s],
                         batch_->contexts[s],
                         batch_->row_begin[s],
                         key_head,
                         key_head * group() + part * job_heads_,
                         std::min(job_heads_, group() - part * job_heads_),
                         row_job * job_rows_,
                         std::min(job_rows_, rows(s) - row_job * job_rows_)};
  return {job, i / jobs(s), sums + job.first_row * heads_ + job.first_head * job.rows, rows(s) * heads_};
}

// Until the last thread is done, in tiles of one query. Threads take the tasks in order, so that is at most the number
// of rounds times the longest task, and at most an equal share and the longest task.
double WorkSplit::time(const AttentionPlan& plan, int64_t threads) const {
  int64_t total = 0, longest = 0;
  const auto cost = [&](int64_t positions, int64_t queries) {
    return ceil_div(positions, kTile) * (plan.tile_cost() + queries);
  };
  for (int64_t s = 0; s < batch_->sequences; ++s)
    for (int64_t r = 0; r < rows(s); r += job_rows_) {
      const int64_t n = std::min(job_rows_, rows(s) - r), seen = batch_->contexts[s] + r + n;
      total += cost(seen, n * job_heads_) * head_jobs();
      longest = std::max(longest, cost(by_chunks_ ? std::min(seen, kChunk) : seen, n * job_heads_));
    }
  const double share = static_cast<double>(total) / static_cast<double>(threads);
  const double last = static_cast<double>(longest) * (1 - 1 / static_cast<double>(threads));
  return std::min(static_cast<double>(ceil_div(tasks(), threads) * longest), share + last);
}

void WorkSplit::choose(const AttentionPlan& plan, int64_t threads) {
  const int64_t most = plan.most_queries();
  const bool chunks = longest() > kChunk &&
                      AttentionSums::floats(chunk_sums(), plan.sums_width()) * bytes_of(DType::f32) <= kMostChunkBytes;
  WorkSplit cut = *this;
  double least = std::numeric_limits<double>::infinity(), even = least;
  const auto keep_quicker = [&](bool by_chunks) {
    cut.by_chunks_ = by_chunks;
    const double time = cut.time(plan, threads);
    if (kWorthCutting * time >= least) return;
    least = time;
    *this = cut;
  };
  int64_t parts = ceil_div(group(), most);  // of the query heads of a key head
  do {
    cut.job_heads_ = ceil_div(group(), parts);
    cut.job_rows_ = most / cut.job_heads_;
    while (cut.job_rows_ > kLeastJobRows && cut.jobs() < 4 * threads) cut.job_rows_ /= 2;
    even = std::min(even, cut.time(plan, 1) / static_cast<double>(threads));
    keep_quicker(false);
    if (chunks) keep_quicker(true);
    parts *= 2;
  } while (cut.job_heads_ > 1 && least > kWorthCutting * even);
}

// What the threads of one call work on.
struct Call {
  Context& ctx;
  Workspace& workspace;
  const AttentionPlan& plan;
  const WorkSplit& cut;
  int64_t work;  // elementary steps
  ConstMatrix q;
  Matrix out;
};

// Each job by one thread from its first position to its last.
void attend_by_jobs(const Call& c) {
  const int64_t queries = c.cut.most_queries(), width = c.plan.sums_width();
  const int64_t sums_floats = round_up<int64_t>(AttentionSums::floats(queries, width), 16);
  const int64_t scratch_floats = round_up<int64_t>(c.plan.scratch_floats(queries), 16);
  const int64_t floats = scratch_floats + sums_floats * (c.cut.longest() > kChunk ? 2 : 1);
  float* memory = c.workspace.take<float>(floats * c.ctx.pool.size());
  parallel(c.ctx, c.cut.jobs(), c.work, [&](int64_t i, int worker) {
    const AttentionJob job = c.cut.task(i, true).job;
    float* scratch = memory + worker * floats;
    const AttentionSums sums(scratch + scratch_floats, queries, width);
    const AttentionSums chunk(scratch + floats - sums_floats, queries, width);
    c.plan.sum_up(job, c.q, 0, job.end(), scratch, sums, chunk);
    for (int64_t j = 0; j < job.queries(); ++j) c.plan.finish(job, j, sums, c.out);
  });
}

// Chunks of positions by all threads, then the merging of each query's chunks.
void attend_by_chunks(const Call& c) {
  const int64_t floats = round_up<int64_t>(c.plan.scratch_floats(c.cut.most_queries()), 16);
  const int64_t all = c.cut.chunk_sums(), width = c.plan.sums_width();
  float* memory = c.workspace.take<float>(floats * c.ctx.pool.size());
  const AttentionSums sums(c.workspace.take<float>(AttentionSums::floats(all, width)), all, width);
  parallel(c.ctx, c.cut.tasks(), c.work, [&](int64_t i, int worker) {
    const WorkSplit::Task t = c.cut.task(i, false);
    const AttentionSums chunk = sums.from(t.first_sums + t.chunk * t.next_sums);
    c.plan.sum_up(t.job, c.q, t.chunk * kChunk, (t.chunk + 1) * kChunk, memory + worker * floats, chunk, chunk);
  });
  const int64_t jobs = c.cut.jobs(), pieces = ceil_div<int64_t>(4 * c.ctx.pool.size(), jobs);
  parallel(c.ctx, jobs * pieces, all * width, [&](int64_t i, int) {
    const WorkSplit::Task t = c.cut.task(i / pieces, true);
    const int64_t queries = t.job.queries(), piece = i % pieces;
    const AttentionSums first = sums.from(t.first_sums);
    for (int64_t j = queries * piece / pieces; j < queries * (piece + 1) / pieces; ++j) {
      const int64_t chunks = ceil_div(t.job.seen_by(j / t.job.heads), kChunk);
      for (int64_t k = 1; k < chunks; ++k) first.from(j).merge(first.from(k * t.next_sums + j), 1);
      c.plan.finish(t.job, j, first, c.out);
    }
  });
}
}  // namespace

void CpuOps::attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                       const AttentionOptions& options, Matrix out) {
  const AttentionPlan plan(isa_, q.dtype, keys, values, value_width, options.scale);
  int64_t work = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t rows = batch.row_begin[s + 1] - batch.row_begin[s];
    work += rows * (batch.contexts[s] + rows) * q.cols;
  }
  WorkSplit cut(batch, q.cols / keys.width, keys.heads);
  cut.choose(plan, work < kWorthSharing ? 1 : ctx().pool.size());
  const Workspace::Scope scope(workspace());
  const Call call{ctx(), workspace(), plan, cut, work, q, out};
  if (cut.by_chunks())
    attend_by_chunks(call);
  else
    attend_by_jobs(call);
}

}  // namespace sluice::ops::cpu
