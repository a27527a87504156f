// SPDX-License-Identifier: Apache-2.0
// FP8 per token in one launch, where the warpgroup that completes a tile rounds its rows: the bits of a kernel between
// two launches, and values within the bounds of the double-precision reference.
#include <optional>

#include "tests/kernels_sm90/device_problem.h"
#include "tests/kernels_sm90/graph.h"

namespace sluice::test {
namespace {

struct Size {
  int64_t tokens;
  int experts, top_k;
  int64_t inter;
};

Case case_of(const Size& s, bool f32_sums, int64_t hidden = 96) {
  Case c;
  c.spec.experts = s.experts;
  c.spec.top_k = s.top_k;
  c.spec.hidden = hidden;
  c.spec.inter = s.inter;
  c.spec.weights = format::Format::fp8_channel;
  c.spec.inputs = format::InputFormat::fp8_token;
  c.spec.fp8_f32_sums = f32_sums;
  c.tokens = s.tokens;
  return c;
}

// The tiles of an operand that complete the rows of a layer.
std::vector<sm90::Instance> completing(const MoeSpec& s) {
  std::vector<sm90::Instance> out;
  const auto operand = sm90::gemm_problem(s, 1).operand;
  for (const sm90::Instance& i : sm90::instances())
    if (i.operand == operand && sm90::completes_rows(s, operand, i.max_n)) out.push_back(i);
  return out;
}

// Which layers and tiles: a tile of more rows rounds shorter rows, and rows come in whole eights.
TEST(CompleteRows, TakesShortRowsAndNarrowTiles) {
  for (bool f32_sums : {false, true})
    for (const int64_t inter : {8, 64, 768, 1856, 2048, 2056, 2688, 4096}) {
      MoeSpec s = case_of({8, 8, 2, inter}, f32_sums).spec;
      const size_t narrow = 2, all = f32_sums ? 2 : 3;  // of 16 rows (float32 sums: 32) with one and two blocks; of 64
      EXPECT_EQ(completing(s).size(), inter <= 2048 ? all : narrow) << inter;
      s.inputs = format::InputFormat::fp8_static;
      EXPECT_TRUE(completing(s).empty()) << inter;
    }
  EXPECT_TRUE(completing(case_of({8, 8, 2, 100}, false).spec).empty());
  EXPECT_TRUE(completing(case_of({8, 8, 2, 4104}, false).spec).empty());
}

TEST(CompleteRows, EqualsAKernelBetweenTwoLaunchesAndTheReference) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  constexpr activation::Activation kActs[] = {activation::Activation::swiglu, activation::Activation::relu2,
                                              activation::Activation::gelu, activation::Activation::geglu};
  constexpr int64_t kReferenceProducts = 15'000'000;  // the reference takes a second for these
  Excursion all;
  int cases = 0;
  for (const Size& size : {Size{1, 4, 2, 768},
                           {2, 4, 1, 64},
                           {3, 16, 8, 192},
                           {8, 16, 8, 768},
                           {17, 24, 22, 1856},
                           {64, 16, 8, 192},
                           {64, 32, 8, 768},
                           {64, 24, 22, 2688},
                           {256, 8, 1, 192},
                           {256, 32, 8, 768},
                           {256, 16, 1, 1856},
                           {5, 4, 2, 1024},
                           {5, 4, 2, 1032},
                           {5, 4, 2, 2048},
                           {9, 4, 2, 2056},
                           {6, 3, 2, 4096},
                           {7, 4, 2, 8},
                           {40, 2, 2, 200}})
    for (bool f32_sums : {false, true}) {
      Case c = case_of(size, f32_sums);
      c.spec.act = kActs[cases % 4];
      if (cases % 3 == 1) c.spec.weights = format::Format::fp8_tensor;
      if (cases % 5 == 2) c.spec.dtype = DType::f32;
      c.spec.finalize = cases % 7 != 3;
      c.spec.bias = cases % 4 == 1;  // then swiglu and relu2 are not activated in registers
      ++cases;
      SCOPED_TRACE(c.name() + " T=" + std::to_string(c.tokens));
      const Problem p = make_problem(c, rng);
      DeviceProblem d(p);
      const auto moe = prepared(p);
      const auto tiles = completing(c.spec);
      ASSERT_FALSE(tiles.empty());
      std::optional<ReferenceMoe> reference;
      for (const sm90::Instance& i : tiles)
        for (int splits : {1, 2}) {
          const auto fused = d.run(*moe, {i.name(), {splits, 1}});
          ASSERT_EQ(fused, d.run(*moe, {i.name(), {splits, 1}, true})) << i.name() << ", K in " << splits;
          ASSERT_EQ(fused, d.run(*moe, {i.name(), {splits, 1}}, false)) << i.name() << " without dependent launch";
          if (splits > 1 || size.tokens * size.top_k * size.inter * c.spec.hidden > kReferenceProducts) continue;
          Excursion here;
          if (!reference) reference = reference_of(p, d);
          here.add(*reference, fused);
          ASSERT_LE(here.worst, 1) << i.name();
          all.worst = std::max(all.worst, here.worst), all.values += here.values, all.equal += here.equal;
        }
    }
  all.print("rows completed in the grouped GEMM");
}

// Experts elsewhere, absent ones, one for all tokens (many tiles of one expert), none at all.
TEST(CompleteRows, EveryRouting) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (bool f32_sums : {false, true})
    for (Pattern pattern : {Pattern::distinct, Pattern::one, Pattern::absent, Pattern::none})
      for (int64_t tokens : {2, 40, 150}) {
        Case c = case_of({tokens, 12, 4, 264}, f32_sums);
        c.choice = Choice::unpacked;
        c.pattern = pattern;
        c.spec.routed = true;
        c.spec.local_offset = 4;
        c.spec.local_experts = 5;
        c.spec.finalize = tokens != 40;
        SCOPED_TRACE(c.name() + " T=" + std::to_string(tokens));
        const Problem p = make_problem(c, rng);
        DeviceProblem d(p);
        const auto moe = prepared(p);
        std::optional<ReferenceMoe> reference;
        for (const sm90::Instance& i : completing(c.spec)) {
          const auto fused = d.run(*moe, {i.name(), {1, 1}});
          ASSERT_EQ(fused, d.run(*moe, {i.name(), {1, 1}, true})) << i.name();
          if (!reference) reference = reference_of(p, d);
          Excursion e;
          e.add(*reference, fused);
          ASSERT_LE(e.worst, 1) << i.name();
        }
      }
  Case c = case_of({21, 8, 1, 192}, false);  // weights that multiply the input
  c.spec.routing = routing::Method::llama4;
  c.spec.weight_on_input = true;
  const Problem p = make_problem(c, rng);
  DeviceProblem d(p);
  const auto moe = prepared(p);
  for (const sm90::Instance& i : completing(c.spec))
    ASSERT_EQ(d.run(*moe, {i.name(), {1, 1}}), d.run(*moe, {i.name(), {1, 1}, true})) << i.name();
}

// Infinite and NaN activations: a row's scale is then FLT_MAX / 448 or NaN, as in a kernel between the launches.
TEST(CompleteRows, InfinityAndNan) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (bool f32_sums : {false, true}) {
    Case c = case_of({24, 4, 2, 264}, f32_sums);
    c.spec.bias = true;
    Problem p = make_problem(c, rng);
    p.weights.bias_up.as<float>()[3] = INFINITY;
    p.weights.bias_up.as<float>()[p.spec.inter + 200] = NAN;
    DeviceProblem d(p);
    const auto moe = prepared(p);
    for (const sm90::Instance& i : completing(c.spec)) {
      d.run(*moe, {i.name(), {1, 1}});
      const auto fused = download<uint16_t>(d.output);
      d.run(*moe, {i.name(), {1, 1}, true});
      ASSERT_EQ(fused, download<uint16_t>(d.output)) << i.name();
    }
  }
}

// The counters of a tile are cleared by every call: replays of one graph with other counts of tokens, and many calls
// one after the other, in the tiles that the heuristic takes. 128 experts, so that many tiles are under way at once.
TEST(CompleteRows, ReplaysAndManyCallsEqualTwoLaunches) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (bool f32_sums : {false, true}) {
    const int64_t most = 256;
    const Case c = case_of({most, 128, 8, 768}, f32_sums, 256);
    const Problem p = make_problem(c, rng);
    const auto moe = prepared(p);
    DeviceProblem d(p);
    for (int64_t captured : {2, 8, 64, 256}) {
      SCOPED_TRACE(c.name() + " up to " + std::to_string(captured));
      const sm90::GemmChoice choice = moe->choice(captured);
      ASSERT_TRUE(sm90::completes_rows(c.spec, choice.instance.operand, choice.instance.max_n));
      const sm90::GemmForce separate{choice.instance.name(), {choice.splits[0], choice.splits[1]}, true};
      const sm90::DeviceBuffer workspace = poisoned(moe->workspace_bytes(captured)),
                               other = poisoned(moe->workspace_bytes(captured, separate)), count(4);
      OwnStream stream;
      sm90::MoeCall call = d.call;
      call.tokens = captured;
      call.num_tokens = count.as<int32_t>();
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      sm90::MoeCall two = call;
      two.force = separate;
      two.workspace = other.data();
      two.workspace_size = other.bytes();
      const Graph graph(stream.get, [&] { moe->run(call, stream.get); });
      for (const int64_t tokens : {captured, int64_t{1}, captured - 1, int64_t{0}, captured / 2, captured}) {
        const auto n = static_cast<int32_t>(tokens);
        cuda(cudaMemcpy(count.data(), &n, 4, cudaMemcpyHostToDevice));
        poison(d.output);
        moe->run(two, stream.get);
        const auto expected = download<uint16_t>(d.output);
        for (int i = 0; i < 20; ++i) {
          poison(d.output);
          graph.replay(stream.get);
          ASSERT_EQ(download<uint16_t>(d.output), expected) << n << " tokens, replay " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
