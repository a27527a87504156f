// SPDX-License-Identifier: Apache-2.0
#include "weights/save.h"

#include <unistd.h>

#include "base/math.h"
#include "io/json_text.h"
#include "io/output_file.h"
#include "save_case.h"
#include "tests/io/expect_error.h"
#include "weights/calibration.h"
#include "weights/export_format.h"
#include "weights/load.h"
#include "weights/loaded_size.h"
#include "weights/pad.h"
#include "weights/requantize.h"

namespace sluice::weights {
namespace {

TEST_F(SaveTest, ReloadEqualsQuantisingWhileLoading) {
  Written in;
  put_model(in);
  const io::Checkpoint source = in.open();
  struct Formats {
    std::string name, rest, head = {};
  };
  for (const auto& [name, rest, head] : {Formats{"bf16", ""},
                                         {"fp8", ""},
                                         {"fp8_channel", ""},
                                         {"fp8_block", ""},
                                         {"mxfp8", ""},
                                         {"nvfp4", ""},
                                         {"mxfp4", ""},
                                         {"mxfp4", "mxfp8"},
                                         {"mxfp4", "fp8"},
                                         {"mxfp4", "fp8_channel"},
                                         {"nvfp4", "mxfp8"},
                                         {"nvfp4", "fp8_channel"},
                                         {"mxfp8", "fp8_channel"},
                                         {"mxfp8", "bf16"},
                                         {"bf16", "mxfp8"},
                                         {"bf16", "", "fp8"},
                                         {"mxfp8", "", "mxfp8"},
                                         {"mxfp4", "", "mxfp8"},
                                         {"mxfp4", "mxfp8", "mxfp8"},
                                         {"mxfp4", "mxfp8", "fp8_channel"},
                                         {"mxfp4", "fp8", "mxfp4"},
                                         {"bf16", "mxfp8", "mxfp4"},
                                         {"fp8_block", "", "fp8_block"},
                                         {"nvfp4", "", "nvfp4"},
                                         {"nvfp4", "mxfp8", "fp8_channel"}}) {
    const bool nvfp4 = name == "nvfp4";
    SaveOptions options = save_options(name, rest, head, nvfp4, false);
    if (nvfp4) options.amax = amax();
    const auto to = out.path() / (name + "-" + rest + "-" + head);
    save_quantized(ctx, source, to, options);

    LoaderOptions online;
    online.online = parse_online_policy(name, rest, head);
    online.amax = options.amax;
    Loader fresh(ctx, source, online), reloaded(ctx, io::Checkpoint::open(to));
    EXPECT_EQ(reloaded.scheme().quantized(), name != "bf16" || !rest.empty() || !head.empty());
    const ModuleFormat attention = rest.empty() ? ModuleFormat{} : parse_online_policy(rest).rest;
    if (!rest.empty()) {
      EXPECT_EQ(reloaded.scheme().of("model.layers.0.self_attn.q_proj"), attention) << name << " " << rest;
    }
    EXPECT_EQ(reloaded.scheme().of("lm_head"), online.online->head) << name << " " << rest << " " << head;
    for (const std::string& experts : {kExperts, kMtp}) {
      const LoadedExperts a = fresh.experts(named(experts), kShape), b = reloaded.experts(named(experts), kShape);
      EXPECT_EQ(a.format, b.format) << name << " " << experts;
      EXPECT_TRUE(same_bytes(a.weights, b.weights)) << name << " " << experts;
    }
    for (const auto& [module, rows, cols] : {std::tuple<std::string, int64_t, int64_t>{"lm_head", 64, kHidden},
                                             {"model.layers.2.shared_head.head", 64, kHidden},
                                             {"model.layers.0.self_attn.q_proj", 96, kHidden},
                                             {"model.layers.0.mlp.down_proj", kHidden, 200},
                                             {"model.layers.1.mlp.gate", kCount, kHidden}}) {
      const LoadedLinear a = fresh.linear(module, rows, cols), b = reloaded.linear(module, rows, cols);
      EXPECT_TRUE(same_bytes(a.w, b.w)) << name << " " << module;
      EXPECT_EQ(a.inputs, b.inputs) << name << " " << module;
      EXPECT_EQ(a.input_scale, b.input_scale) << name << " " << module;
    }
    for (const char* kept : {"model.norm.weight", "model.layers.1.mlp.gate.e_score_correction_bias",
                             head.empty() ? "lm_head.weight" : "model.embed_tokens.weight"})
      EXPECT_TRUE(same_bytes(reloaded.checkpoint().tensor(kept), source.tensor(kept))) << kept;
  }
  EXPECT_EQ(progress.back().what, "loading");
}

TEST_F(SaveTest, ATiedHeadBecomesAMatrix) {
  Written in;
  put_model(in);
  in.config = R"({"tie_word_embeddings": true})";
  for (const bool copied : {false, true}) {  // some writers put the embedding into the file twice
    if (copied) {                            // here in float32
      const Tensor& from = in.tensors.at("model.embed_tokens.weight");
      Tensor& head = in.tensors["lm_head.weight"] = Tensor(DType::f32, from.shape());
      std::transform(from.as<uint16_t>(), from.as<uint16_t>() + from.elements(), head.as<float>(), bf16_to_float);
    }
    if (!copied) in.tensors.erase("lm_head.weight");
    const io::Checkpoint source = in.open();
    const Tensor embedding = source.tensor("model.embed_tokens.weight");
    const auto to = out.path() / (copied ? "copied" : "tied");
    save_quantized(ctx, source, to, save_options("mxfp4", "mxfp8", "mxfp8", false, false));
    LoaderOptions online;
    online.online = parse_online_policy("mxfp4", "mxfp8", "mxfp8");
    Loader fresh(ctx, source, online), reloaded(ctx, io::Checkpoint::open(to));
    const LoadedLinear a = fresh.tied_head("lm_head", embedding), b = reloaded.linear("lm_head", 64, kHidden);
    EXPECT_EQ(a.w.format, Format::mxfp8);
    EXPECT_EQ(a.inputs, b.inputs);
    EXPECT_TRUE(same_bytes(a.w, b.w));
    EXPECT_FALSE(reloaded.checkpoint().config().boolean("tie_word_embeddings"));
    EXPECT_TRUE(same_bytes(reloaded.checkpoint().tensor("model.embed_tokens.weight"), embedding));
    // Codes, and a scale for each 32 of the 144 columns.
    const OnlinePolicy without = parse_online_policy("mxfp4", "mxfp8");
    if (!copied) {
      EXPECT_EQ(loaded_bytes(source, &*online.online) - loaded_bytes(source, &without),
                64 * (kHidden + 5) - 64 * (kHidden - 5));  // the prediction layer's head shrinks from BF16
    }
  }
  // Where the head stays in BF16, nothing changes.
  SaveOptions excluded = save_options("mxfp4", "mxfp8", "mxfp8", false, false);
  excluded.exclude = {"lm_head"};
  in.tensors.erase("lm_head.weight");
  for (const auto& [name, options] :
       {std::pair{"excluded", excluded}, {"no head", save_options("mxfp4", "mxfp8", "", false, false)}}) {
    save_quantized(ctx, in.open(), out.path() / name, options);
    const io::Checkpoint got = io::Checkpoint::open(out.path() / name);
    EXPECT_TRUE(got.config().boolean("tie_word_embeddings")) << name;
    EXPECT_FALSE(got.contains("lm_head.weight")) << name;
    EXPECT_EQ(QuantScheme::detect(got).of("lm_head"), ModuleFormat{}) << name;
  }
  in.tensors.erase("model.embed_tokens.weight");
  EXPECT_NE(error_of([&] {
              save_quantized(ctx, in.open(), folder, save_options("bf16", "", "mxfp8", false, false));
            }).find("tie_word_embeddings is true, but no module model.embed_tokens, "),
            std::string::npos);
}

TEST_F(SaveTest, FusedExpertsAreTakenApart) {
  Written in;
  put_model(in);
  Written fused;
  fused.tensors = in.tensors;
  fused.config = in.config;
  for (const std::string& experts : {kExperts, kMtp}) {
    Tensor gate_up(DType::bf16, {kCount, 2 * kInter, kHidden}), down(DType::bf16, {kCount, kHidden, kInter});
    const auto move = [&](int64_t e, const char* projection, Tensor to) {
      const std::string name = fmt::format("{}.{}.{}.weight", experts, e, projection);
      const Tensor& from = in.tensors.at(name);
      std::memcpy(to.data(), from.data(), static_cast<size_t>(from.bytes()));
      fused.tensors.erase(name);
    };
    for (int64_t e = 0; e < kCount; ++e) {
      move(e, "gate_proj", gate_up.slice(e).rows(0, kInter));
      move(e, "up_proj", gate_up.slice(e).rows(kInter, 2 * kInter));
      move(e, "down_proj", down.slice(e));
    }
    fused.tensors[experts + ".gate_up_proj"] = gate_up;
    fused.tensors[experts + ".down_proj"] = down;
  }
  for (const char* name : {"bf16", "fp8_block", "nvfp4"}) {
    SaveOptions options = save_options(name, "", "", std::string(name) == "nvfp4", false);
    if (std::string(name) == "nvfp4") options.amax = amax();
    const auto a = out.path() / (std::string(name) + "_single"), b = out.path() / (std::string(name) + "_fused");
    save_quantized(ctx, in.open(), a, options);
    save_quantized(ctx, fused.open(), b, options);
    const io::Checkpoint single = io::Checkpoint::open(a), taken_apart = io::Checkpoint::open(b);
    ASSERT_EQ(single.names(), taken_apart.names()) << name;
    for (const std::string& tensor : single.names())
      EXPECT_TRUE(same_bytes(single.tensor(tensor), taken_apart.tensor(tensor))) << name << " " << tensor;
  }
}

TEST_F(SaveTest, CalibratedFp8IsModelOpts) {
  Written in;
  put_model(in);
  SaveOptions options = save_options("fp8", "", "", true, false);
  options.amax = amax();
  save_quantized(ctx, in.open(), folder, options);
  EXPECT_TRUE(std::filesystem::exists(folder / "hf_quant_config.json"));
  Loader loader(ctx, io::Checkpoint::open(folder));
  EXPECT_EQ(loader.scheme().method(), "modelopt FP8");
  const LoadedExperts experts = loader.experts(named(kExperts), kShape);
  EXPECT_EQ(experts.format, (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_static}));
  EXPECT_EQ(experts.weights.input_scale1, 3.5f / 448.0f);
  EXPECT_EQ(experts.weights.input_scale2, 11.0f / 448.0f);
  EXPECT_EQ(loader.linear("model.layers.0.self_attn.q_proj", 96, kHidden).input_scale, 7.0f / 448.0f);
  // The prediction layer's experts did not run: they stay in BF16 and are listed as excluded.
  EXPECT_EQ(loader.experts(named(kMtp), kShape).format, ModuleFormat{});
  EXPECT_EQ(loader.scheme().of(kMtp + ".0.up_proj"), ModuleFormat{});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("stay in BF16, the first of them " + kMtp + ".0."), std::string::npos) << warnings[0];
  // hf_quant_config.json alone says the same.
  const QuantScheme root =
      QuantScheme::detect(io::Config::parse("{}", "config.json"), io::Config::load(folder / "hf_quant_config.json"));
  for (const std::string& module : {kExperts + ".0.up_proj", kMtp + ".0.up_proj", std::string("lm_head")})
    EXPECT_EQ(root.of(module), loader.scheme().of(module)) << module;
}

TEST_F(SaveTest, FromOneQuantisedCheckpointToAnother) {
  Written in;
  put_model(in);
  save_quantized(ctx, in.open(), folder, save_options("mxfp8", "", "", false, false));
  const io::Checkpoint mxfp8 = io::Checkpoint::open(folder);
  save_quantized(ctx, mxfp8, out.path() / "bf16", save_options("bf16", "", "", false, false));
  save_quantized(ctx, mxfp8, out.path() / "block", save_options("fp8_block", "", "", false, false));
  Loader a(ctx, mxfp8), b(ctx, io::Checkpoint::open(out.path() / "bf16")),
      c(ctx, io::Checkpoint::open(out.path() / "block"));
  const ExpertWeights from = a.experts(named(kExperts), kShape).weights;
  // `from` is padded to whole groups of 32 by the loader; zeros change no scale.
  EXPECT_TRUE(same_bytes(pad(b.experts(named(kExperts), kShape).weights, 32), quantize(ctx, Format::bf16, from)));
  EXPECT_TRUE(same_bytes(pad(c.experts(named(kExperts), kShape).weights, 32), quantize(ctx, Format::fp8_block, from)));
  EXPECT_FALSE(b.checkpoint().config().has("quantization_config"));
  EXPECT_FALSE(b.checkpoint().contains(kExperts + ".0.up_proj.weight_scale_inv"));
}

// The same weights under ModelOpt's names, from BF16 and from the other names.
TEST_F(SaveTest, ModelOptsConventionWhereThereAreTwo) {
  Written in;
  put_model(in);
  const io::Checkpoint source = in.open();
  struct Case {
    std::string format, algo;
    Shape scales;
    bool groups;
  };
  const std::string module = kExperts + ".0.down_proj";
  for (const auto& [format, algo, scales, groups] :
       {Case{"mxfp8", "MXFP8", {kHidden, ceil_div(kInter, int64_t{32})}, true},
        {"fp8_channel", "FP8_PER_CHANNEL_PER_TOKEN", {kHidden}, false}}) {
    SaveOptions options = save_options(format, "", "", false, false);
    const auto plain = out.path() / (format + "-plain"), to = out.path() / format, again = out.path() / (format + "-2");
    save_quantized(ctx, source, plain, options);
    options.modelopt = true;
    save_quantized(ctx, source, to, options);
    save_quantized(ctx, io::Checkpoint::open(plain), again, options);
    for (const auto& written : {to, again}) {
      const io::Checkpoint got = io::Checkpoint::open(written);
      EXPECT_EQ(got.tensor(module + ".weight_scale").shape(), scales) << format;
      EXPECT_FALSE(got.contains(module + ".weight_scale_inv")) << format;
      const io::Config config = got.config().object("quantization_config");
      EXPECT_EQ(config.string("quant_method"), "modelopt");
      EXPECT_EQ(config.string("quant_algo"), algo);
      EXPECT_EQ(config.has("group_size"), groups);
      EXPECT_TRUE(std::filesystem::exists(written / "hf_quant_config.json"));
      Loader a(ctx, io::Checkpoint::open(plain)), b(ctx, got);
      EXPECT_EQ(a.scheme().of(module), b.scheme().of(module));
      EXPECT_EQ(a.scheme().of("lm_head"), b.scheme().of("lm_head"));
      EXPECT_TRUE(same_bytes(a.experts(named(kExperts), kShape).weights, b.experts(named(kExperts), kShape).weights));
      EXPECT_TRUE(same_bytes(a.linear("model.layers.0.self_attn.q_proj", 96, kHidden).w,
                             b.linear("model.layers.0.self_attn.q_proj", 96, kHidden).w));
    }
  }
  // Where ModelOpt's is the only one, nothing changes.
  SaveOptions nvfp4 = save_options("nvfp4", "", "", false, true);
  for (const bool modelopt : {false, true}) {
    nvfp4.modelopt = modelopt;
    save_quantized(ctx, source, out.path() / fmt::format("nvfp4-{}", modelopt), nvfp4);
  }
  for (const char* file : {"config.json", "hf_quant_config.json", "model.safetensors"})
    EXPECT_EQ(io::slurp(out.path() / "nvfp4-false" / file), io::slurp(out.path() / "nvfp4-true" / file)) << file;
  EXPECT_EQ(error_of([] { check_exportable(parse_online_policy("mxfp4"), true); }),
            "ModelOpt has no name for experts in mxfp4 with plain inputs; accepted with modelopt: fp8_tensor with "
            "fp8_static inputs, fp8_channel with fp8_token inputs, mxfp8 with mxfp8 inputs, nvfp4 with nvfp4 inputs, "
            "nvfp4 with plain inputs");
  EXPECT_NO_THROW(check_exportable(parse_online_policy("bf16"), true));
}

TEST_F(SaveTest, ExcludeShardsConfigAndFiles) {
  Written in;
  put_model(in);
  SaveOptions options = save_options("mxfp8", "", "", false, false);
  options.exclude = {"model.layers.0.self_attn*", "re:.*layers\\.1\\.mlp\\.experts\\."};
  options.shard_bytes = 40000;
  in.dir.put("LICENSE", "");
  save_quantized(ctx, in.open(), folder, options);
  const io::Checkpoint got = io::Checkpoint::open(folder);
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "LICENSE"));
  EXPECT_FALSE(std::filesystem::exists(folder / "golden.safetensors"));
  int shards = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    shards += file.path().extension() == ".safetensors";
  EXPECT_GT(shards, 1);
  Loader loader(ctx, got);
  EXPECT_EQ(loader.linear("model.layers.0.self_attn.q_proj", 96, kHidden).w.format, Format::bf16);
  EXPECT_EQ(loader.scheme().of(kExperts + ".1.up_proj"), ModuleFormat{});
  EXPECT_EQ(loader.experts(named(kExperts), kShape).format, ModuleFormat{});
  EXPECT_EQ(loader.experts(named(kMtp), kShape).format.weights, Format::mxfp8);
  EXPECT_TRUE(warnings.empty());  // everything in BF16 is on the list
  // The rest of config.json is as it was, numbers in their kind.
  const io::JsonValue before = io::parse_json_value(in.config, "before", io::JsonDialect::python);
  io::JsonValue after = io::parse_json_value(io::slurp(folder / "config.json"), "after", io::JsonDialect::python);
  set_member(after, "quantization_config", {});
  EXPECT_EQ(after, before);
}

// Of a checkpoint in float32 the linears become BF16, also without quantisation; a router keeps its type.
TEST_F(SaveTest, FloatsOfLinearsBecomeBf16) {
  Written in;
  put_model(in);
  const std::string linear = "model.layers.0.self_attn.q_proj.weight", router = "model.layers.1.mlp.gate.weight",
                    expert = kExperts + ".0.up_proj.weight";
  std::map<std::string, Tensor> bf16;
  for (const std::string& name : {linear, router, expert}) {
    const Tensor was = bf16[name] = in.tensors.at(name);
    Tensor& floats = in.tensors.at(name) = Tensor(DType::f32, was.shape());
    std::transform(was.as<uint16_t>(), was.as<uint16_t>() + was.elements(), floats.as<float>(), bf16_to_float);
  }
  for (const char* format : {"bf16", "mxfp4"}) {  // MXFP4 is of the experts
    const auto to = out.path() / format;
    save_quantized(ctx, in.open(), to, save_options(format, "", "", false, false));
    const io::Checkpoint got = io::Checkpoint::open(to);
    EXPECT_TRUE(same_bytes(got.tensor(linear), bf16.at(linear)));
    EXPECT_TRUE(same_bytes(got.tensor(router), in.tensors.at(router)));
    if (format == std::string("bf16")) {
      EXPECT_TRUE(same_bytes(got.tensor(expert), bf16.at(expert)));
    }
  }
}

TEST_F(SaveTest, FilesOfAKilledRunAreLeftAlone) {
  Written in;
  put_model(in);
  // A process with this one's id was killed.
  const std::filesystem::path killed = folder.native() + fmt::format(".partial-{}-0", getpid());
  std::filesystem::create_directory(killed);
  io::write_file(killed / "model-00002-of-00002.safetensors", "stale");
  save_quantized(ctx, in.open(), folder, save_options("mxfp8", "", "", false, false));
  EXPECT_FALSE(std::filesystem::exists(folder / "model-00002-of-00002.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(killed / "model-00002-of-00002.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder.native() + fmt::format(".partial-{}-1", getpid())));
}

TEST(JsonText, RoundTrip) {
  const std::string text = R"({"a": [1, 1.0, -0.5, 1e-06, 1e300, true, false, null, {}], "b": {"\u0001\"\\": []}})";
  const io::JsonValue value = io::parse_json_value(text, "text");
  EXPECT_EQ(io::parse_json_value(to_json_text(value), "again"), value);
  EXPECT_EQ(to_json_line(value), R"({"a":[1,1.0,-0.5,1e-06,1e+300,true,false,null,{}],"b":{"\u0001\"\\":[]}})");
}

}  // namespace
}  // namespace sluice::weights
