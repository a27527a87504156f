// SPDX-License-Identifier: Apache-2.0
#include "weights/online.h"

#include <algorithm>
#include <array>

namespace sluice::weights {

using format::Format;
using format::InputFormat;

namespace {

struct OnlineFormat {
  std::string_view name;
  ModuleFormat format;
  bool experts_only = false;  // unless another format is given for the rest
};

constexpr std::array<OnlineFormat, 9> kOnlineFormats{{{"bf16", {Format::bf16, InputFormat::plain}},
                                                      {"fp8", {Format::fp8_tensor, InputFormat::fp8_token}},
                                                      {"fp8_channel", {Format::fp8_channel, InputFormat::fp8_token}},
                                                      {"w8a8_fp8", {Format::fp8_channel, InputFormat::fp8_token}},
                                                      {"fp8_block", {Format::fp8_block, InputFormat::fp8_group}},
                                                      {"mxfp8", {Format::mxfp8, InputFormat::mxfp8}},
                                                      {"nvfp4", {Format::nvfp4, InputFormat::nvfp4}, true},
                                                      {"nvfp4_online", {Format::nvfp4, InputFormat::nvfp4_token}, true},
                                                      {"mxfp4", {Format::mxfp4, InputFormat::plain}, true}}};

// Last parts of the names of ModuleKind::linear.
constexpr std::array<std::string_view, 17> kLinears{
    {"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate_proj",
     "up_proj", "down_proj", "gate_up_proj", "qkv_proj", "in_proj", "out_proj", "fc1_latent_proj", "fc2_latent_proj"}};

const OnlineFormat& find_online_format(std::string_view option, std::string_view name) {
  for (const OnlineFormat& f : kOnlineFormats)
    if (f.name == name) return f;
  fail(ErrorCode::invalid_argument, "{} is \"{}\"; accepted: {}", option, name, fmt::join(online_formats(), ", "));
}

}  // namespace

ModuleKind kind_of(std::string_view module) {
  if (module.ends_with(".experts") || module.find(".experts.") != std::string_view::npos) return ModuleKind::experts;
  const size_t dot = module.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? module : module.substr(dot + 1);
  if (last == "lm_head" || module.ends_with("shared_head.head")) return ModuleKind::head;
  return std::find(kLinears.begin(), kLinears.end(), last) != kLinears.end() ? ModuleKind::linear : ModuleKind::other;
}

ModuleFormat OnlinePolicy::of(std::string_view module) const {
  switch (kind_of(module)) {
    case ModuleKind::experts:
      return experts;
    case ModuleKind::linear:
      return rest;
    case ModuleKind::head:
      return head;
    case ModuleKind::other:
      break;
  }
  return {};
}

std::vector<std::string_view> online_formats() {
  std::vector<std::string_view> names;
  for (const OnlineFormat& f : kOnlineFormats) names.push_back(f.name);
  return names;
}

OnlinePolicy parse_online_policy(std::string_view name, std::string_view rest, std::string_view head) {
  const OnlineFormat& experts = find_online_format("quantization", name);
  OnlinePolicy out{std::string(name), experts.format, experts.experts_only ? ModuleFormat{} : experts.format, {}};
  if (!rest.empty()) {
    out.rest = find_online_format("quantization_rest", rest).format;
    out.name += fmt::format(" with {} for the rest", rest);
  }
  if (!head.empty()) {
    out.head = find_online_format("quantization_head", head).format;
    out.name += fmt::format("{} {} for the head", rest.empty() ? " with" : " and", head);
  }
  return out;
}

}  // namespace sluice::weights
