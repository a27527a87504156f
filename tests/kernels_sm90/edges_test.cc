// SPDX-License-Identifier: Apache-2.0
// Sizes and routings at the edges, on the tiles that the heuristic chooses; the many small cases of
// tests/conformance run on this backend too.
#include "base/math.h"
#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {
namespace {

using format::Format;

MoeSpec spec_of(Format f, int64_t hidden, int64_t inter, int experts, int top_k) {
  MoeSpec s;
  s.experts = experts;
  s.top_k = top_k;
  const format::FormatInfo i = format::info(f);
  const int64_t unit = i.group_k > 1 && i.group_n == 1 ? i.group_k : 1;
  s.hidden = round_up<int64_t>(hidden, unit);
  s.inter = round_up<int64_t>(inter, unit);
  s.weights = f;
  s.inputs = i.input;
  return s;
}

void check_case(const Case& c, std::mt19937& rng, Excursion& all) {
  SCOPED_TRACE(c.name());
  const Problem p = make_problem(c, rng);
  DeviceProblem d(p);
  const auto got = d.run(*prepared(p));
  Excursion here;
  here.add(reference_of(p, d), got);
  EXPECT_LE(here.worst, 1);
  all.worst = std::max(all.worst, here.worst);
  all.values += here.values;
  all.equal += here.equal;
}

TEST(Edges, OddSizes) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [hidden, inter] : {std::pair<int64_t, int64_t>{96, 961},
                                        {232, 96},
                                        {64, 232},
                                        {96, 248},
                                        {704, 64},
                                        {64, 704},
                                        {160, 1856},
                                        {2688, 64},
                                        {96, 2688},
                                        {1, 1},
                                        {130, 65}})
      for (const auto act : {activation::Activation::swiglu, activation::Activation::relu2}) {
        Case c{spec_of(f, hidden, inter, 3, 2), 5, Choice::f32_logits, Pattern::distinct};
        c.spec.act = act;
        check_case(c, rng, all);
        if (HasFailure()) return;
      }
  all.print("odd sizes");
}

TEST(Edges, ManyExpertsAndSlots) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, name] : format::kFormats)
    for (int64_t tokens : {1, 3, 200}) {
      Case c{spec_of(f, 64, 96, 512, 22), tokens, Choice::bf16_logits, Pattern::distinct};
      c.spec.act = activation::Activation::relu2;
      c.spec.routing = routing::Method::deepseek_v3;
      c.spec.routed_scale = 5;
      check_case(c, rng, all);
      c.spec.top_k = 1;
      c.spec.local_offset = 100;
      c.spec.local_experts = 64;
      check_case(c, rng, all);
      if (HasFailure()) return;
    }
  all.print("K = 22 and 1 of 512 experts");
}

TEST(Edges, OneExpertNoneAndAbsent) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, name] : format::kFormats)
    for (Pattern pattern : {Pattern::one, Pattern::absent, Pattern::none})
      for (bool finalize : {true, false})
        for (int64_t tokens : {0, 1, 40, 350}) {
          Case c{spec_of(f, 128, 96, 12, 4), tokens, Choice::unpacked, pattern};
          c.spec.routed = true;
          c.spec.finalize = finalize;
          c.spec.local_offset = 4;
          c.spec.local_experts = 5;
          check_case(c, rng, all);
          if (HasFailure()) return;
        }
  all.print("one, absent and no local experts");
}

// An expert's tiles beyond its first one have counters too, which the one kernel before the GEMMs clears.
TEST(Edges, RepeatedIdsOfOneTokenFillSeveralTiles) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, name] : format::kFormats)
    for (int locals : {1, 3}) {
      Case c{spec_of(f, 128, 96, 40, 32), 1, Choice::unpacked, Pattern::one};
      c.spec.routed = true;
      c.spec.local_offset = 4;
      c.spec.local_experts = locals;
      SCOPED_TRACE(c.name());
      const Problem p = make_problem(c, rng);
      DeviceProblem d(p);
      const auto moe = prepared(p);
      for (int splits : {1, 2}) {  // forced, so that the kernels of one token do not take the call
        const auto got = d.run(*moe, {{}, {splits, splits}});
        Excursion here;
        here.add(reference_of(p, d), got);
        EXPECT_LE(here.worst, 1) << "splits " << splits;
        all.worst = std::max(all.worst, here.worst);
        all.values += here.values;
        all.equal += here.equal;
      }
      if (HasFailure()) return;
    }
  all.print("repeated ids of one token");
}

// Calls of different shapes and formats over one workspace that nobody clears: nothing of an earlier call may show.
TEST(Edges, AlternatingShapesOverOneWorkspace) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  struct Item {
    std::unique_ptr<sm90::FusedMoe> moe;
    std::unique_ptr<DeviceProblem> device;
    std::vector<float> expected;
  };
  std::vector<Item> items;
  int64_t bytes = 0;
  for (const auto& [f, name] : format::kFormats)
    for (int64_t tokens : {1, 70, 400}) {
      const Problem p = make_problem({spec_of(f, 96 + tokens / 70 * 32, 160, 8 + static_cast<int>(tokens) / 20, 3),
                                      tokens, Choice::f32_logits, Pattern::distinct},
                                     rng);
      Item i{prepared(p), std::make_unique<DeviceProblem>(p), {}};
      i.expected = i.device->run(*i.moe);
      bytes = std::max(bytes, i.moe->workspace_bytes(tokens));
      items.push_back(std::move(i));
    }
  const sm90::DeviceBuffer workspace = poisoned(bytes);
  for (int round = 0; round < 3; ++round) {
    std::shuffle(items.begin(), items.end(), rng);
    for (Item& i : items) {
      sm90::MoeCall call = i.device->call;
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      i.moe->run(call, nullptr);
      ASSERT_EQ(widened(i.device->spec.dtype, i.device->output), i.expected) << to_string(i.device->spec);
    }
  }
}

// A workspace of the size for T tokens serves every smaller call: nothing is written after its end.
TEST(Edges, SmallerCallsStayInTheWorkspace) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  constexpr int64_t kMost = 384, kAfter = int64_t{32} << 20;
  for (const auto& [f, name] : format::kFormats) {
    const Problem p = make_problem({spec_of(f, 2048, 768, 4, 2), kMost, Choice::f32_logits, Pattern::distinct}, rng);
    const auto moe = prepared(p);
    const DeviceProblem d(p);
    const int64_t bytes = moe->workspace_bytes(kMost);
    const sm90::DeviceBuffer memory = poisoned(bytes + kAfter);
    sm90::MoeCall call = d.call;
    call.workspace = memory.data();
    call.workspace_size = bytes;
    for (int64_t tokens : {1, 2, 7, 8, 16, 33, 48, 64, 65, 128, 342, 384}) {
      call.tokens = tokens;
      moe->run(call, nullptr);
    }
    std::vector<uint8_t> after(static_cast<size_t>(kAfter));
    cuda(cudaMemcpy(after.data(), memory.as<uint8_t>() + bytes, after.size(), cudaMemcpyDeviceToHost), name.data());
    ASSERT_EQ(std::count(after.begin(), after.end(), 0xff), kAfter) << name;
    call.workspace_size = moe->workspace_bytes(kMost, {}) - 1;
    EXPECT_THROW(moe->run(call, nullptr), Error) << name;
  }
}

// T * K * H above 2^31: tokens repeat with a period, so their outputs must.
TEST(Edges, MoreThanTwoToThe31Results) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  size_t free = 0, total = 0;
  cuda(cudaMemGetInfo(&free, &total));
  if (free < (size_t{40} << 30)) GTEST_SKIP() << "40 GB of device memory are needed, " << (free >> 30) << " are free";
  std::mt19937 rng = test::rng();
  constexpr int64_t kPeriod = 512, kTokens = 131072, kHidden = 2112;
  for (Format f : {Format::bf16, Format::fp8_block, Format::nvfp4}) {
    MoeSpec s = spec_of(f, kHidden, 32, 16, 8);
    s.deterministic = true;
    ASSERT_GT(kTokens * s.top_k * s.hidden, int64_t{1} << 31);
    const Problem p = make_problem({s, kPeriod, Choice::f32_logits, Pattern::distinct}, rng);
    const auto moe = prepared(p);
    DeviceProblem few(p);
    few.run(*moe);
    const auto expected = download<uint16_t>(few.output);
    const auto repeated = [&](const sm90::DeviceBuffer& from) {
      sm90::DeviceBuffer to(from.bytes() * (kTokens / kPeriod));
      for (int64_t i = 0; i < kTokens / kPeriod; ++i)
        cuda(cudaMemcpy(to.as<char>() + i * from.bytes(), from.data(), static_cast<size_t>(from.bytes()),
                        cudaMemcpyDeviceToDevice));
      return to;
    };
    const sm90::DeviceBuffer hidden = repeated(few.hidden), logits = repeated(few.logits);
    const sm90::DeviceBuffer output = poisoned(kTokens * s.hidden * 2), workspace(moe->workspace_bytes(kTokens));
    sm90::MoeCall call = few.call;
    call.tokens = kTokens;
    call.hidden = hidden.data();
    call.logits = logits.data();
    call.output = output.data();
    call.workspace = workspace.data();
    call.workspace_size = workspace.bytes();
    call.chosen_ids = nullptr;
    call.chosen_weights = nullptr;
    moe->run(call, nullptr);
    const auto got = download<uint16_t>(output);
    for (size_t i = 0; i < got.size(); i += expected.size())
      ASSERT_EQ(0, std::memcmp(got.data() + i, expected.data(), expected.size() * 2))
          << format::info(f).name << " tokens from " << i / static_cast<size_t>(s.hidden);
  }
}

}  // namespace
}  // namespace sluice::test
