// SPDX-License-Identifier: Apache-2.0
#include "weights/online.h"

#include "random_weights.h"

namespace sluice::weights {
namespace {

using format::Format;
using format::InputFormat;

TEST(Online, NamesAndTheInputsTheyImply) {
  EXPECT_EQ(parse_online_format("fp8").format, (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_token}));
  EXPECT_EQ(parse_online_format("fp8_channel").format, (ModuleFormat{Format::fp8_channel, InputFormat::fp8_token}));
  EXPECT_EQ(parse_online_format("fp8_block").format, (ModuleFormat{Format::fp8_block, InputFormat::fp8_group}));
  EXPECT_EQ(parse_online_format("mxfp8").format, (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  EXPECT_EQ(parse_online_format("nvfp4").format, (ModuleFormat{Format::nvfp4, InputFormat::nvfp4}));
  EXPECT_EQ(parse_online_format("nvfp4_online").format, (ModuleFormat{Format::nvfp4, InputFormat::nvfp4_token}));
  EXPECT_EQ(parse_online_format("mxfp4").format, (ModuleFormat{Format::mxfp4, InputFormat::plain}));
  EXPECT_EQ(error_of([] { parse_online_format("int4"); }),
            "quantization is \"int4\"; accepted: bf16, fp8, fp8_channel, w8a8_fp8, fp8_block, mxfp8, nvfp4, "
            "nvfp4_online, mxfp4");
}

TEST(Online, WhichModules) {
  struct Row {
    const char* module;
    bool linears, experts;
  };
  for (const Row& row : {Row{"model.layers.0.mlp.experts.3.up_proj", true, true},
                         {"model.layers.0.mlp.experts", true, true},
                         {"backbone.layers.1.mixer.experts.0.down_proj", true, true},
                         {"model.layers.0.self_attn.q_proj", true, false},
                         {"model.layers.0.self_attn.kv_a_proj_with_mqa", true, false},
                         {"model.layers.0.mlp.shared_experts.up_proj", true, false},
                         {"model.layers.0.mlp.down_proj", true, false},
                         {"backbone.layers.0.mixer.in_proj", true, false},
                         {"backbone.layers.0.mixer.out_proj", true, false},
                         {"backbone.layers.0.mixer.fc1_latent_proj", true, false},
                         {"model.layers.0.mlp.gate", false, false},
                         {"model.layers.4.eh_proj", false, false},
                         {"backbone.layers.0.mixer.conv1d", false, false},
                         {"model.layers.0.input_layernorm", false, false},
                         {"model.embed_tokens", false, false},
                         {"lm_head", false, false}}) {
    EXPECT_EQ(online_quantizes(Coverage::linears, row.module), row.linears) << row.module;
    EXPECT_EQ(online_quantizes(Coverage::experts, row.module), row.experts) << row.module;
  }
}

}  // namespace
}  // namespace sluice::weights
