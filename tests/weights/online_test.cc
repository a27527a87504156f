// SPDX-License-Identifier: Apache-2.0
#include "weights/online.h"

#include <tuple>

#include "random_weights.h"

namespace sluice::weights {
namespace {

using format::Format;
using format::InputFormat;

TEST(Online, NamesAndTheInputsTheyImply) {
  const ModuleFormat plain;
  for (const auto& [name, format, everywhere] :
       {std::tuple{"bf16", ModuleFormat{}, true},
        {"fp8", ModuleFormat{Format::fp8_tensor, InputFormat::fp8_token}, true},
        {"fp8_channel", ModuleFormat{Format::fp8_channel, InputFormat::fp8_token}, true},
        {"fp8_block", ModuleFormat{Format::fp8_block, InputFormat::fp8_group}, true},
        {"mxfp8", ModuleFormat{Format::mxfp8, InputFormat::mxfp8}, true},
        {"nvfp4", ModuleFormat{Format::nvfp4, InputFormat::nvfp4}, false},
        {"nvfp4_online", ModuleFormat{Format::nvfp4, InputFormat::nvfp4_token}, false},
        {"mxfp4", ModuleFormat{Format::mxfp4, InputFormat::plain}, false}}) {
    const OnlinePolicy policy = parse_online_policy(name);
    EXPECT_EQ(policy.experts, format) << name;
    EXPECT_EQ(policy.rest, everywhere ? format : plain) << name;
    EXPECT_EQ(policy.head, plain) << name;
    EXPECT_EQ(parse_online_policy("bf16", "", name).head, format) << name;
  }
  const std::string accepted =
      "; accepted: bf16, fp8, fp8_channel, w8a8_fp8, fp8_block, mxfp8, nvfp4, nvfp4_online, mxfp4";
  EXPECT_EQ(error_of([] { parse_online_policy("int4"); }), "quantization is \"int4\"" + accepted);
  EXPECT_EQ(error_of([] { parse_online_policy("mxfp4", "int8"); }), "quantization_rest is \"int8\"" + accepted);
  EXPECT_EQ(error_of([] { parse_online_policy("mxfp4", "", "q8_0"); }), "quantization_head is \"q8_0\"" + accepted);
}

TEST(Online, TheRestHasAFormatOfItsOwn) {
  const OnlinePolicy policy = parse_online_policy("mxfp4", "mxfp8");
  EXPECT_EQ(policy.of("model.layers.0.mlp.experts.3.up_proj"), (ModuleFormat{Format::mxfp4, InputFormat::plain}));
  EXPECT_EQ(policy.of("model.layers.0.self_attn.q_proj"), (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  EXPECT_EQ(policy.of("model.layers.0.mlp.shared_experts.up_proj"), (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  EXPECT_EQ(policy.of("lm_head"), ModuleFormat{});
  EXPECT_EQ(parse_online_policy("mxfp8", "bf16").of("model.layers.0.self_attn.q_proj"), ModuleFormat{});
}

TEST(Online, TheHeadHasAFormatOfItsOwn) {
  const OnlinePolicy policy = parse_online_policy("mxfp4", "mxfp8", "fp8");
  EXPECT_EQ(policy.of("model.layers.0.mlp.experts.3.up_proj"), (ModuleFormat{Format::mxfp4, InputFormat::plain}));
  EXPECT_EQ(policy.of("model.layers.0.self_attn.q_proj"), (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  for (const char* head : {"lm_head", "model.layers.61.shared_head.head"})
    EXPECT_EQ(policy.of(head), (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_token})) << head;
  EXPECT_EQ(policy.of("model.embed_tokens"), ModuleFormat{});
  EXPECT_EQ(policy.name, "mxfp4 with mxfp8 for the rest and fp8 for the head");
  EXPECT_EQ(parse_online_policy("mxfp8", "", "mxfp8").name, "mxfp8 with mxfp8 for the head");
}

TEST(Online, WhichModules) {
  struct Row {
    const char* module;
    ModuleKind kind;
  };
  for (const Row& row : {Row{"model.layers.0.mlp.experts.3.up_proj", ModuleKind::experts},
                         {"model.layers.0.mlp.experts", ModuleKind::experts},
                         {"backbone.layers.1.mixer.experts.0.down_proj", ModuleKind::experts},
                         {"model.layers.0.self_attn.q_proj", ModuleKind::linear},
                         {"model.layers.0.self_attn.kv_a_proj_with_mqa", ModuleKind::linear},
                         {"model.layers.0.mlp.shared_experts.up_proj", ModuleKind::linear},
                         {"model.layers.0.mlp.down_proj", ModuleKind::linear},
                         {"backbone.layers.0.mixer.in_proj", ModuleKind::linear},
                         {"backbone.layers.0.mixer.out_proj", ModuleKind::linear},
                         {"backbone.layers.0.mixer.fc1_latent_proj", ModuleKind::linear},
                         {"model.layers.0.mlp.gate", ModuleKind::other},
                         {"model.layers.4.eh_proj", ModuleKind::other},
                         {"backbone.layers.0.mixer.conv1d", ModuleKind::other},
                         {"model.layers.0.input_layernorm", ModuleKind::other},
                         {"model.embed_tokens", ModuleKind::other},
                         {"model.layers.61.shared_head.norm", ModuleKind::other},
                         {"model.layers.61.shared_head.head", ModuleKind::head},
                         {"lm_head", ModuleKind::head}})
    EXPECT_EQ(kind_of(row.module), row.kind) << row.module;
}

}  // namespace
}  // namespace sluice::weights
