// SPDX-License-Identifier: Apache-2.0
// Tensor and expert parallelism, padding and preparation through every backend that keeps its memory on the host: the
// ranks' outputs add up to the undivided output, and padding or preparing again changes no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "moe/backends.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"
#include "weights/pad.h"
#include "weights/shard.h"

namespace sluice::test {
namespace {

using format::Format;
using format::InputFormat;

// Whole scale groups, as backends take them.
int64_t unit_of(Format f) {
  const format::FormatInfo i = format::info(f);
  return i.group_k > 1 && i.group_n == 1 ? i.group_k : 1;
}

// The inputs whose rounding does not look across a cut. fp8_token and nvfp4_token take one scale from a whole row of I;
// there each rank rounds its own part of the row, as every tensor-parallel stack does, and the sums differ by that.
bool separable(InputFormat f) { return f != InputFormat::fp8_token && f != InputFormat::nvfp4_token; }

struct Result {
  std::vector<float> output;
  moe::Trace trace;
};

Result run(const moe::Backend& backend, Context& ctx, const Problem& p, const MoeSpec& spec,
           const weights::ExpertWeights& w, const Tensor& hidden, bool trace = false) {
  const auto layer = backend.prepare(ctx, spec, w);
  Tensor out(spec.dtype, {p.tokens, spec.hidden}), workspace(DType::u8, {layer->workspace_bytes(p.tokens)});
  std::memset(out.data(), 0xff, static_cast<size_t>(out.bytes()));
  std::memset(workspace.data(), 0xff, static_cast<size_t>(workspace.bytes()));
  Result r;
  moe::MoeArgs args = p.args();
  args.hidden = hidden.data();
  args.output = out.data();
  args.workspace = workspace.data();
  args.workspace_size = workspace.bytes();
  if (trace) args.trace = &r.trace;
  layer->run(ctx, args);
  for (int64_t i = 0; i < out.elements(); ++i)
    r.output.push_back(spec.dtype == DType::bf16 ? bf16_to_float(out.as<bf16_t>()[i]) : out.as<float>()[i]);
  return r;
}

class Shards : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (backend().name() == "sm90") GTEST_SKIP() << "tests/kernels_sm90 covers the backend in device memory";
  }
  const moe::Backend& backend() const { return *moe::backends()[GetParam()]; }
  Problem problem(MoeSpec s, int64_t tokens) {
    Case c;
    c.spec = s;
    c.spec.routed = true;
    c.spec.bias = true;
    c.choice = Choice::unpacked;
    c.spec.tokens = c.tokens = tokens;
    return make_problem(c, rng_);
  }
  // How far two float32 evaluations of the same sum over I, K and the bias may be apart: both err by at most
  // sum_error() of the sum of magnitudes, which the undivided run's own rounded activations give.
  std::vector<double> bounds(const Problem& p, const Result& whole) const {
    const MoeSpec& s = p.spec;
    const Tensor down = weights::dequantize(p.weights.down);
    const auto* ids = p.ids.as<int32_t>();
    const auto* router = p.given_weights.as<float>();
    std::vector<double> out;
    const double unit = 2 * Arithmetic{}.sum_error(static_cast<double>(s.inter * s.top_k + 1));
    for (int64_t t = 0; t < p.tokens; ++t)
      for (int64_t h = 0; h < s.hidden; ++h) {
        double magnitude = 0;
        for (int64_t k = 0; k < s.top_k; ++k) {
          const int64_t slot = t * s.top_k + k, e = ids[slot];
          double row = std::fabs(p.weights.bias_down.as<float>()[e * s.hidden + h]);
          for (int64_t i = 0; i < s.inter; ++i)
            row += std::fabs(static_cast<double>(whole.trace.activated.as<float>()[slot * s.inter + i]) *
                             down.as<float>()[(e * s.hidden + h) * s.inter + i]);
          magnitude += std::fabs(router[slot]) * row;
        }
        out.push_back(unit * magnitude);
      }
    return out;
  }
  void expect_sum_of_ranks(const Problem& p, int tp, int ep, const Result& whole, const std::vector<double>& bound) {
    std::vector<double> sum(whole.output.size(), 0.0);
    for (int r = 0; r < tp; ++r)
      for (int q = 0; q < ep; ++q) {
        MoeSpec s = p.spec;
        weights::ExpertWeights part = weights::shard(p.weights, {r, tp, q, ep}, s.inputs);
        if (part.up.rows == 0 || part.up.experts == 0) continue;  // more ranks than units: this one has nothing to add
        part = weights::pad(part, unit_of(s.weights));
        s.inter = part.up.rows;
        s.local_offset = static_cast<int>(weights::part_of(s.experts, 1, q, ep).begin);
        s.local_experts = static_cast<int>(part.up.experts);
        const Result y = run(backend(), ctx_, p, s, part, p.hidden_tensor);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += y.output[i];
      }
    for (size_t i = 0; i < sum.size(); ++i)
      ASSERT_NEAR(sum[i], whole.output[i], bound[i]) << to_string(p.spec) << ": tp " << tp << ", ep " << ep;
  }

  std::mt19937 rng_ = rng();
  ThreadPool pool_{2};
  Context ctx_{pool_};
};

TEST_P(Shards, OutputsAddUpForEveryFormatActivationAndGrid) {
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (const auto& [act, act_name] : activation::kActivations) {
        if (!format::fits(f, inputs) || !separable(inputs)) continue;
        MoeSpec s;
        s.experts = 6;
        s.top_k = 3;
        s.hidden = 64;
        s.inter = unit_of(f) > 1 ? 160 : 163;
        s.weights = f;
        s.inputs = inputs;
        s.act = act;
        s.dtype = DType::f32;
        const Problem p = problem(s, 3);
        if (!backend().supports(p.spec)) continue;
        const Result whole = run(backend(), ctx_, p, p.spec, p.weights, p.hidden_tensor, true);
        const std::vector<double> bound = bounds(p, whole);
        for (int tp : {1, 2, 3, 4, 8})
          for (int ep : {1, 2, 4}) ASSERT_NO_FATAL_FAILURE(expect_sum_of_ranks(p, tp, ep, whole, bound));
      }
}

// 7688 / 8 = 961, 1856 / 8 = 232, 2688 / 8 = 336, 768 / 8 = 96 and odd small ones, up to whole scale groups: what
// loaders pad a short last group to (tests/weights: ShortGroupsArePaddedForTheKernels).
TEST_P(Shards, PublishedAndOddSizes) {
  for (const auto& [f, name] : format::kFormats)
    for (const int64_t inter : {7688, 1856, 2688, 768, 961, 17, 5}) {
      MoeSpec s;
      s.experts = 2;
      s.top_k = 2;
      s.hidden = 32;
      s.inter = (inter + unit_of(f) - 1) / unit_of(f) * unit_of(f);
      s.weights = f;
      s.inputs = separable(format::info(f).input) ? format::info(f).input : InputFormat::fp8_static;
      s.act = inter == 768 ? activation::Activation::swiglu : activation::Activation::relu2;
      s.dtype = DType::f32;
      const Problem p = problem(s, 2);
      const Result whole = run(backend(), ctx_, p, p.spec, p.weights, p.hidden_tensor, true);
      ASSERT_NO_FATAL_FAILURE(expect_sum_of_ranks(p, 8, 1, whole, bounds(p, whole)));
    }
}

TEST_P(Shards, PaddingChangesNoBit) {
  int cases = 0;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (const auto& [act, act_name] : activation::kActivations)
        for (DType dtype : {DType::bf16, DType::f32}) {
          if (!format::fits(f, inputs)) continue;
          const int64_t unit = unit_of(f);
          MoeSpec s;
          s.experts = 3;
          s.top_k = 2;
          s.hidden = unit > 1 ? unit * 3 : 34;
          s.inter = unit > 1 ? unit * 5 : 131;
          s.weights = f;
          s.inputs = inputs;
          s.act = act;
          s.dtype = dtype;
          const Problem p = problem(s, 4);
          if (!backend().supports(p.spec)) continue;
          const Result plain = run(backend(), ctx_, p, p.spec, p.weights, p.hidden_tensor);
          const weights::ExpertWeights wide = weights::pad(p.weights, 128, 128);
          MoeSpec w = p.spec;
          w.inter = wide.up.rows;
          w.hidden = wide.up.cols;
          Tensor hidden = Tensor(dtype, {p.tokens, w.hidden}).zero();
          for (int64_t t = 0; t < p.tokens; ++t)
            std::memcpy(hidden.rows(t, t + 1).data(), p.hidden_tensor.rows(t, t + 1).data(),
                        static_cast<size_t>(s.hidden * bytes_of(dtype)));
          const Result padded = run(backend(), ctx_, p, w, wide, hidden);
          for (int64_t t = 0; t < p.tokens; ++t) {
            const auto *a = plain.output.data() + t * s.hidden, *b = padded.output.data() + t * w.hidden;
            ASSERT_EQ(0, std::memcmp(a, b, static_cast<size_t>(s.hidden) * sizeof(float))) << to_string(p.spec);
            for (int64_t h = s.hidden; h < w.hidden; ++h) ASSERT_EQ(b[h], 0.0f) << to_string(p.spec);
          }
          ++cases;
        }
  std::printf("%d cases\n", cases);
}

// Preparation reads its weights and leaves them as they are; a second one gives the same layer.
TEST_P(Shards, PreparingTwiceIsPreparingOnce) {
  const auto bytes = [](const weights::ExpertWeights& w) {
    std::string all;
    for (const auto* q : {&w.up, &w.gate, &w.down})
      for (const Tensor* t : {&q->codes, &q->scales, &q->global})
        if (!t->empty()) all.append(static_cast<const char*>(t->data()), static_cast<size_t>(t->bytes()));
    return all;
  };
  for (const auto& [f, name] : format::kFormats) {
    MoeSpec s;
    s.experts = 4;
    s.top_k = 2;
    s.hidden = 64;
    s.inter = 96;
    s.weights = f;
    s.inputs = format::info(f).input;
    const Problem p = problem(s, 5);
    const std::string before = bytes(p.weights);
    const Result first = run(backend(), ctx_, p, p.spec, p.weights, p.hidden_tensor);
    EXPECT_EQ(bytes(p.weights), before) << name;
    EXPECT_EQ(run(backend(), ctx_, p, p.spec, p.weights, p.hidden_tensor).output, first.output) << name;
  }
}

std::string backend_name(const ::testing::TestParamInfo<size_t>& param) {
  return std::string(moe::backends()[param.param]->name());
}
INSTANTIATE_TEST_SUITE_P(Moe, Shards, ::testing::Range(size_t{0}, moe::backends().size()), backend_name);

}  // namespace
}  // namespace sluice::test
