// SPDX-License-Identifier: Apache-2.0
#include "weights/online.h"

#include <algorithm>
#include <array>

namespace sluice::weights {

using format::Format;
using format::InputFormat;

namespace {

constexpr std::array<OnlineFormat, 9> kOnlineFormats{
    {{"bf16", {Format::bf16, InputFormat::plain}},
     {"fp8", {Format::fp8_tensor, InputFormat::fp8_token}},
     {"fp8_channel", {Format::fp8_channel, InputFormat::fp8_token}},
     {"w8a8_fp8", {Format::fp8_channel, InputFormat::fp8_token}},
     {"fp8_block", {Format::fp8_block, InputFormat::fp8_group}},
     {"mxfp8", {Format::mxfp8, InputFormat::mxfp8}},
     {"nvfp4", {Format::nvfp4, InputFormat::nvfp4}, Coverage::experts},
     {"nvfp4_online", {Format::nvfp4, InputFormat::nvfp4_token}, Coverage::experts},
     {"mxfp4", {Format::mxfp4, InputFormat::plain}, Coverage::experts}}};

// Last parts of the names of linears that are quantised outside the routed experts.
constexpr std::array<std::string_view, 17> kLinears{
    {"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate_proj",
     "up_proj", "down_proj", "gate_up_proj", "qkv_proj", "in_proj", "out_proj", "fc1_latent_proj", "fc2_latent_proj"}};

}  // namespace

OnlineFormat parse_online_format(std::string_view name) {
  std::string accepted;
  for (const OnlineFormat& f : kOnlineFormats) {
    if (f.name == name) return f;
    accepted.append(accepted.empty() ? "" : ", ").append(f.name);
  }
  fail(ErrorCode::invalid_argument, "quantization is \"{}\"; accepted: {}", name, accepted);
}

bool online_quantizes(Coverage coverage, std::string_view module) {
  if (module.ends_with(".experts") || module.find(".experts.") != std::string_view::npos) return true;
  if (coverage == Coverage::experts) return false;
  const size_t dot = module.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? module : module.substr(dot + 1);
  return std::find(kLinears.begin(), kLinears.end(), last) != kLinears.end();
}

}  // namespace sluice::weights
