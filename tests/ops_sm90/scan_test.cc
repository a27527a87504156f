// SPDX-License-Identifier: Apache-2.0
// The chunked scan, in one segment and in several, against the row-by-row kernel, which tests/ops holds against the
// definition.
#include <cstring>
#include <optional>

#include "kernels/sm90/ssm/ssm.h"
#include "tests/ops_sm90/gpu.h"

namespace sluice {
namespace {

using sm90::kScanDim, sm90::kScanState, sm90::StateScanArgs;

class ScanTest : public testing::Test {
 protected:
  static constexpr int kHeads = 6, kGroups = 2, kInner = kHeads * kScanDim;
  static constexpr int kChannels = kInner + 2 * kGroups * kScanState;
  static constexpr int64_t kStateFloats = int64_t{kHeads} * kScanState * kScanDim;

  struct Result {
    std::vector<float> y, states;
  };

  void SetUp() override {
    SLUICE_SKIP_WITHOUT_DEVICE();
    gpu_.emplace();
    sm90::allow_chunked_scan();
    for (const int rows : {1, 2, 31, 64, 65, 192, 257, 700}) {
      state_in_.push_back(rows % 2 == 1 ? -1 : places_++);
      row_begin_.push_back(row_begin_.back() + rows);
      state_out_.resize(static_cast<size_t>(row_begin_.back()), -1);
      // Steps that decode leave the state where it was.
      state_out_.back() = state_in_.back() >= 0 && rows > 200 ? state_in_.back() : places_++;
      if (rows > 64) state_out_[static_cast<size_t>(row_begin_.back() - rows / 2)] = places_++;  // a chunk ends early
    }
    const auto rows = static_cast<size_t>(row_begin_.back());
    for (size_t i = 0; i < rows * kChannels; ++i) xbc_.push_back(float_to_bf16(test::normal()));
    for (size_t i = 0; i < rows * kHeads; ++i) dt_.push_back(float_to_bf16(test::normal(2)));
    for (int64_t i = 0; i < places_ * kStateFloats; ++i) states_.push_back(test::normal());
    for (int h = 0; h < kHeads; ++h) {
      a_.push_back(-std::exp2(static_cast<float>(3 * h - 12)));
      bias_.push_back(test::normal());
      skip_.push_back(test::normal());
    }
  }

  // segments 0: row by row.
  Result run(int segments) const {
    const auto begin = gpu_->upload(row_begin_), in = gpu_->upload(state_in_), out = gpu_->upload(state_out_);
    const auto xbc = gpu_->upload(xbc_), dt = gpu_->upload(dt_);
    const auto states = gpu_->upload(states_), a = gpu_->upload(a_), bias = gpu_->upload(bias_),
               skip = gpu_->upload(skip_);
    const auto size = static_cast<size_t>(row_begin_.back()) * kInner;
    const auto y = gpu_->upload(std::vector<float>(size, NAN));
    StateScanArgs args{};
    args.batch = {row_begin_.back(), 700,         static_cast<int>(state_in_.size()), begin.get(), in.get(), out.get(),
                  states.get(),      kStateFloats};
    args.xbc = {xbc.get(), kChannels, false};
    args.dt = {dt.get(), kHeads, false};
    args.dt_bias = bias.get(), args.a = a.get(), args.skip = skip.get();
    args.y = {y.get(), kInner, true};
    args.heads = kHeads, args.head_dim = kScanDim, args.groups = kGroups, args.state = kScanState;
    args.chunked_rows = segments == 0 ? 0 : 1;
    args.segments = std::max(1, segments);
    const auto sequences = static_cast<int64_t>(state_in_.size());
    const auto carried = gpu_->upload(
        std::vector<float>(static_cast<size_t>(sm90::carried_floats(kHeads, sequences, args.segments)), NAN));
    const auto decays = gpu_->upload(std::vector<float>(static_cast<size_t>(sequences * args.segments * kHeads), NAN));
    args.carried = carried.get(), args.decays = decays.get();
    EXPECT_TRUE(chunked_scan_fits(args));
    if (segments == 0)
      launch_state_scan(args, gpu_->queue->stream(), true);
    else
      launch_chunked_scan(args, gpu_->queue->stream(), true);
    return {gpu_->download(y, size), gpu_->download(states, states_.size())};
  }
  // Sums of the sizes of all terms: what errors are measured by.
  Result sizes() {
    const auto xbc = xbc_;
    const auto states = states_, skip = skip_;
    for (bf16_t& v : xbc_) v &= 0x7fff;
    for (float& v : states_) v = std::fabs(v);
    for (float& v : skip_) v = std::fabs(v);
    Result r = run(0);
    xbc_ = xbc, states_ = states, skip_ = skip;
    return r;
  }

  std::optional<test::Gpu> gpu_;
  int32_t places_ = 0;
  std::vector<int32_t> row_begin_{0}, state_in_, state_out_;
  std::vector<bf16_t> xbc_, dt_;
  std::vector<float> states_, a_, bias_, skip_;
};

TEST_F(ScanTest, ChunksAreRowsOneAfterAnother) {
  const Result rows = run(0), size = sizes();
  for (const int segments : {1, 2, 3, 11}) {
    SCOPED_TRACE(testing::Message() << segments << " segments");
    const Result chunks = run(segments);
    for (size_t i = 0; i < rows.y.size(); ++i)
      ASSERT_NEAR(chunks.y[i], rows.y[i], size.y[i] * 0x1p-14f) << "row " << i / kInner << " column " << i % kInner;
    for (size_t i = 0; i < rows.states.size(); ++i)
      ASSERT_NEAR(chunks.states[i], rows.states[i], size.states[i] * 0x1p-14f) << "state " << i;
    const Result again = run(segments);
    EXPECT_EQ(std::memcmp(again.y.data(), chunks.y.data(), 4 * chunks.y.size()), 0);
  }
}

}  // namespace
}  // namespace sluice
