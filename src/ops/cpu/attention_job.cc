// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_job.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "ops/cpu/row.h"

namespace sluice::ops::cpu {

namespace {
using kernels::cpu::TileOperands;
using kernels::cpu::TileProductArgs;
using kernels::cpu::TileProductFn;

// Queries (rows times heads) that share one reading of a tile of keys and values. With heads of 128 they and what
// belongs to them take 128 KiB, which stay in L2, and transposing a tile of keys costs 3 % of what is done with it.
constexpr int64_t kQueries = 128;
// By tile instructions the products take a fifth of the time, and transposing does not. There twice as many queries are
// quicker (10 %) if all stay in L2, of which processors with these instructions have 2 MiB; DeepSeek's 1.5 MiB do not.
constexpr int64_t kMoreQueriesBytes = 512 << 10;
constexpr int64_t kBlockQueries = 16;  // that tile instructions take together
}  // namespace

int64_t AttentionJob::blind(int64_t first) const { return std::clamp<int64_t>(first - context - first_row, 0, rows); }

AttentionPlan::AttentionPlan(kernels::cpu::Isa isa, DType q_type, const Pages& keys, const Pages& values,
                             int64_t value_width, float scale)
    : keys_(keys),
      values_(values),
      shared_(values.data == nullptr),
      value_width_(value_width),
      scale_(scale * keys.scale),
      type_(row_type(keys)),
      key_stride_(round_up<int64_t>(keys.width, 32)),
      value_stride_(round_up<int64_t>(value_width, 32)) {
  const int64_t per_word = type_ == DType::bf16 ? 2 : 1;
  key_words_ = key_stride_ / per_word;
  value_words_ = shared_ ? key_words_ : value_stride_ / per_word;
  if (type_ == DType::f32) {
    score_ = mix_ = tile_product(isa, TileOperands::f32);
  } else if (const TileProductFn product = tile_product(isa, TileOperands::bf16_parts); product != nullptr) {
    score_ = mix_ = product;
    softmax_ = kernels::cpu::softmax_parts(isa);
    parts_ = true;
    pairs_ = q_type == DType::bf16;
    q_parts_ = pairs_ ? 1 : kParts;
  } else {
    mix_ = tile_product(isa, TileOperands::bf16_rows);
    score_ = q_type == DType::bf16 ? tile_product(isa, TileOperands::bf16_pairs) : nullptr;
    pairs_ = score_ != nullptr;
    if (!pairs_) score_ = tile_product(isa, TileOperands::bf16_columns);
  }
  q_words_ = pairs_ || parts_ ? key_words_ : key_stride_;
}

int64_t AttentionPlan::floats_of_query() const {
  return q_parts_ * q_words_ + 1 + (parts_ ? kParts * (kTile / 2) : kTile);
}

int64_t AttentionPlan::scratch_floats(int64_t queries) const {
  return kTile * (2 * key_words_ + (shared_ ? 0 : value_words_)) + queries * floats_of_query() +
         (parts_ ? kBlockQueries * kTile + kTile / 2 * value_stride_ : 0);
}

int64_t AttentionPlan::most_queries() const {
  const int64_t bytes =
      (2 * kQueries * floats_of_query() + AttentionSums::floats(2 * kQueries, value_stride_)) * bytes_of(DType::f32);
  return parts_ && bytes <= kMoreQueriesBytes ? 2 * kQueries : kQueries;
}

AttentionPlan::Scratch AttentionPlan::divide(float* p, int64_t queries) const {
  Scratch s{};
  s.keys = p, p += kTile * key_words_;
  s.transposed_keys = p, p += kTile * key_words_;
  s.values = p, p += shared_ ? 0 : kTile * value_words_;
  s.q = p, p += queries * q_parts_ * q_words_;
  s.scores = p, p += (parts_ ? kBlockQueries : queries) * kTile;
  if (parts_) {
    s.paired_values = reinterpret_cast<uint32_t*>(p), p += kTile / 2 * value_stride_;
    s.parts = reinterpret_cast<uint32_t*>(p), p += kTile / 2 * kParts * queries;
  }
  s.keep = p;
  return s;
}

void AttentionPlan::load_query(const void* src, DType dtype, float* dst, int64_t part_stride) const {
  if (q_parts_ > 1)
    return split_row(static_cast<const float*>(src), keys_.width, q_words_, reinterpret_cast<uint32_t*>(dst),
                     part_stride);
  const int64_t width = keys_.width, bytes = bytes_of(pairs_ ? DType::bf16 : DType::f32);
  if (pairs_)
    std::memcpy(dst, src, static_cast<size_t>(width * bytes));
  else
    load(src, dtype, dst, width);
  std::memset(reinterpret_cast<std::byte*>(dst) + width * bytes, 0, static_cast<size_t>((key_stride_ - width) * bytes));
}

void AttentionPlan::load_queries(const AttentionJob& job, ConstMatrix q, const Scratch& s) const {
  const int64_t queries = job.queries();
  for (int64_t i = 0; i < queries; ++i)
    load_query(offset(q.row(job.row(i)), q.dtype, job.head(i) * keys_.width), q.dtype, s.q + i * q_words_,
               queries * q_words_);
}

int64_t AttentionPlan::block_queries(const AttentionJob& job, int64_t from) const {
  const int64_t left = job.queries() - from;
  if (!parts_) return left;
  if (job.heads > kBlockQueries) return std::min(kBlockQueries, job.heads - from % job.heads);
  return std::min(kBlockQueries / job.heads * job.heads, left);
}

void AttentionPlan::score_tile(const AttentionJob& job, const Tile& tile, Scratch& s, const AttentionSums& sums) const {
  const int64_t queries = job.queries(), begin = tile.blind * job.heads;
  const int64_t readable = round_up<int64_t>(tile.count, 16);
  // Positions from `count` on get scores as well, of whatever lies there. They are not used.
  for (int64_t i = 0; i < readable; i += 16)
    transpose_rows(static_cast<const float*>(tile.keys) + i * key_words_, key_words_, key_words_,
                   s.transposed_keys + i);
  // The values come while scores are computed.
  const PageRun values = shared_ ? PageRun{} : page_run(values_, job.blocks, job.key_head, tile.first, tile.count);
  int64_t fetched = 0;
  for (int64_t from = begin; from < queries;) {
    const int64_t count = block_queries(job, from), fetch = values.bytes * (from + count - begin) / (queries - begin);
    score_(TileProductArgs{.a = s.q + from * q_words_,
                           .b = s.transposed_keys,
                           .out = scores_of(s, from),
                           .a_stride = q_words_,
                           .b_stride = kTile,
                           .out_stride = kTile,
                           .m = count,
                           .n = parts_ ? round_up<int64_t>(tile.count, 32) : readable,
                           .k = key_stride_,
                           .next = static_cast<const std::byte*>(values.data) + fetched,
                           .next_bytes = fetch - fetched,
                           .parts = static_cast<int>(q_parts_),
                           .part_stride = queries * q_words_,
                           .tile_rows = &s.tile_rows});
    softmax_({.scores = scores_of(s, from),
              .queries = count,
              .per_row = job.heads,
              .seen = job.seen_by(from / job.heads) - tile.first,
              .scale = scale_,
              .maximum = sums.maximum + from,
              .sum = sums.sum + from,
              .keep = s.keep + from,
              .parts = parts_ ? s.parts + from * (kTile / 2) : nullptr,
              .part_stride = queries * (kTile / 2)});
    fetched = fetch;
    from += count;
  }
}

void AttentionPlan::add_values(const AttentionJob& job, const Tile& tile, Scratch& s, const AttentionSums& sums) const {
  const void* values = shared_ ? tile.keys
                               : page_rows(values_, job.blocks, job.key_head, tile.first, tile.count, tile.count,
                                           value_stride_, s.values);
  if (parts_) pair_rows(values, value_words_, tile.count, value_stride_ / 2, s.paired_values);
  const auto add = [&](int64_t r, int64_t rows, int64_t seen) {
    const int64_t from = r * job.heads;
    mix_(TileProductArgs{.a = parts_ ? static_cast<const void*>(s.parts + from * (kTile / 2)) : scores_of(s, from),
                         .b = parts_ ? s.paired_values : values,
                         .out = sums.values + from * value_stride_,
                         .keep = tile.first % kChunk == 0 ? nullptr : s.keep + from,
                         .a_stride = parts_ ? kTile / 2 : kTile,
                         .b_stride = parts_ ? value_stride_ : value_words_,
                         .out_stride = value_stride_,
                         .m = rows * job.heads,
                         .n = value_stride_,
                         .k = parts_ ? round_up<int64_t>(seen, 32) : seen,
                         .next = tile.next_keys.data,
                         .next_bytes = tile.next_keys.bytes,
                         .parts = static_cast<int>(kParts),
                         .part_stride = job.queries() * (kTile / 2),
                         .tile_rows = &s.tile_rows});
  };
  // Rows that see the whole tile together, each of the others with its own positions alone: what lies after them may
  // be infinite. In parts it is made zero, so the row that sees most comes first.
  const int64_t whole = std::max(job.blind(tile.first + kTile - 1), tile.blind);
  if (whole < job.rows) add(whole, job.rows - whole, kTile);
  for (int64_t r = whole - 1, left = tile.count; r >= tile.blind; --r) {
    const int64_t seen = job.seen_by(r) - tile.first;
    while (parts_ && left > seen) clear_paired_row(s.paired_values, value_stride_ / 2, --left);
    add(r, 1, seen);
  }
}

void AttentionPlan::sum_up_chunk(const AttentionJob& job, int64_t first, int64_t last, int64_t prefetch_last,
                                 Scratch& s, const AttentionSums& sums) const {
  const int64_t unseen = job.blind(first) * job.heads;
  sums.from(unseen).clear(job.queries() - unseen);
  for (; first < last; first += kTile) {
    const int64_t count = std::min(kTile, last - first);
    const void* keys =
        page_rows(keys_, job.blocks, job.key_head, first, count, round_up<int64_t>(count, 16), key_stride_, s.keys);
    const Tile tile{first, count, job.blind(first), keys,
                    page_run(keys_, job.blocks, job.key_head, first + kTile,
                             std::clamp<int64_t>(prefetch_last - first - kTile, 0, kTile))};
    score_tile(job, tile, s, sums);
    add_values(job, tile, s, sums);
  }
}

void AttentionPlan::sum_up(const AttentionJob& job, ConstMatrix q, int64_t first, int64_t last, float* scratch,
                           const AttentionSums& sums, const AttentionSums& chunk) const {
  Scratch s = divide(scratch, job.queries());
  load_queries(job, q, s);
  last = std::min(last, job.end());
  for (int64_t at = first; at < last; at += kChunk) {
    sum_up_chunk(job, at, std::min(at + kChunk, last), last, s, at == first ? sums : chunk);
    if (at == first) continue;
    const int64_t unseen = job.blind(at) * job.heads;
    sums.from(unseen).merge(chunk.from(unseen), job.queries() - unseen);
  }
  if (parts_) mix_({.tile_rows = &s.tile_rows});  // gives the tile registers back
}

void AttentionPlan::finish(const AttentionJob& job, int64_t i, const AttentionSums& sums, Matrix out) const {
  float* values = sums.values + i * value_stride_;
  finish_row(values, value_stride_, type_ == DType::bf16, sums.sum[i], shared_ ? keys_.scale : values_.scale);
  store(values, offset(out.row(job.row(i)), out.dtype, job.head(i) * value_width_), out.dtype, value_width_);
}

}  // namespace sluice::ops::cpu
