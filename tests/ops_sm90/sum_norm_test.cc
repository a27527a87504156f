// SPDX-License-Identifier: Apache-2.0
// A norm that adds up the results of experts itself gives the bits of the finalize kernel and a norm after it, which
// tests/ops and tests/kernels_sm90 hold against their definitions.
#include <algorithm>
#include <span>

#include "kernels/sm90/finalize/finalize.h"
#include "tests/ops_sm90/gpu.h"
#include "tests/ops_sm90/norm_outcome.h"

namespace sluice::test {
namespace {

using sm90::RmsNormArgs, sm90::Round;

constexpr bf16_t kNan = 0xffff;
constexpr int64_t kGap = 8;  // poisoned values between rows

// Either sign, 0.25 to 4: four values of each random number, since there are many.
void randomize(std::span<bf16_t> values) {
  uint64_t bits = 0;
  for (size_t i = 0; i < values.size(); ++i, bits >>= 16) {
    if (i % 4 == 0) bits = random()();
    values[i] = static_cast<bf16_t>((bits & 0x807f) | (125 + (bits >> 8 & 3)) << 7);
  }
}

struct Shape {
  int cols, top_k, rows, num_rows;
  bool second, weighted;
  Round round;
};

class Problem {
 public:
  Problem(const Gpu& gpu, const Shape& s) : gpu_(gpu), s_(s), weight_(static_cast<size_t>(s.cols)) {
    x_ = with_gaps();
    second_ = with_gaps();
    for (float& w : weight_) w = 1 + normal(0.3f);
    const auto pairs = static_cast<size_t>(s.rows) * static_cast<size_t>(s.top_k), cols = static_cast<size_t>(s.cols);
    results_.assign(pairs * cols, kNan);
    weights_.assign(pairs, NAN);
    pair_row_.assign(pairs, 0);
    const auto counted = static_cast<size_t>(std::min(s.num_rows, s.rows)) * static_cast<size_t>(s.top_k);
    for (size_t pair = 0; pair < counted; ++pair) {
      weights_[pair] = normal(0.4f);
      const bool absent = random()() % 9 == 0;
      if (absent) pair_row_[pair] = -1;
      const std::span row(results_.data() + pair * cols, cols);
      absent ? std::fill(row.begin(), row.end(), bf16_t{0}) : randomize(row);
    }
  }

  // fused: the norm adds up the results; else finalize does.
  NormOutcome run(bool fused) const {
    const auto rows = static_cast<size_t>(s_.rows), cols = static_cast<size_t>(s_.cols);
    const size_t scale_size = rows * scale_bytes(s_.round, s_.cols);
    const auto x = gpu_.upload(x_), second = gpu_.upload(second_), results = gpu_.upload(results_);
    const auto y = gpu_.upload(std::vector<bf16_t>(x_.size(), kNan));
    const auto weight = gpu_.upload(weight_), weights = gpu_.upload(weights_);
    const auto pair_row = gpu_.upload(pair_row_), num_rows = gpu_.upload(std::vector<int32_t>{s_.num_rows});
    const auto codes = gpu_.upload(std::vector<uint8_t>(rows * cols, 0xff));
    const auto scales = gpu_.upload(std::vector<uint8_t>(scale_size, 0xff));
    const auto row_scales = gpu_.upload(std::vector<float>(rows, NAN));
    const auto sum = gpu_.upload(std::vector<bf16_t>(rows * cols, 0));  // of rows that do not count
    const int64_t stride = s_.cols + kGap;
    RmsNormArgs args{};
    args.x = {x.get() + kGap, stride, false};
    args.y = {y.get() + kGap, stride, false};
    if (s_.second) args.change2 = {second.get() + kGap, stride, false};
    args.weight = weight.get();
    args.eps = 1e-5f;
    args.rows = s_.rows;
    args.cols = s_.cols;
    args.rounded = {s_.round, 1 / 0.013f, codes.get(), row_scales.get(), scales.get()};
    const float* given_weights = s_.weighted ? weights.get() : nullptr;
    const bool pdl = s_.rows % 2 == 0;
    if (fused) {
      args.sum = {results.get(), given_weights, num_rows.get(), s_.top_k};
      EXPECT_TRUE(adds_results(args));
    } else {
      sm90::launch_finalize(
          {results.get(), given_weights, pair_row.get(), sum.get(), false, s_.rows, num_rows.get(), s_.cols, s_.top_k},
          gpu_.queue->stream(), pdl);
      args.change = {sum.get(), s_.cols, false};
    }
    launch_rms_norm(args, gpu_.queue->stream(), pdl);
    return {gpu_.download(x, x_.size()), gpu_.download(y, x_.size()), gpu_.download(codes, rows * cols),
            gpu_.download(scales, scale_size), gpu_.download(row_scales, rows)};
  }

  // Every row was written, nothing around the rows, and of codes and scales what the rounding has.
  void check_written(const NormOutcome& o) const {
    const auto stride = static_cast<size_t>(s_.cols + kGap);
    for (size_t i = 0; i < o.y.size(); ++i) {
      const bool gap = i < kGap || (i - kGap) % stride >= static_cast<size_t>(s_.cols);
      ASSERT_EQ(o.y[i] == kNan, gap) << i;
      ASSERT_EQ(o.x[i] == kNan, gap) << i;
    }
  }

 private:
  std::vector<bf16_t> with_gaps() const {
    std::vector<bf16_t> v(static_cast<size_t>(kGap + s_.rows * (s_.cols + kGap)), kNan);
    for (int64_t r = 0; r < s_.rows; ++r)
      for (int64_t c = 0; c < s_.cols; ++c)
        v[static_cast<size_t>(kGap + r * (s_.cols + kGap) + c)] = float_to_bf16(normal(3));
    return v;
  }

  const Gpu& gpu_;
  Shape s_;
  std::vector<bf16_t> x_, second_, results_;
  std::vector<float> weight_, weights_;
  std::vector<int32_t> pair_row_;
};

TEST(SumNorm, GivesTheBitsOfFinalizeAndANorm) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  int turn = 0;
  for (const int cols : {1024, 2048, 2688, 7168})
    for (const int top_k : {1, 2, 6, 8, 22})
      for (const int rows : {1, 2, 7, 8, 64, 129, 300}) {
        const int part = 1 + static_cast<int>(random()() % static_cast<uint64_t>(rows));
        // Each rounding, with and without a second change and weights, by turns.
        const Shape s{
            cols, top_k, rows, turn % 3 == 0 ? rows : part, turn % 2 == 0, turn % 5 != 2, kNormRounds[turn % 5]};
        ++turn;
        SCOPED_TRACE(fmt::format("{} columns, {} experts, {} of {} rows, rounding {}, second change {}, weights {}",
                                 cols, top_k, s.num_rows, rows, static_cast<int>(s.round), s.second, s.weighted));
        const Problem p(gpu, s);
        const NormOutcome fused = p.run(true);
        ASSERT_NO_FATAL_FAILURE(p.check_written(fused));
        ASSERT_TRUE(fused == p.run(false));
      }
}

// Every rounding with and without a second change, at the widths of each split of a row over threads.
TEST(SumNorm, EveryRoundingOfEveryWidth) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  for (const int cols : {8, 136, 1024, 1032, 2048, 2056, 4096, 4104, 8192})
    for (const Round round : kNormRounds)
      for (const bool second : {false, true}) {
        SCOPED_TRACE(fmt::format("{} columns, rounding {}, second change {}", cols, static_cast<int>(round), second));
        const Problem p(gpu, {cols, 9, 3, 2, second, true, round});
        const NormOutcome fused = p.run(true);
        ASSERT_NO_FATAL_FAILURE(p.check_written(fused));
        ASSERT_TRUE(fused == p.run(false));
      }
}

}  // namespace
}  // namespace sluice::test
