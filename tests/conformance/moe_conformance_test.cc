// SPDX-License-Identifier: Apache-2.0
// Every backend of the list over every case, against the double-precision reference. A backend that refuses a case is
// skipped for it, and the refusals are counted and printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "tests/conformance/backend_call.h"
#include "tests/support/random.h"
#include "tests/support/reference_moe.h"
#include "tests/support/reference_routing.h"

namespace sluice::test {
namespace {

// What was chosen: exact where float32 can tell, weights within their own rounding.
void check_routing(const Problem& p, const Call& c) {
  const MoeSpec& s = p.spec;
  const auto k = static_cast<size_t>(s.top_k);
  if (s.routed) {
    for (size_t i = 0; i < c.ids.size(); ++i) {
      const int32_t given = p.ids.as<int32_t>()[i];
      const int32_t id = p.given_weights.empty() ? given >> 16 : given;
      const bool there = id >= 0 && id < s.experts;
      ASSERT_EQ(c.ids[i], there ? id : -1);
      const float w =
          p.given_weights.empty() ? bf16_to_float(static_cast<bf16_t>(given & 0xffff)) : widened(p.given_weights)[i];
      ASSERT_EQ(c.weights[i], s.routed_scale * w);
    }
    return;
  }
  const std::vector<float> logits = widened(p.logits), bias = p.bias.empty() ? std::vector<float>{} : widened(p.bias);
  const auto experts = static_cast<size_t>(s.experts);
  for (size_t t = 0; t < static_cast<size_t>(p.tokens); ++t) {
    const std::vector<double> row(logits.begin() + static_cast<std::ptrdiff_t>(t * experts),
                                  logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * experts));
    const auto expected = reference_route(s.routing, s.routing_params(), row, {bias.begin(), bias.end()});
    if (!expected.certain) continue;
    for (size_t i = 0; i < k; ++i) {
      ASSERT_EQ(c.ids[t * k + i], expected.ids[i]) << "token " << t << " slot " << i;
      const double w = expected.weights[i];
      ASSERT_NEAR(c.weights[t * k + i], w,
                  (s.dtype == DType::bf16 ? 0x1p-8 : 0x1p-22) * std::fabs(w) + expected.weight_error);
    }
  }
}

// Largest excursion from the reference in units of what is allowed; above 1 is a failure.
struct Score {
  double worst = 0;
  int64_t values = 0, equal = 0;
  void add(double got, double expected, double lowest, double highest) {
    ++values;
    equal += got == expected;
    const double room = got < expected ? expected - lowest : highest - expected;
    double ratio = got == expected ? 0 : std::fabs(got - expected) / std::max(room, 1e-300);
    if (std::isnan(got)) ratio = INFINITY;
    worst = std::max(worst, ratio);
  }
  void add(const Score& other) {
    worst = std::max(worst, other.worst);
    values += other.values;
    equal += other.equal;
  }
};

Score compare(const ReferenceMoe& r, const std::vector<float>& output) {
  Score score;
  EXPECT_EQ(output.size(), r.output.size());
  for (size_t i = 0; i < r.output.size(); ++i) score.add(output[i], r.output[i], r.lowest[i], r.highest[i]);
  return score;
}

Score compare(const std::vector<Bounded>& expected, const Tensor& got) {
  Score score;
  if (got.empty()) return score;
  const std::vector<float> values = widened(got);
  EXPECT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Bounded& e = expected[i];
    const double read = 0x1p-22 * (std::fabs(e.value) + e.slack) + 1e-44;  // code times two scales in float32
    score.add(values[i], e.value, e.value - e.slack - read, e.value + e.slack + read);
  }
  return score;
}

// A token with no expert here need not be rounded: its row of the trace is whatever it is.
std::vector<Bounded> input_where_used(const Problem& p, const ReferenceMoe& r, const Tensor& got) {
  std::vector<Bounded> input;
  const auto hidden = static_cast<size_t>(p.spec.hidden), k = static_cast<size_t>(p.spec.top_k);
  for (size_t i = 0; i < r.input.size(); ++i) {
    const auto* first = r.local.data() + i / hidden * k;
    const bool used = std::any_of(first, first + k, [](char here) { return here != 0; });
    input.push_back({used ? r.input[i] : static_cast<double>(got.as<float>()[i]), 0});
  }
  return input;
}

class Conformance : public ::testing::TestWithParam<size_t> {
 protected:
  const moe::Backend& backend() const { return *moe::backends()[GetParam()]; }
  void run_all(const std::vector<Case>& cases, std::mt19937& rng);
  // docs/gpu.md
  Arithmetic arithmetic(const MoeSpec& s) const {
    Arithmetic a;
    if (format::is_fp8(s.weights) && !s.fp8_f32_sums && backend().name() == "sm90")
      a.product_error = kFp8TensorCoreError;
    return a;
  }
  ThreadPool pool_{2};
  Context ctx_{pool_};
};

// Runs the cases that the backend takes, prints how near it is, and skips when it takes none.
void Conformance::run_all(const std::vector<Case>& cases, std::mt19937& rng) {
  std::map<std::string, int> refused;
  Score total;
  int run = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name());
    if (const Support s = backend().supports(c.spec); !s) {
      ++refused[s.reason];
      continue;
    }
    const Problem p = make_problem(c, rng);
    const auto layer = backend().prepare(ctx_, p.spec, p.weights);
    const Call got = call(*layer, p, ctx_);
    ASSERT_NO_FATAL_FAILURE(check_routing(p, got));
    const Score score =
        compare(reference_moe(p.spec, p.weights, p.hidden, got.ids, got.weights, arithmetic(p.spec)), got.output);
    ASSERT_LE(score.worst, 1) << "backend " << backend().name();
    total.add(score);
    ++run;
    // A second call gives the same bits.
    const Call again = call(*layer, p, ctx_);
    ASSERT_EQ(bits_of(again.output), bits_of(got.output));
  }
  const std::string name(backend().name());
  // What every backend takes; one that refuses it lacks a device, or was not compiled.
  if (const Support s = backend().supports(parse_moe_spec("experts=4 top_k=2 hidden=128 inter=128 weights=bf16")); !s)
    GTEST_SKIP() << name << " cannot run here: " << s.reason;
  if (run == 0) GTEST_SKIP() << name << " refuses every case: " << refused.begin()->first;
  std::printf("%s: %d cases, largest excursion %.3f of what is allowed, %.2f %% of %lld values equal the reference\n",
              name.c_str(), run, total.worst,
              100.0 * static_cast<double>(total.equal) / static_cast<double>(total.values),
              static_cast<long long>(total.values));
  for (const auto& [reason, count] : refused) std::printf("  refused %d: %s\n", count, reason.c_str());
}

TEST_P(Conformance, EveryCase) {
  std::mt19937 rng = test::rng();
  run_all(conformance_cases(), rng);
}

TEST_P(Conformance, RandomCases) {
  std::mt19937 rng = test::rng();
  std::vector<Case> cases;
  for (int i = 0; i < 60; ++i) cases.push_back(random_case(rng));
  run_all(cases, rng);
}

// A call may leave the K results of a token to its caller. Added up there, k ascending with fused multiply-adds, they
// give the bits of a call that adds them; and they are those of a layer that never does.
TEST_P(Conformance, ACallMayLeaveTheSumToItsCaller) {
  std::mt19937 rng = test::rng();
  for (const char* line :
       {"experts=16 top_k=4 hidden=128 inter=96 weights=bf16", "experts=8 top_k=3 hidden=96 inter=64",
        "experts=12 top_k=5 hidden=128 inter=96 weights=bf16 routed=1 local_offset=4 local_experts=5",
        "experts=8 top_k=2 hidden=96 inter=160 weights=fp8_block routing=deepseek_v3",
        "experts=8 top_k=1 hidden=128 inter=64 routing=llama4 weight_on_input=1 weights=mxfp4",
        "experts=8 top_k=3 hidden=96 inter=64 weights=fp8_tensor inputs=fp8_token dtype=float32"})
    for (const int64_t tokens : {1, 5, 70}) {
      Case c;
      c.spec = parse_moe_spec(line);
      if (!backend().supports(c.spec)) continue;
      c.tokens = tokens;
      if (c.spec.routed) c.choice = Choice::unpacked, c.pattern = Pattern::absent;
      SCOPED_TRACE(c.name());
      Problem p = make_problem(c, rng);
      const auto layer = backend().prepare(ctx_, p.spec, p.weights);
      const Call whole = call(*layer, p, ctx_), rows = call(*layer, p, ctx_, nullptr, nullptr, false);
      ASSERT_EQ(rows.ids, whole.ids);
      ASSERT_EQ(bits_of(rows.weights), bits_of(whole.weights));
      const auto k = static_cast<size_t>(c.spec.top_k), hidden = static_cast<size_t>(c.spec.hidden);
      for (size_t i = 0; i < whole.output.size(); ++i) {
        float sum = 0;
        for (size_t pair = i / hidden * k; pair < (i / hidden + 1) * k; ++pair) {
          const int64_t local = rows.ids[pair] - int64_t{c.spec.local_offset};
          const float v = rows.output[pair * hidden + i % hidden];
          if (rows.ids[pair] < 0 || local < 0 || local >= c.spec.locals())
            ASSERT_EQ(v, 0) << "of an expert that is not here";
          else
            sum = std::fma(c.spec.weight_on_input ? 1.0f : rows.weights[pair], v, sum);
        }
        ASSERT_EQ(whole.output[i], c.spec.dtype == DType::bf16 ? round_to_bf16(sum) : sum) << i;
      }
      p.spec.finalize = false;
      const auto never = backend().prepare(ctx_, p.spec, p.weights);
      ASSERT_EQ(bits_of(call(*never, p, ctx_).output), bits_of(rows.output));
    }
}

// Weights in memory that becomes garbage, and is freed, as soon as the layer has been prepared.
weights::ExpertWeights copied(const weights::ExpertWeights& from, std::vector<Tensor>& memory) {
  weights::ExpertWeights w = from;
  const auto copy = [&](Tensor& t) {
    if (!t.empty()) memory.push_back(t = t.clone());
  };
  for (weights::QuantTensor* q : {&w.up, &w.gate, &w.down})
    for (Tensor* t : {&q->codes, &q->scales, &q->global}) copy(*t);
  for (Tensor* t : {&w.bias_up, &w.bias_gate, &w.bias_down, &w.alpha, &w.beta, &w.limit}) copy(*t);
  return w;
}
void destroy(std::vector<Tensor>& memory) {
  for (Tensor& t : memory) std::memset(t.data(), 0xff, static_cast<size_t>(t.bytes()));
  memory.clear();
}

TEST_P(Conformance, TheWeightsAreTheLayersOwn) {
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats) {
    Case c;
    c.spec = parse_moe_spec("experts=5 top_k=2 hidden=96 inter=160 bias=1 act_params=1 weights=" + std::string(name));
    if (!backend().supports(c.spec)) continue;
    c.tokens = 7;
    const Problem first = make_problem(c, rng);
    Problem second = make_problem(c, rng);
    const auto fresh = [&](const Problem& p) { return call(*backend().prepare(ctx_, c.spec, p.weights), p, ctx_); };
    std::vector<Tensor> memory;
    const auto layer = backend().prepare(ctx_, c.spec, copied(first.weights, memory));
    destroy(memory);
    EXPECT_EQ(bits_of(call(*layer, first, ctx_).output), bits_of(fresh(first).output)) << name;
    layer->refit(ctx_, copied(second.weights, memory));
    destroy(memory);
    EXPECT_EQ(bits_of(call(*layer, second, ctx_).output), bits_of(fresh(second).output)) << name;
  }
}

// A workspace of the size of the largest call holds every smaller one, and the bytes after it stay unchanged.
TEST_P(Conformance, AWorkspaceHoldsSmallerCalls) {
  std::mt19937 rng = test::rng();
  constexpr int64_t kMost = 131, kAfter = 1 << 20;
  for (const auto& [f, name] : format::kFormats) {
    Case c;
    c.spec = parse_moe_spec("experts=9 top_k=3 hidden=768 inter=160 weights=" + std::string(name));
    if (!backend().supports(c.spec)) continue;
    c.tokens = kMost;
    const Problem all = make_problem(c, rng);
    const auto layer = backend().prepare(ctx_, c.spec, all.weights);
    const int64_t bytes = layer->workspace_bytes(kMost);
    Tensor memory = poisoned(DType::u8, {bytes + kAfter});
    for (const int64_t tokens : {int64_t{1}, int64_t{5}, int64_t{48}, int64_t{64}, kMost}) {
      EXPECT_LE(layer->workspace_bytes(tokens), bytes) << name << " T=" << tokens;
      Tensor output = poisoned(c.spec.dtype, {tokens, c.spec.hidden});
      moe::MoeArgs args = all.args();
      args.tokens = tokens;
      args.output = output.data();
      args.workspace = memory.data();
      args.workspace_size = bytes;
      layer->run(ctx_, args);
      if (bytes == 0) continue;  // the backend has its own
      args.workspace_size = layer->workspace_bytes(tokens) - 1;
      EXPECT_THROW(layer->run(ctx_, args), Error) << name << " T=" << tokens;
    }
    for (int64_t i = bytes; i < bytes + kAfter; ++i) ASSERT_EQ(memory.as<uint8_t>()[i], 0xff) << name;
  }
}

// Alternating token counts over one workspace and one layer: nothing of an earlier call may show.
TEST_P(Conformance, CallsShareAWorkspace) {
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats) {
    Case c;
    c.spec = parse_moe_spec("experts=12 top_k=3 hidden=96 inter=160 weights=" + std::string(name));
    if (!backend().supports(c.spec)) continue;
    c.tokens = 29;
    const Problem large = make_problem(c, rng);
    c.tokens = 2;
    Problem small = make_problem(c, rng);
    small.weights = large.weights;
    const auto layer = backend().prepare(ctx_, c.spec, large.weights);
    Tensor workspace = poisoned(DType::u8, {layer->workspace_bytes(29)});
    const Call fresh_large = call(*layer, large, ctx_), fresh_small = call(*layer, small, ctx_);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(call(*layer, large, ctx_, nullptr, &workspace).output, fresh_large.output) << name;
      EXPECT_EQ(call(*layer, small, ctx_, nullptr, &workspace).output, fresh_small.output) << name;
    }
  }
}

TEST_P(Conformance, TracesAreTheRoundingPoints) {
  std::mt19937 rng = test::rng();
  int traced = 0;
  for (const Case& c : conformance_cases()) {
    if (c.tokens == 0 || c.tokens > 9 || !backend().supports(c.spec) || (c.spec.hidden * c.spec.inter > 100000))
      continue;
    SCOPED_TRACE(c.name());
    const Problem p = make_problem(c, rng);
    moe::Trace trace;
    const Call got = call(*backend().prepare(ctx_, p.spec, p.weights), p, ctx_, &trace);
    if (trace.input.empty()) continue;  // a backend in device memory keeps no traces
    ++traced;
    const ReferenceMoe r = reference_moe(p.spec, p.weights, p.hidden, got.ids, got.weights);
    EXPECT_LE(compare(input_where_used(p, r, trace.input), trace.input).worst, 1) << "input";
    EXPECT_LE(compare(r.up, trace.up).worst, 1) << "up";
    EXPECT_LE(compare(r.gate, trace.gate).worst, 1) << "gate";
    EXPECT_EQ(trace.gate.empty(), !c.spec.gated());
    EXPECT_LE(compare(r.activated, trace.activated).worst, 1) << "activated";
    EXPECT_LE(compare(r.down, trace.down).worst, 1) << "down";
    if (HasFailure()) return;
  }
  if (traced == 0) GTEST_SKIP() << backend().name() << " keeps no traces here";
}

// A token's output must not depend on what else is in the batch, where the layer says so or was asked for it.
TEST_P(Conformance, ATokenAloneGivesTheSameBits) {
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats)
    for (const bool deterministic : {false, true}) {
      Case c;
      c.spec.experts = 16;
      c.spec.top_k = 4;
      c.spec.hidden = 128;
      c.spec.inter = 96;
      c.spec.weights = f;
      c.spec.inputs = f == format::Format::nvfp4 ? format::InputFormat::nvfp4_token : format::info(f).input;
      c.spec.deterministic = deterministic;
      c.tokens = 37;
      if (!backend().supports(c.spec)) continue;
      const Problem all = make_problem(c, rng);
      const auto layer = backend().prepare(ctx_, all.spec, all.weights);
      EXPECT_TRUE(layer->row_invariant() || !deterministic) << name << " on " << backend().name();
      if (!layer->row_invariant()) continue;
      const Call together = call(*layer, all, ctx_);
      for (int64_t t = 0; t < c.tokens; t += 5) {
        Problem one = all;
        one.tokens = 1;
        one.hidden_tensor = all.hidden_tensor.rows(t, t + 1);
        one.logits = all.logits.rows(t, t + 1);
        const Call alone = call(*layer, one, ctx_);
        EXPECT_EQ(0, std::memcmp(alone.output.data(), together.output.data() + t * 128, 128 * sizeof(float)))
            << name << " token " << t << " on " << backend().name();
      }
    }
}

TEST_P(Conformance, RefitEqualsAFreshLayer) {
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats) {
    Case c;
    c.spec.experts = 8;
    c.spec.top_k = 2;
    c.spec.hidden = 64;
    c.spec.inter = 64;
    c.spec.weights = f;
    c.spec.inputs = format::info(f).input;
    c.tokens = 5;
    if (!backend().supports(c.spec)) continue;
    const Problem first = make_problem(c, rng), second = make_problem(c, rng);
    const auto layer = backend().prepare(ctx_, c.spec, first.weights);
    layer->refit(ctx_, second.weights);
    const auto fresh = backend().prepare(ctx_, c.spec, second.weights);
    const Call a = call(*layer, second, ctx_), b = call(*fresh, second, ctx_);
    EXPECT_EQ(a.output, b.output) << name;
  }
}

// The bounds must notice a wrong rounding point: each pair differs in one and must not pass for the other.
TEST_P(Conformance, AnotherNumericsDoesNotPass) {
  std::mt19937 rng = test::rng();
  const auto differs = [&](const std::string& line, const std::string& run, const std::string& claimed) {
    Case c;
    c.spec = parse_moe_spec(line + " " + run);
    c.tokens = 16;
    if (!backend().supports(c.spec)) return;
    const Problem p = make_problem(c, rng);
    const Call got = call(*backend().prepare(ctx_, p.spec, p.weights), p, ctx_);
    const MoeSpec other = parse_moe_spec(line + " " + claimed);
    const auto r = reference_moe(other, p.weights, p.hidden, got.ids, got.weights);
    EXPECT_GT(compare(r, got.output).worst, 1) << run << " passes for " << claimed;
  };
  const std::string size = "experts=8 top_k=2 hidden=128 inter=128 ";
  differs(size + "weights=mxfp8", "inputs=plain", "inputs=mxfp8");
  differs(size + "weights=mxfp8", "inputs=mxfp8", "inputs=plain");
  differs(size + "weights=nvfp4", "inputs=nvfp4", "inputs=nvfp4_token");
  differs(size + "weights=nvfp4", "inputs=nvfp4_token", "inputs=plain");
  differs(size + "weights=fp8_channel", "inputs=fp8_token", "inputs=plain");
  differs(size + "weights=fp8_block", "fp8_block_trtllm=1", "");
  differs(size + "weights=fp8_block", "", "fp8_block_trtllm=1");
  differs(size + "dtype=float32 weights=mxfp4", "act=geglu", "act=geglu_tanh");
}

INSTANTIATE_TEST_SUITE_P(Moe, Conformance, ::testing::Range(size_t{0}, moe::backends().size()), backend_name);

}  // namespace
}  // namespace sluice::test
