// SPDX-License-Identifier: Apache-2.0
#include "weights/shard.h"

#include "plain_moe.h"
#include "random_weights.h"
#include "weights/pad.h"

namespace sluice::weights {
namespace {

using activation::Activation;
using format::Format;
using format::InputFormat;

TEST(Shard, PublishedSizes) {
  // I, tp, weights -> sizes of the ranks. 961 of 7688 (odd), 232 of 1856 and 96 of 768 are what a plain division gives.
  struct Case {
    int64_t inter;
    int tp;
    Format format;
    std::vector<int64_t> sizes;
  };
  const std::vector<Case> cases{
      {7688, 8, Format::bf16, {961, 961, 961, 961, 961, 961, 961, 961}},
      {7688, 8, Format::fp8_tensor, {961, 961, 961, 961, 961, 961, 961, 961}},
      {1856, 8, Format::fp8_channel, {232, 232, 232, 232, 232, 232, 232, 232}},
      {1856, 8, Format::nvfp4, {240, 224, 240, 224, 240, 224, 240, 224}},
      {1856, 8, Format::mxfp8, {256, 224, 224, 224, 256, 224, 224, 224}},
      {2688, 8, Format::nvfp4, {336, 336, 336, 336, 336, 336, 336, 336}},
      {2688, 8, Format::fp8_block, {384, 384, 256, 384, 384, 256, 384, 256}},
      {768, 8, Format::mxfp4, {96, 96, 96, 96, 96, 96, 96, 96}},
      {768, 8, Format::fp8_block, {128, 128, 128, 0, 128, 128, 128, 0}},
      {248, 3, Format::nvfp4, {96, 80, 72}},  // a short last group stays with the last rank
      {48, 2, Format::mxfp8, {32, 16}},
  };
  for (const Case& c : cases)
    for (int rank = 0; rank < c.tp; ++rank) {
      const Range part = part_of(c.inter, cut_of(c.format, InputFormat::plain), rank, c.tp);
      EXPECT_EQ(part.size(), c.sizes[rank])
          << c.inter << " by " << c.tp << " " << info(c.format).name << " rank " << rank;
    }
}

TEST(Shard, PartsCoverEveryColumnOnceAndStartOnScales) {
  for (int64_t inter : {1, 2, 16, 33, 48, 96, 232, 248, 336, 704, 768, 961, 1856, 2688, 2880, 7688})
    for (int64_t cut : {1, 2, 16, 32, 128})
      for (int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
        int64_t at = 0;
        for (int r = 0; r < ranks; ++r) {
          const Range part = part_of(inter, cut, r, ranks);
          ASSERT_EQ(part.begin, at) << inter << " " << cut << " " << ranks;
          ASSERT_TRUE(part.begin % cut == 0 || part.size() == 0);
          ASSERT_LE(part.size(), (inter / cut / ranks + 1) * cut + cut - 1);
          at = part.end;
        }
        ASSERT_EQ(at, inter);
        ASSERT_GT(part_of(inter, cut, 0, ranks).size(), 0);  // bias_down goes with rank 0
      }
}

TEST(Shard, CutFollowsWeightsAndInputs) {
  EXPECT_EQ(cut_of(Format::bf16, InputFormat::plain), 1);
  EXPECT_EQ(cut_of(Format::fp8_tensor, InputFormat::fp8_token), 1);
  EXPECT_EQ(cut_of(Format::fp8_tensor, InputFormat::mxfp8), 32);
  EXPECT_EQ(cut_of(Format::fp8_block, InputFormat::fp8_group), 128);
  EXPECT_EQ(cut_of(Format::nvfp4, InputFormat::nvfp4_token), 16);
  EXPECT_EQ(cut_of(Format::mxfp4, InputFormat::plain), 32);
}

TEST(Shard, RefusesRanksOutOfRange) {
  EXPECT_EQ(error_of([] {
              validate({3, 3, 0, 1});
            }),
            "tensor-parallel rank 3 of 3; it must be at least 0 and below the size");
  EXPECT_EQ(error_of([] {
              validate({0, 1, -1, 2});
            }),
            "expert-parallel rank -1 of 2; it must be at least 0 and below the size");
}

struct Problem {
  std::vector<float> x;
  std::vector<int> ids;
  std::vector<double> router;
};

Problem random_problem(Random& random, int64_t tokens, int64_t hidden, int experts, int top_k) {
  Problem p;
  for (int64_t i = 0; i < tokens * hidden; ++i) p.x.push_back(random.normal());
  for (int64_t t = 0; t < tokens; ++t)
    for (int k = 0; k < top_k; ++k) {
      p.ids.push_back(static_cast<int>((t + k * 2) % experts));
      p.router.push_back(random.uniform(0.1f, 1.0f));
    }
  return p;
}

// The inputs whose rounding does not look across a cut: the equality holds for them exactly, up to the order of sums.
// fp8_token and nvfp4_token take one scale from a whole row of I, so there each rank rounds its own part of the row (as
// every tensor-parallel stack does) and the outputs differ by that rounding: they are left out on purpose.
std::vector<InputFormat> separable_inputs(Format format) {
  switch (format) {
    case Format::fp8_tensor:
    case Format::fp8_channel:
      return {InputFormat::plain, InputFormat::fp8_static};
    case Format::fp8_block:
      return {InputFormat::plain, InputFormat::fp8_group};
    case Format::mxfp8:
    case Format::mxfp4:
      return {InputFormat::plain, InputFormat::mxfp8};
    case Format::nvfp4:
      return {InputFormat::plain, InputFormat::nvfp4};
    case Format::bf16:
      break;
  }
  return {InputFormat::plain};
}

TEST(Shard, SumOfShardsIsTheWhole) {
  Random random;
  const int experts = 5, top_k = 2;
  const int64_t hidden = 48, tokens = 4;
  for (const auto& [format, name] : format::kFormats)
    for (const auto& act : activation::kActivations)
      for (int64_t inter : {160, 88}) {  // 160: five groups of 32, two blocks of 128; 88: a short last group
        const ExpertWeights w =
            random_experts(random, format, experts, inter, hidden, activation::is_gated(act.value), true);
        const Problem p = random_problem(random, tokens, hidden, experts, top_k);
        for (InputFormat inputs : separable_inputs(format)) {
          const auto whole = plain_moe(w, act.value, inputs, p.x, p.ids, p.router, 0);
          double largest = 0;
          for (double y : whole) largest = std::max(largest, std::abs(y));
          for (int tp : {1, 2, 3, 4, 8})
            for (int ep : {1, 2, 4}) {
              std::vector<double> sum(whole.size(), 0.0);
              for (int r = 0; r < tp; ++r)
                for (int s = 0; s < ep; ++s) {
                  const ExpertWeights part = shard(w, {r, tp, s, ep}, inputs);
                  const int64_t first = part_of(experts, 1, s, ep).begin;
                  const auto y = plain_moe(part, act.value, inputs, p.x, p.ids, p.router, first);
                  for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
                }
              for (size_t i = 0; i < sum.size(); ++i)  // double sums of the same products in another order
                ASSERT_NEAR(sum[i], whole[i], 1e-12 * largest)
                    << name << " " << act.name << " tp " << tp << " ep " << ep << " I " << inter;
            }
        }
      }
}

TEST(Shard, WeightsOfShardsAreTheWholeMatrixBitForBit) {
  Random random;
  const int64_t experts = 3, inter = 300, hidden = 160;
  for (const auto& [format, name] : format::kFormats) {
    const ExpertWeights w = random_experts(random, format, experts, inter, hidden, true, true);
    const Tensor up = dequantize(w.up), gate = dequantize(w.gate), down = dequantize(w.down);
    for (int tp : {2, 3, 8})
      for (int ep : {1, 2, 4}) {
        int64_t seen = 0;
        for (int r = 0; r < tp; ++r)
          for (int s = 0; s < ep; ++s) {
            const Shard which{r, tp, s, ep};
            const ExpertWeights part = shard(w, which);
            ASSERT_TRUE(same_bytes(part, shard(w, which)));  // preparing twice
            const Range mine = part_of(experts, 1, s, ep), cols = part_of(inter, cut_of(format, {}), r, tp);
            const Tensor part_up = dequantize(part.up), part_gate = dequantize(part.gate),
                         part_down = dequantize(part.down);
            for (int64_t e = 0; e < mine.size(); ++e)
              for (int64_t i = 0; i < cols.size(); ++i)
                for (int64_t h = 0; h < hidden; ++h) {
                  const int64_t row_major = ((mine.begin + e) * inter + cols.begin + i) * hidden + h;
                  ASSERT_EQ(part_up.as<float>()[(e * cols.size() + i) * hidden + h], up.as<float>()[row_major]) << name;
                  ASSERT_EQ(part_gate.as<float>()[(e * cols.size() + i) * hidden + h], gate.as<float>()[row_major]);
                  ASSERT_EQ(part_down.as<float>()[(e * hidden + h) * cols.size() + i],
                            down.as<float>()[((mine.begin + e) * hidden + h) * inter + cols.begin + i]);
                  ++seen;
                }
          }
        EXPECT_EQ(seen, experts * inter * hidden);
      }
  }
}

TEST(Pad, ChangesNothingBitForBit) {
  Random random;
  const int experts = 3, top_k = 2;
  const int64_t tokens = 3;
  for (const auto& [format, name] : format::kFormats)
    for (const auto& act : activation::kActivations)
      for (const auto& [inter, hidden] : {std::pair<int64_t, int64_t>{88, 48}, {232, 40}, {30, 34}}) {
        const ExpertWeights w =
            random_experts(random, format, experts, inter, hidden, activation::is_gated(act.value), true);
        const Problem p = random_problem(random, tokens, hidden, experts, top_k);
        for (int64_t multiple : {16, 128}) {
          const ExpertWeights wide = pad(w, multiple, multiple == 16 ? 1 : 64);
          ASSERT_EQ(wide.up.rows % multiple, 0);
          ASSERT_EQ(wide.down.cols, wide.up.rows);
          ASSERT_TRUE(same_bytes(wide, pad(wide, multiple, multiple == 16 ? 1 : 64)));  // preparing twice
          std::vector<float> x(static_cast<size_t>(tokens * wide.up.cols), 0.0f);
          for (int64_t t = 0; t < tokens; ++t)
            std::copy_n(p.x.begin() + t * hidden, hidden, x.begin() + t * wide.up.cols);
          for (const auto& inputs : format::kInputFormats) {
            const auto y = plain_moe(w, act.value, inputs.value, p.x, p.ids, p.router, 0);
            const auto padded = plain_moe(wide, act.value, inputs.value, x, p.ids, p.router, 0);
            for (int64_t t = 0; t < tokens; ++t)
              for (int64_t h = 0; h < wide.up.cols; ++h)
                ASSERT_EQ(padded[t * wide.up.cols + h], h < hidden ? y[t * hidden + h] : 0.0)
                    << name << " " << act.name << " " << inputs.name << " I " << inter;
          }
        }
      }
}

TEST(Pad, NeutralScales) {
  Random random;
  const auto scale_after = [&](Format format) {
    const QuantTensor w = pad(random_quant(random, format, 1, 2, 32), 4, 128);
    EXPECT_EQ(w.codes.slice(0).as<uint8_t>()[w.codes.elements() - 1], 0);
    return w.scales.as<uint8_t>()[w.scales.elements() - 1];
  };
  EXPECT_EQ(scale_after(Format::nvfp4), 0);
  EXPECT_EQ(scale_after(Format::mxfp4), 127);
  EXPECT_EQ(scale_after(Format::mxfp8), 127);
  EXPECT_EQ(error_of([&] { pad(random_quant(random, Format::bf16, 1, 4, 4), 2, 4); }),
            "a matrix of 4 x 4 cannot be padded to 2 x 4");
}

TEST(Region, RefusesToSplitAScale) {
  Random random;
  const QuantTensor w = random_quant(random, Format::nvfp4, 1, 8, 64);
  EXPECT_EQ(error_of([&] {
              cut(w, {0, 1}, {0, 8}, {8, 64});
            }),
            "columns cannot be cut at 8: a scale of nvfp4 covers 16 of them");
  const QuantTensor b = random_quant(random, Format::fp8_block, 1, 256, 128);
  EXPECT_EQ(error_of([&] {
              cut(b, {0, 1}, {64, 256}, {0, 128});
            }),
            "rows cannot be cut at 64: a scale of fp8_block covers 128 of them");
}

}  // namespace
}  // namespace sluice::weights
