// SPDX-License-Identifier: Apache-2.0
// Random attention problems on the GPU, run in every way that the kernels offer, and their definition in double.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/math.h"
#include "format/e4m3.h"
#include "kernels/sm90/attention/prefill.h"
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {

using sm90::AttentionArgs;
using sm90::AttentionShape;

struct Sequences {
  std::vector<std::pair<int, int>> each;  // context, rows
  int rows() const {
    int n = 0;
    for (const auto& s : each) n += s.second;
    return n;
  }
  int longest_rows() const {
    int n = 0;
    for (const auto& s : each) n = std::max(n, s.second);
    return n;
  }
  int longest_context() const {
    int n = 0;
    for (const auto& s : each) n = std::max(n, s.first + s.second);
    return n;
  }
};

// How one call is computed.
struct Way {
  int multiprocessors = 132;
  int prefill_rows = 0;  // sequences with at least as many new rows go to prefill.h; 0: none
  bool lists = false;    // PrefillPlan::lists
  bool row_invariant = true;
  int slack = 1;             // what the bound of the positions is times those of the longest sequence
  int64_t token_blocks = 0;  // 0: the plan's
  int token_tiles = 0;       // 0: the plan's
};

// Random queries and pages on the GPU with copies on the host; blocks in scrambled order, unused positions NaN.
class Problem {
 public:
  Problem(const Gpu& gpu, AttentionShape shape, Sequences sequences, int block_size, int gap, float query_size = 1,
          bool e4m3 = false)
      : gpu_(gpu), shape_(shape), sequences_(std::move(sequences)), block_size_(block_size), e4m3_(e4m3) {
    stride_ = shape.heads * shape.key_width + gap;
    q_.resize(static_cast<size_t>(sequences_.rows()) * stride_);
    for (bf16_t& v : q_) v = float_to_bf16(normal(query_size));
    int blocks = 0;
    for (const auto& [context, rows] : sequences_.each) blocks += ceil_div(context + rows, block_size);
    std::vector<int32_t> deck(static_cast<size_t>(blocks));
    std::iota(deck.begin(), deck.end(), 0);
    std::shuffle(deck.begin(), deck.end(), random());
    keys_.assign(static_cast<size_t>(blocks) * shape.key_heads * block_size * shape.key_width, kNaN);
    values_ = keys_;
    row_begin_ = block_begin_ = {0};
    blocks_ = deck;
    for (size_t s = 0; s < sequences_.each.size(); ++s) {
      const auto& [context, rows] = sequences_.each[s];
      row_begin_.push_back(row_begin_.back() + rows);
      block_begin_.push_back(block_begin_.back() + ceil_div(context + rows, block_size));
      contexts_.push_back(context);
      for (int p = 0; p < context + rows; ++p)
        for (int h = 0; h < shape.key_heads; ++h)
          for (int c = 0; c < shape.key_width; ++c) {
            keys_[at(s, p, h) + c] = float_to_bf16(normal());
            values_[at(s, p, h) + c] = float_to_bf16(normal());
          }
    }
    device_q_ = gpu.upload(q_);
    device_keys_ = upload_pages(keys_);
    device_values_ = upload_pages(values_);
  }

  // Rows [first, first + count) of sequence s alone, or all sequences (s < 0); `multiprocessors` decides the split.
  std::vector<bf16_t> run(int multiprocessors, int s = -1, int first = 0, int count = 0) const {
    return run(Way{.multiprocessors = multiprocessors}, s, first, count);
  }
  // change: of the arguments, before they are planned.
  std::vector<bf16_t> run(const Way& way, int s = -1, int first = 0, int count = 0,
                          const std::function<void(AttentionArgs&)>& change = {}) const {
    Sequences own = sequences_;
    std::vector<int32_t> row_begin = row_begin_, block_begin = block_begin_, contexts = contexts_;
    int first_row = 0;
    if (s >= 0) {
      own.each = {{contexts_[s] + first, count}};
      row_begin = {0, count};
      block_begin = {block_begin_[s], block_begin_[s + 1]};
      contexts = {contexts_[s] + first};
      first_row = row_begin_[s] + first;
    }
    const auto begin = gpu_.upload(row_begin), block = gpu_.upload(block_begin), blocks = gpu_.upload(blocks_),
               context = gpu_.upload(contexts);
    const int rows = own.rows();
    AttentionArgs a{};
    a.shape = shape_;
    a.q = {device_q_.get() + int64_t{first_row} * stride_, stride_, false};
    a.keys = device_keys_.get();
    a.values = device_values_.get();
    a.pages_e4m3 = e4m3_;
    a.value_scale = value_scale();
    const int64_t out_stride = int64_t{shape_.heads} * shape_.value_width;
    const auto out = gpu_.upload(std::vector<bf16_t>(static_cast<size_t>(rows * out_stride), kNaN));
    a.out = {out.get(), out_stride, false};
    a.block_size = block_size_;
    a.scale = 1.0f / std::sqrt(static_cast<float>(shape_.key_width));
    a.rows = rows;
    a.sequences = static_cast<int>(own.each.size());
    a.one_row_each = own.longest_rows() == 1 && rows == a.sequences;
    a.row_begin = begin.get();
    a.block_begin = block.get();
    a.blocks = blocks.get();
    a.contexts = context.get();
    if (change) change(a);
    if (way.prefill_rows > 0) prefill(a, own, way);
    a.plan = sm90::plan_attention(shape_, true,
                                  {rows, a.sequences, own.longest_rows(), int64_t{way.slack} * own.longest_context()},
                                  way.row_invariant, way.multiprocessors);
    clusters_ = a.plan.cluster;
    if (way.token_tiles > 0) a.plan.token_tiles = way.token_tiles;
    if (a.projected.keys != nullptr) a.plan.token_tiles = 3;  // blocks of two tiles take no projected heads
    if (way.token_blocks > 0) {
      const int64_t items = a.sequences * shape_.key_heads * a.plan.parts;
      a.plan.token_blocks = std::max(way.token_blocks, ceil_div<int64_t>(items, sm90::kTokenItems));
    }
    const auto bytes = [&](int64_t n) {
      return gpu_.upload(std::vector<uint8_t>(static_cast<size_t>(std::max<int64_t>(n, 1)), 0xff));
    };
    const auto partial = bytes(partial_bytes(shape_, a.plan));
    const auto stats = bytes(partial_stats_bytes(shape_, a.plan));
    a.partial = reinterpret_cast<float*>(partial.get());
    a.partial_stats = reinterpret_cast<float*>(stats.get());
    EXPECT_TRUE(a.projected.keys == nullptr || takes_projected(a));
    sm90::launch_attention(a, gpu_.queue->stream(), true);
    splits_ = a.plan.parts;
    return gpu_.download(out, static_cast<size_t>(rows * out_stride));
  }
  int64_t splits() const { return splits_; }  // of the last run
  int clusters() const { return clusters_; }

  // rounded: probabilities may be rounded to bfloat16.
  void check_row(const std::vector<bf16_t>& out, int s, int r, int head, bool rounded = false) const {
    const int width = shape_.key_width, row = row_begin_[s] + r, kh = head / shape_.group();
    const int seen = contexts_[s] + r + 1;
    const bf16_t* q = q_.data() + int64_t{row} * stride_ + head * width;
    std::vector<double> p(static_cast<size_t>(seen));
    double largest = -INFINITY, reach = 0, total = 0;
    const double scale = static_cast<double>(1.0f / std::sqrt(static_cast<float>(width)));
    for (int j = 0; j < seen; ++j) {
      double dot = 0, size = 0;
      for (int c = 0; c < width; ++c) {
        const double term =
            static_cast<double>(bf16_to_float(q[c])) * static_cast<double>(bf16_to_float(keys_[at(s, j, kh) + c]));
        dot += term;
        size += std::fabs(term);
      }
      p[j] = dot * scale;
      reach = std::max(reach, size * scale);
      largest = std::max(largest, p[j]);
    }
    for (double& v : p) total += v = std::exp(v - largest);
    // Scores are off by at most (width / 16 + 8) units of their terms, probabilities by that much relative and 2^-17
    // (two bfloat16 parts; 2^-22 of two halves), sums of `seen` products by as many units of their sizes.
    const double relative = (2 * reach * (width / 16.0 + 8) + seen + 16) * 0x1p-24 + (e4m3_ ? 0x1p-22 : 0x1p-17);
    for (int c = 0; c < width; ++c) {
      double exact = 0, size = 0, squares = 0, all = 0;
      for (int j = 0; j < seen; ++j) {
        const double term = p[j] / total * static_cast<double>(value_scale()) *
                            static_cast<double>(bf16_to_float(values_[at(s, j, kh) + c]));
        exact += term;
        size += std::fabs(term);
        squares += term * term;
        all += std::fabs(static_cast<double>(bf16_to_float(values_[at(s, j, kh) + c])));
      }
      // Each probability is off by at most 2^-8 of itself, up or down as it happens: by Hoeffding's inequality the sum
      // is within 7 roots of the squares' sum but for one element in 2e10.
      const double rounding = rounded ? 0x1p-8 * std::min(size, 7 * std::sqrt(squares)) : 0;
      const double got = static_cast<double>(
          bf16_to_float(out[static_cast<size_t>((int64_t{row} * shape_.heads + head) * width + c)]));
      // Exponentials below 2^-126 of the largest are zero, and halves have 24 bits after the point: 2^-25 of a
      // probability that is multiplied by 2^14.
      const double underflow = (e4m3_ ? 0x1p-39 : 0x1p-126) * all / total * static_cast<double>(value_scale());
      ASSERT_NEAR(got, exact, relative * size + rounding + underflow + std::fabs(exact) * 0x1p-8)
          << "sequence " << s << " row " << r << " head " << head << " column " << c;
    }
  }

  const AttentionShape& shape() const { return shape_; }
  const Sequences& sequences() const { return sequences_; }
  int64_t row_elements() const { return int64_t{shape_.heads} * shape_.value_width; }
  int first_row(int s) const { return row_begin_[s]; }
  int block_size() const { return block_size_; }
  bool e4m3() const { return e4m3_; }
  float value_scale() const { return e4m3_ ? 0.3f : 1.0f; }
  // Where a position lies in the pages: block * block_size + offset.
  int slot(size_t s, int position) const {
    return blocks_[static_cast<size_t>(block_begin_[s] + position / block_size_)] * block_size_ +
           position % block_size_;
  }
  // The pages' bytes before any new row is stored: there they are NaN.
  std::vector<uint8_t> old_pages(bool values) const {
    std::vector<bf16_t> pages = values ? values_ : keys_;
    for (size_t s = 0; s < sequences_.each.size(); ++s)
      for (int p = contexts_[s]; p < contexts_[s] + sequences_.each[s].second; ++p)
        for (int h = 0; h < shape_.key_heads; ++h)
          std::fill_n(pages.begin() + static_cast<int64_t>(at(s, p, h)), shape_.key_width, kNaN);
    std::vector<uint8_t> bytes(pages.size() * (e4m3_ ? 1 : 2));
    if (e4m3_)
      std::transform(pages.begin(), pages.end(), bytes.begin(),
                     [](bf16_t v) { return format::float_to_e4m3(bf16_to_float(v)); });
    else
      std::memcpy(bytes.data(), pages.data(), bytes.size());
    return bytes;
  }

 private:
  static constexpr bf16_t kNaN = 0x7fc0;

  // Of e4m3 pages the codes, to whose values the pages are rounded.
  std::shared_ptr<void> upload_pages(std::vector<bf16_t>& pages) const {
    if (!e4m3_) return gpu_.upload(pages);
    std::vector<uint8_t> codes;
    for (bf16_t& v : pages) {
      codes.push_back(format::float_to_e4m3(bf16_to_float(v)));
      v = float_to_bf16(format::e4m3_to_float(codes.back()));
    }
    return gpu_.upload(codes);
  }

  // Fills what the exact size of its arrays allows; a write after their end is seen.
  void prefill(AttentionArgs& a, const Sequences& own, const Way& way) const {
    sm90::PrefillArgs p{};
    p.attention = &a;
    p.rows = a.rows;
    p.min_rows = way.prefill_rows;
    p.plan = plan_prefill(shape_, a.rows, a.sequences, own.longest_rows(), way.multiprocessors, way.lists);
    const auto ints = static_cast<size_t>(prefill_work_ints(p.plan));
    const auto memory = gpu_.upload(std::vector<int32_t>(ints + 64, -1));
    p.work = prefill_work(p.plan, memory.get());
    ASSERT_TRUE(prefill_fits(a));
    launch_prefill(p, gpu_.queue->stream(), true);
    a.prefill_rows = p.min_rows;
    const auto after = gpu_.download(memory, ints + 64);
    ASSERT_TRUE(std::all_of(after.begin() + static_cast<int64_t>(ints), after.end(), [](int v) { return v == -1; }));
  }

  size_t at(size_t s, int position, int head) const {
    const int64_t block = blocks_[static_cast<size_t>(block_begin_[s] + position / block_size_)];
    return static_cast<size_t>(((block * shape_.key_heads + head) * block_size_ + position % block_size_) *
                               shape_.key_width);
  }

  const Gpu& gpu_;
  AttentionShape shape_;
  Sequences sequences_;
  int block_size_;
  int64_t stride_;
  std::vector<bf16_t> q_, keys_, values_;
  std::vector<int32_t> row_begin_, block_begin_, blocks_, contexts_;
  bool e4m3_;
  std::shared_ptr<bf16_t> device_q_;
  std::shared_ptr<void> device_keys_, device_values_;
  mutable int64_t splits_ = 0;
  mutable int clusters_ = 0;
};

}  // namespace sluice::test
