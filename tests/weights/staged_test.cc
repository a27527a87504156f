// SPDX-License-Identifier: Apache-2.0
// Loading to a device's memory gives what loading to the host gives, bit for bit, in every layout that a checkpoint may
// have; what it cannot take it leaves to the host. The device is a stand-in whose memory is the host's.
#include "load_case.h"
#include "merged_gate_up.h"
#include "weights/requantize.h"

namespace sluice::weights {
namespace {

constexpr const char* kOnline[] = {"", "fp8", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "nvfp4_online", "mxfp4"};

class FakeStage : public DeviceStage {
 public:
  explicit FakeStage(Context& ctx) : ctx_(ctx) {}
  Tensor make(DType dtype, Shape shape) override {
    ++made;
    Tensor t(dtype, std::move(shape));
    if (t.bytes() > 0) std::memset(t.data(), 0xff, static_cast<size_t>(t.bytes()));
    return t;
  }
  int64_t room() override { return free; }
  void fill_dummy(Tensor& out, const DummyRange& range, int64_t first, int64_t stride) override {
    const int64_t matrices = out.dim(0), size = out.elements() / matrices;
    for (int64_t e = 0; e < matrices; ++e)
      for (int64_t i = 0; i < size; ++i)
        out.as<uint16_t>()[e * size + i] = float_to_bf16(dummy_value(range, e * stride + first + i));
  }
  void upload(std::span<const Copy> copies) override {
    for (const Copy& c : copies) std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
  }
  bool has_nan(const Tensor& codes) override {
    const auto* bytes = static_cast<const uint8_t*>(codes.data());
    return std::any_of(bytes, bytes + codes.bytes(), [](uint8_t b) { return (b & 0x7f) == 0x7f; });
  }
  QuantTensor quantize(Format format, const QuantTensor& w) override { return weights::quantize(ctx_, format, w); }

  int made = 0;
  int64_t free = int64_t{1} << 40;

 private:
  Context& ctx_;
};

void expect_same(const std::optional<LoadedExperts>& got, const LoadedExperts& expected) {
  ASSERT_TRUE(got);
  EXPECT_EQ(got->format, expected.format);
  EXPECT_TRUE(same_bytes(got->weights, expected.weights));
}

LoaderOptions dummies(const std::string& online) {
  LoaderOptions o;
  o.dummy = true;
  if (!online.empty()) o.online = parse_online_policy(online);
  return o;
}

TEST_F(LoadTest, StagedDummiesAreTheHosts) {
  for (const char* online : kOnline)
    for (const bool gated : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", online, gated ? "gated" : "plain"));
      const int64_t experts = 3, inter = 64, hidden = 96, rows = gated ? 2 * inter : inter;
      io::TempDir dir;
      dir.put("config.json", "{}");
      const io::Checkpoint none = io::Checkpoint::open_configs(dir.path());
      const io::Checkpoint all = none.with_tensors(
          {{kModule + ".weight", dummy_tensor(live.ctx.pool, kModule + ".weight", DType::bf16, {130, hidden})},
           {kExperts + (gated ? ".gate_up_proj" : ".up_proj"),
            dummy_tensor(live.ctx.pool, kExperts + (gated ? ".gate_up_proj" : ".up_proj"), DType::bf16,
                         {experts, rows, hidden})},
           {kExperts + ".down_proj",
            dummy_tensor(live.ctx.pool, kExperts + ".down_proj", DType::bf16, {experts, hidden, inter})}});
      Loader host(live.ctx, all, dummies(online));
      FakeStage stage(live.ctx);
      LoaderOptions options = dummies(online);
      options.stage = &stage;
      Loader device(live.ctx, none, options);
      const LoadedLinear a = device.dummy_linear(kModule, 130, hidden), b = host.linear(kModule, 130, hidden);
      EXPECT_TRUE(same_bytes(a.w, b.w));
      EXPECT_EQ(a.inputs, b.inputs);
      EXPECT_EQ(a.input_scale, b.input_scale);
      expect_same(device.dummy_experts(names_of(gated), {experts, inter, hidden}),
                  host.experts(names_of(gated), {experts, inter, hidden}));
    }
}

TEST_F(LoadTest, StagedLinearsOfEveryFormat) {
  for (const auto& [format, name] : format::kFormats) {
    Written written;
    written.config = config_for(format);
    put_matrix(written, kModule, random_quant(random, format, 1, 200, 144));
    written.tensors[kModule + ".input_scale"] = scalar(0.25f);
    FakeStage stage(live.ctx);
    LoaderOptions options;
    options.stage = &stage;
    const LoadedLinear got = load(written, options).staged_linear(kModule, 200, 144),
                       expected = load(written).linear(kModule, 200, 144);
    EXPECT_TRUE(same_bytes(got.w, expected.w)) << name;
    EXPECT_EQ(got.inputs, expected.inputs) << name;
    EXPECT_EQ(got.input_scale, expected.input_scale) << name;
  }
}

TEST_F(LoadTest, StagedExpertsOfEveryFormat) {
  const int64_t experts = 5, inter = 160, hidden = 144;
  for (const auto& [format, name] : format::kFormats)
    for (const bool gated : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", name, gated ? "gated" : "plain"));
      Written written;
      written.config = config_for(format, format == Format::nvfp4);
      put_experts(written, random_experts(random, format, experts, inter, hidden, gated, false),
                  format == Format::nvfp4);
      FakeStage stage(live.ctx);
      LoaderOptions options;
      options.stage = &stage;
      expect_same(load(written, options).staged_experts(names_of(gated), {experts, inter, hidden}),
                  load(written).experts(names_of(gated), {experts, inter, hidden}));
    }
}

TEST_F(LoadTest, StagedFusedExperts) {
  const int64_t experts = 3, inter = 128, hidden = 64;
  for (const auto& [format, name] : format::kFormats) {
    if (format == Format::nvfp4 || format == Format::fp8_tensor) continue;  // one scale for both halves
    SCOPED_TRACE(name);
    for (const GateUpOrder order : {GateUpOrder::gate_up, GateUpOrder::up_gate, GateUpOrder::interleaved}) {
      if (order == GateUpOrder::interleaved && format == Format::fp8_block) continue;
      Written written;
      written.config = config_for(format);
      const ExpertWeights w = random_experts(random, format, experts, inter, hidden, true, true);
      const QuantTensor gate_up = merge_gate_up({w.gate, w.up}, order);
      written.tensors[kExperts + ".gate_up_proj"] = gate_up.codes;
      written.tensors[kExperts + ".down_proj"] = w.down.codes;
      written.tensors[kExperts + ".gate_up_proj_bias"] = random_floats(random, {experts, 2 * inter});
      written.tensors[kExperts + ".down_proj_bias"] = random_floats(random, {experts, hidden});
      if (format != Format::bf16) {
        written.tensors[kExperts + ".gate_up_proj_scale_inv"] = gate_up.scales;
        written.tensors[kExperts + ".down_proj_scale_inv"] = w.down.scales;
      }
      ExpertNames names = names_of(true);
      names.order = order;
      FakeStage stage(live.ctx);
      LoaderOptions options;
      options.stage = &stage;
      const auto got = load(written, options).staged_experts(names, {experts, inter, hidden});
      if (order == GateUpOrder::interleaved) {
        EXPECT_FALSE(got);
        EXPECT_EQ(stage.made, 0);
      } else {
        expect_same(got, load(written).experts(names, {experts, inter, hidden}));
      }
    }
  }
}

TEST_F(LoadTest, StagedWeightsAreQuantisedThere) {
  const int64_t experts = 3, inter = 64, hidden = 96;
  for (const char* online : kOnline) {
    if (std::string(online) == "nvfp4") continue;  // asks for calibrated inputs
    SCOPED_TRACE(online);
    Written written;
    put_experts(written, random_experts(random, Format::bf16, experts, inter, hidden, true, false), false);
    put_matrix(written, kModule, random_quant(random, Format::bf16, 1, 200, hidden));
    LoaderOptions options;
    if (*online != 0) options.online = parse_online_policy(online);
    Loader host = load(written, options);
    FakeStage stage(live.ctx);
    options.stage = &stage;
    Loader device = load(written, options);
    expect_same(device.staged_experts(names_of(true), {experts, inter, hidden}),
                host.experts(names_of(true), {experts, inter, hidden}));
    EXPECT_TRUE(same_bytes(device.staged_linear(kModule, 200, hidden).w, host.linear(kModule, 200, hidden).w));
  }
}

TEST_F(LoadTest, StagedCodesMustBeNumbers) {
  for (const Format format : {Format::fp8_tensor, Format::mxfp8}) {
    Written written;
    written.config = config_for(format);
    QuantTensor w = random_quant(random, format, 1, 64, 64);
    w.codes.as<uint8_t>()[64 * 64 - 3] = 0xff;
    put_matrix(written, kModule, w);
    ExpertWeights e = random_experts(random, format, 3, 64, 64, true, false);
    e.gate.codes.as<uint8_t>()[2 * 64 * 64 + 7] = 0x7f;
    put_experts(written, e, false);
    FakeStage stage(live.ctx);
    LoaderOptions options;
    options.stage = &stage;
    Loader loader = load(written, options);
    EXPECT_NE(error_of([&] { loader.staged_linear(kModule, 64, 64); }).find(kModule + ".weight\" holds a NaN code"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                loader.staged_experts(names_of(true), {3, 64, 64});
              }).find(kExperts + ".2.gate_proj.weight\" holds a NaN code"),
              std::string::npos);
  }
}

TEST_F(LoadTest, WhatMustBePaddedOrCutIsLeftToTheHost) {
  FakeStage stage(live.ctx);
  io::TempDir dir;
  dir.put("config.json", "{}");
  const io::Checkpoint none = io::Checkpoint::open_configs(dir.path());
  LoaderOptions options = dummies("mxfp4");
  options.stage = &stage;
  EXPECT_FALSE(Loader(live.ctx, none, options).dummy_experts(names_of(true), {2, 48, 64}));
  EXPECT_TRUE(Loader(live.ctx, none, options).dummy_experts(names_of(true), {2, 64, 48}));
  // BF16 codes, and those of half a byte and a scale for 32 twice: 4.25 bits at least.
  stage.free = 3 * 2 * 64 * 48 / 8 * 24;
  EXPECT_FALSE(Loader(live.ctx, none, options).dummy_experts(names_of(true), {2, 64, 48}));
  stage.free = 3 * 2 * 64 * 48 / 8 * 27;
  EXPECT_TRUE(Loader(live.ctx, none, options).dummy_experts(names_of(true), {2, 64, 48}));
  options.shard = {0, 2, 0, 1};
  EXPECT_FALSE(Loader(live.ctx, none, options).dummy_experts(names_of(true), {2, 64, 64}));
}

}  // namespace
}  // namespace sluice::weights
