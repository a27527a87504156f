// SPDX-License-Identifier: Apache-2.0
// Prompts of latent attention in the expanded form: the bits do not depend on how heads are grouped or how a prompt is
// cut, and nothing is read or written outside. Values are held against double in tests/ops/latent_attention_test.cc.
#include "kernels/sm90/mla/expanded.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/sm90/mla/key_values.h"
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {
namespace {

constexpr bf16_t kNan = 0x7fc0;
constexpr int kNope = 128, kBlock = 64, kMinRows = 40;

struct Sequence {
  int context, rows;
};

// A sequence's latents and queries by position, so that its prompt can be cut.
class Problem {
 public:
  Problem(const Gpu& gpu, int heads, std::vector<int> lengths)
      : gpu_(gpu), heads_(heads), lengths_(std::move(lengths)) {
    int blocks = 0;
    for (const int length : lengths_) blocks += ceil_div(length, kBlock);
    blocks_.resize(static_cast<size_t>(blocks));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), random());
    std::vector<bf16_t> pages(static_cast<size_t>(blocks) * kBlock * sm90::kLatentCached, kNan);
    int first = 0;
    for (const int length : lengths_) {
      block_begin_.push_back(first);
      for (int p = 0; p < length; ++p)
        for (int c = 0; c < sm90::kLatentCached; ++c)
          pages[static_cast<size_t>(
              (blocks_[static_cast<size_t>(first + p / kBlock)] * kBlock + p % kBlock) * sm90::kLatentCached + c)] =
              float_to_bf16(normal());
      first += ceil_div(length, kBlock);
      queries_.emplace_back(static_cast<size_t>(length) * heads * sm90::kExpandedKey);
      for (bf16_t& v : queries_.back()) v = float_to_bf16(normal(2));
    }
    block_begin_.push_back(first);
    std::vector<bf16_t> kv_b(static_cast<size_t>(heads) * (kNope + sm90::kExpandedValue) * sm90::kLatent);
    for (bf16_t& v : kv_b) v = float_to_bf16(normal(0.044f));
    pages_ = gpu.upload(pages);
    kv_b_ = gpu.upload(kv_b);
  }

  int length(size_t s) const { return lengths_[s]; }
  int64_t width() const { return int64_t{heads_} * sm90::kExpandedValue; }

  // Each sequence's results of its new rows; nothing for those that are not prompts. pass: heads at a time.
  std::vector<std::vector<bf16_t>> run(const std::vector<Sequence>& sequences, int pass) const {
    std::vector<int32_t> row_begin{0}, contexts;
    std::vector<bf16_t> q;
    sm90::PromptBounds bounds{};
    int longest = 0, others = 0;
    const int64_t q_width = int64_t{heads_} * sm90::kExpandedKey;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto [context, rows] = sequences[s];
      row_begin.push_back(row_begin.back() + rows);
      contexts.push_back(context);
      q.insert(q.end(), queries_[s].begin() + context * q_width, queries_[s].begin() + (context + rows) * q_width);
      longest = std::max(longest, rows);
      if (rows < kMinRows) {
        others += rows;
        continue;
      }
      ++bounds.prompts;
      bounds.rows += rows;
      bounds.positions += context + rows;
    }
    const auto rows = static_cast<int64_t>(row_begin.back());
    const auto device_q = gpu_.upload(q);
    const auto begin = gpu_.upload(row_begin), context = gpu_.upload(contexts), blocks = gpu_.upload(blocks_),
               block_begin = gpu_.upload(block_begin_);
    const auto out = gpu_.upload(std::vector<bf16_t>(static_cast<size_t>(rows * width()), kNan));
    sm90::AttentionArgs a{};
    a.q = {device_q.get(), q_width, false};
    a.keys = pages_.get();
    a.out = {out.get(), width(), false};
    a.block_size = kBlock;
    a.scale = 0.07f;
    a.rows = rows;
    a.sequences = static_cast<int>(sequences.size());
    a.row_begin = begin.get();
    a.block_begin = block_begin.get();
    a.blocks = blocks.get();
    a.contexts = context.get();
    sm90::ExpandedCall call{};
    call.attention = &a;
    call.weights = {kv_b_.get(), false, heads_, kNope, sm90::kLatentRope, sm90::kExpandedValue, sm90::kLatent};
    EXPECT_TRUE(expanded_fits(call.weights, a));
    call.min_rows = kMinRows;
    call.multiprocessors = 7;
    call.bounds = bounds;
    call.plan.heads = pass;
    call.plan.positions =
        (bounds.positions + bounds.prompts * (sm90::kExpandedTile - 1)) / sm90::kExpandedTile * sm90::kExpandedTile;
    call.other_rows = others;
    call.tiles = plan_expanded_tiles(call.plan, bounds, longest, 132);
    const auto poisoned = [&](int64_t bytes) {
      return gpu_.upload(std::vector<uint8_t>(static_cast<size_t>(bytes) + 64, 0xff));
    };
    const int64_t ints = sm90::expanded_work_ints(a.sequences, others), tile_ints = prefill_work_ints(call.tiles);
    const auto work = poisoned(4 * ints), tile_work = poisoned(4 * tile_ints),
               expanded = poisoned(expanded_bytes(call.plan));
    call.work = sm90::expanded_work(reinterpret_cast<int32_t*>(work.get()), a.sequences);
    call.tile_work = reinterpret_cast<int32_t*>(tile_work.get());
    call.expanded = expanded.get();
    launch_expanded_work(call, gpu_.queue->stream(), true);
    launch_expanded_attention(call, gpu_.queue->stream(), true);
    for (const auto& [memory, bytes] :
         {std::pair{work, 4 * ints}, {tile_work, 4 * tile_ints}, {expanded, expanded_bytes(call.plan)}}) {
      const auto after = gpu_.download(memory, static_cast<size_t>(bytes) + 64);
      EXPECT_TRUE(std::all_of(after.begin() + bytes, after.end(), [](uint8_t v) { return v == 0xff; }));
    }
    check_work(gpu_.download(work, static_cast<size_t>(4 * ints)), sequences, row_begin, others);
    const auto all = gpu_.download(out, static_cast<size_t>(rows * width()));
    std::vector<std::vector<bf16_t>> results;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto first = all.begin() + row_begin[s] * width(), last = all.begin() + row_begin[s + 1] * width();
      const bool prompt = sequences[s].rows >= kMinRows;
      EXPECT_TRUE(std::all_of(first, last,
                              [&](bf16_t v) { return prompt ? bf16_to_float(v) == bf16_to_float(v) : v == kNan; }));
      results.emplace_back(first, last);
    }
    return results;
  }

 private:
  static void check_work(const std::vector<uint8_t>& bytes, const std::vector<Sequence>& sequences,
                         const std::vector<int32_t>& row_begin, int others) {
    std::vector<int32_t> ints(bytes.size() / 4);
    std::memcpy(ints.data(), bytes.data(), bytes.size());
    const auto work = sm90::expanded_work(ints.data(), static_cast<int64_t>(sequences.size()));
    int next = 0, position = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const bool prompt = sequences[s].rows >= kMinRows;
      const int length = prompt ? sequences[s].context + sequences[s].rows : 0;
      EXPECT_EQ(work.first[s], position);
      EXPECT_EQ(work.lengths[s], length);
      EXPECT_EQ(work.other_begin[s], next);
      for (int r = 0; !prompt && r < sequences[s].rows; ++r) EXPECT_EQ(work.other_rows[next++], row_begin[s] + r);
      position += round_up(length, sm90::kExpandedTile);
    }
    EXPECT_EQ(work.first[sequences.size()], position);
    EXPECT_EQ(work.other_begin[sequences.size()], others);
  }

  const Gpu& gpu_;
  int heads_;
  std::vector<int> lengths_;
  std::vector<int32_t> blocks_, block_begin_;
  std::vector<std::vector<bf16_t>> queries_;
  std::shared_ptr<bf16_t> pages_, kv_b_;
};

TEST(ExpandedSm90, NeitherGroupsOfHeadsNorCutsShow) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  if (!sm90::has_flashinfer()) GTEST_SKIP() << "this build has no FlashInfer kernels";
  const Gpu gpu;
  sm90::allow_key_values();
  sm90::allow_expanded();
  const Problem p(gpu, 12, {129, 700, 64, 39, 41, 1000});
  std::vector<Sequence> whole;
  for (size_t s = 0; s < 6; ++s) whole.push_back({0, p.length(s)});
  const auto results = p.run(whole, 12);
  for (const int pass : {1, 4, 6}) ASSERT_EQ(p.run(whole, pass), results) << pass;
  for (int round = 0; round < 4; ++round) {
    std::vector<Sequence> cut;  // the last rows of each sequence; of some too few for a prompt
    for (size_t s = 0; s < 6; ++s) {
      const int rows = 1 + static_cast<int>(random()() % static_cast<unsigned>(p.length(s)));
      cut.push_back({p.length(s) - rows, rows});
    }
    cut[5] = whole[5];
    const auto some = p.run(cut, 4);
    for (size_t s = 0; s < 6; ++s)
      if (cut[s].rows >= kMinRows) {
        ASSERT_TRUE(
            std::equal(some[s].begin(), some[s].end(), results[s].end() - static_cast<std::ptrdiff_t>(some[s].size())))
            << "sequence " << s << " from " << cut[s].context;
      }
  }
}

}  // namespace
}  // namespace sluice::test
