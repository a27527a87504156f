// SPDX-License-Identifier: Apache-2.0
// Latent attention on tensor cores: values against double, each row by itself, whatever the pieces.
#include "kernels/sm90/mla/latent_attention.h"

#include <algorithm>
#include <numeric>

#include "kernels/sm90/flashinfer/kernels.h"
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {
namespace {

using sm90::kLatent;
using sm90::kLatentCached;

// Random queries and pages; blocks in scrambled order, unused positions NaN.
class Problem {
 public:
  Problem(const Gpu& gpu, int heads, std::vector<std::pair<int, int>> sequences, int block_size, float query_size)
      : gpu_(gpu), heads_(heads), block_size_(block_size), sequences_(std::move(sequences)) {
    for (const auto& [context, rows] : sequences_) {
      row_begin_.push_back(row_begin_.back() + rows);
      block_begin_.push_back(block_begin_.back() + ceil_div(context + rows, block_size));
      contexts_.push_back(context);
      longest_ = std::max(longest_, context + rows);
      longest_rows_ = std::max(longest_rows_, rows);
    }
    blocks_.resize(static_cast<size_t>(block_begin_.back()));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), random());
    q_.resize(static_cast<size_t>(rows()) * heads * kLatentCached);
    for (bf16_t& v : q_) v = float_to_bf16(normal(query_size));
    keys_.assign(blocks_.size() * static_cast<size_t>(block_size * kLatentCached), 0x7fc0);
    for (size_t s = 0; s < sequences_.size(); ++s)
      for (int p = 0; p < sequences_[s].first + sequences_[s].second; ++p)
        for (int c = 0; c < kLatentCached; ++c) keys_[at(s, p) + static_cast<size_t>(c)] = float_to_bf16(normal());
    device_q_ = gpu.upload(q_);
    device_keys_ = gpu.upload(keys_);
  }

  int rows() const { return row_begin_.back(); }
  const std::vector<std::pair<int, int>>& sequences() const { return sequences_; }
  int64_t width() const { return int64_t{heads_} * kLatent; }

  // padding: rows after the last sequence, as a recorded step has them; they stay NaN.
  std::vector<bf16_t> run(bool row_invariant, int multiprocessors, int padding = 0) const {
    const auto begin = gpu_.upload(row_begin_), block = gpu_.upload(block_begin_), blocks = gpu_.upload(blocks_),
               context = gpu_.upload(contexts_);
    const auto size = static_cast<size_t>((rows() + padding) * width());
    const auto out = gpu_.upload(std::vector<bf16_t>(size, 0x7fc0));
    sm90::AttentionArgs a{};
    a.q = {device_q_.get(), int64_t{heads_} * kLatentCached, false};
    a.keys = device_keys_.get();
    a.out = {out.get(), width(), false};
    a.shape = {heads_, 1, kLatentCached, kLatent};
    a.block_size = block_size_;
    a.scale = kScale;
    a.rows = rows() + padding;
    a.sequences = static_cast<int>(sequences_.size());
    a.row_begin = begin.get();
    a.block_begin = block.get();
    a.blocks = blocks.get();
    a.contexts = context.get();
    EXPECT_TRUE(latent_fits(a));
    sm90::LatentCall call{};
    call.attention = &a;
    call.plan =
        sm90::plan_latent(heads_, {a.rows, a.sequences, longest_rows_, longest_}, row_invariant, multiprocessors);
    const auto ints = static_cast<size_t>(latent_work_ints(call.plan));
    const auto work = gpu_.upload(std::vector<int32_t>(ints + 64, -7));
    const auto poison = [&](int64_t bytes) { return std::vector<uint8_t>(static_cast<size_t>(bytes) + 64, 0xff); };
    const auto partial = gpu_.upload(poison(latent_partial_bytes(call.plan))),
               stats = gpu_.upload(poison(latent_stats_bytes(call.plan)));
    call.work = work.get();
    call.partial = partial.get();
    call.partial_stats = reinterpret_cast<float*>(stats.get());
    launch_latent_attention(call, gpu_.queue->stream(), true);
    const auto ends_with = [&](const auto& memory, int64_t bytes) {
      const auto after = gpu_.download(memory, static_cast<size_t>(bytes) + 64);
      return std::all_of(after.begin() + bytes, after.end(), [&](auto v) { return v == after.back(); });
    };
    EXPECT_TRUE(ends_with(work, static_cast<int64_t>(ints)));
    EXPECT_TRUE(ends_with(partial, latent_partial_bytes(call.plan)));
    EXPECT_TRUE(ends_with(stats, latent_stats_bytes(call.plan)));
    auto result = gpu_.download(out, size);
    EXPECT_TRUE(std::all_of(result.begin() + rows() * width(), result.end(), [](bf16_t v) { return v == 0x7fc0; }));
    result.resize(static_cast<size_t>(rows() * width()));
    return result;
  }

  void check_row(const std::vector<bf16_t>& out, size_t s, int r, int head) const {
    const int row = row_begin_[s] + r, seen = contexts_[s] + r + 1;
    const bf16_t* q = q_.data() + (int64_t{row} * heads_ + head) * kLatentCached;
    std::vector<double> p(static_cast<size_t>(seen));
    double largest = -INFINITY, reach = 0, total = 0;
    for (int j = 0; j < seen; ++j) {
      double dot = 0, size = 0;
      for (int c = 0; c < kLatentCached; ++c) {
        const double term = value(q[c]) * value(keys_[at(s, j) + static_cast<size_t>(c)]);
        dot += term;
        size += std::fabs(term);
      }
      p[static_cast<size_t>(j)] = dot * double{kScale};
      reach = std::max(reach, size * double{kScale});
      largest = std::max(largest, p[static_cast<size_t>(j)]);
    }
    for (double& v : p) total += v = std::exp(v - largest);
    const double relative = (2 * reach * (kLatentCached / 16.0 + 8) + seen + 16) * 0x1p-24;
    for (int c = 0; c < kLatent; ++c) {
      double exact = 0, size = 0, squares = 0;
      std::vector<double> sums{0};  // of the first positions
      for (int j = 0; j < seen; ++j) {
        const double term = p[static_cast<size_t>(j)] / total * value(keys_[at(s, j) + static_cast<size_t>(c)]);
        sums.push_back(exact += term);
        size += std::fabs(term);
        squares += term * term;
      }
      // Probabilities and the results of pieces are rounded, at most 2^-8 each. By Hoeffding's inequality the sum of
      // either is within 7 roots of the squares' sum but for one element in 2e10.
      const double rounding = 0x1p-8 * std::min(2 * size, 7 * (std::sqrt(squares) + std::sqrt(piece_squares(sums))));
      const double got = value(out[static_cast<size_t>((int64_t{row} * heads_ + head) * kLatent + c)]);
      ASSERT_NEAR(got, exact, relative * size + rounding + std::fabs(exact) * 0x1p-8)
          << "sequence " << s << " row " << r << " head " << head << " column " << c;
    }
  }

 private:
  static constexpr float kScale = 0.07f;
  // The largest sum of squares of the results of pieces, whatever their length.
  static double piece_squares(const std::vector<double>& sums) {
    double most = 0;
    for (int i = 0; i < sm90::kLatentPieces; ++i) {
      double all = 0;
      const auto length = static_cast<size_t>(sm90::latent_piece(i)) * 64;
      for (size_t at = 0; at + 1 < sums.size(); at += length) {
        const double piece = sums[std::min(at + length, sums.size() - 1)] - sums[at];
        all += piece * piece;
      }
      most = std::max(most, all);
    }
    return most;
  }
  static double value(bf16_t v) { return static_cast<double>(bf16_to_float(v)); }
  size_t at(size_t s, int position) const {
    const int64_t block = blocks_[static_cast<size_t>(block_begin_[s] + position / block_size_)];
    return static_cast<size_t>((block * block_size_ + position % block_size_) * kLatentCached);
  }

  const Gpu& gpu_;
  int heads_, block_size_, longest_ = 0, longest_rows_ = 0;
  std::vector<std::pair<int, int>> sequences_;
  std::vector<bf16_t> q_, keys_;
  std::vector<int32_t> row_begin_{0}, block_begin_{0}, blocks_, contexts_;
  std::shared_ptr<bf16_t> device_q_, device_keys_;
};

void check_problem(const Gpu& gpu, int heads, std::vector<std::pair<int, int>> sequences, int block_size = 64,
                   float query_size = 1) {
  const Problem p(gpu, heads, std::move(sequences), block_size, query_size);
  const auto whole = p.run(true, 132);
  for (const auto& out : {whole, p.run(false, 132, 3), p.run(false, 20), p.run(false, 132)})
    for (size_t s = 0; s < p.sequences().size(); ++s)
      for (int i = 0; i < 3; ++i) {
        const int n = p.sequences()[s].second, r = i == 0 ? 0 : i == 1 ? n - 1 : static_cast<int>(random()() % n);
        p.check_row(out, s, r, i == 1 ? heads - 1 : static_cast<int>(random()() % heads));
        if (testing::Test::HasFatalFailure()) return;
      }
  for (const int multiprocessors : {1, 5, 100}) ASSERT_EQ(p.run(true, multiprocessors), whole) << multiprocessors;
}

TEST(LatentSm90, RowsAlongPageAndTileBoundaries) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  if (!sm90::has_flashinfer()) GTEST_SKIP() << "this build has no FlashInfer kernels";
  const Gpu gpu;
  sm90::allow_latent();
  for (const int heads : {1, 16, 64, 100, 128}) {
    SCOPED_TRACE(testing::Message() << heads << " heads");
    check_problem(gpu, heads, {{0, 1}});
    check_problem(gpu, heads, {{62, 1}, {63, 1}, {64, 1}, {127, 1}, {128, 1}, {1000, 1}});
    check_problem(gpu, heads, {{300, 5}, {0, 40}, {2, 1}}, 64, 4.0f);
    check_problem(gpu, heads, {{500, 2}, {90, 3}}, 16);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(LatentSm90, LongContexts) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  if (!sm90::has_flashinfer()) GTEST_SKIP() << "this build has no FlashInfer kernels";
  const Gpu gpu;
  sm90::allow_latent();
  check_problem(gpu, 128, {{9000, 1}});
  check_problem(gpu, 16, {{5000, 1}, {17, 1}, {4095, 3}}, 64, 3.0f);
  std::vector<std::pair<int, int>> many;
  for (int s = 0; s < 64; ++s) many.emplace_back(static_cast<int>(random()() % 600), 1);
  check_problem(gpu, 128, many);
  for (auto& [context, rows] : many) rows = 1 + static_cast<int>(random()() % 20);
  check_problem(gpu, 16, many);
  check_problem(gpu, 32, {{200, 700}, {0, 1}, {0, 300}});
  check_problem(gpu, 8, {{0, 3}, {900, 9}});
}

}  // namespace
}  // namespace sluice::test
