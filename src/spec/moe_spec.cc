// SPDX-License-Identifier: Apache-2.0
#include "spec/moe_spec.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <vector>

#include "routing/route.h"

namespace sluice {

namespace {

// One key of the line: how its value prints (nothing: it has the default) and how it is read.
struct Key {
  std::string_view name;
  std::function<std::string(const MoeSpec&)> print;
  std::function<void(MoeSpec&, std::string_view)> read;
};

template <class T>
T parse_number(std::string_view key, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), "{} is \"{}\"; accepted: {}", key, text,
        std::is_integral_v<T> ? "a whole number" : "a number");
  return value;
}

bool parse_flag(std::string_view key, std::string_view text) {
  const bool on = text == "1" || text == "true";
  check(on || text == "0" || text == "false", "{} is \"{}\"; accepted: 1, 0, true, false", key, text);
  return on;
}

template <class T>
Key number(std::string_view name, T MoeSpec::*field) {
  return {name, [field](const MoeSpec& s) { return s.*field == MoeSpec{}.*field ? "" : fmt::format("{}", s.*field); },
          [name, field](MoeSpec& s, std::string_view text) { s.*field = parse_number<T>(name, text); }};
}

Key flag(std::string_view name, bool MoeSpec::*field) {
  return {name, [field](const MoeSpec& s) { return s.*field == MoeSpec{}.*field ? ""
                                                   : s.*field                   ? "1"
                                                                                : "0"; },
          [name, field](MoeSpec& s, std::string_view text) { s.*field = parse_flag(name, text); }};
}

template <class Enum, size_t N>
Key choice(std::string_view name, const std::array<Named<Enum>, N>& table, Enum MoeSpec::*field) {
  return {name,
          [&table, field](const MoeSpec& s) {
            return s.*field == MoeSpec{}.*field ? "" : std::string(name_of(table, s.*field));
          },
          [&table, name, field](MoeSpec& s, std::string_view text) { s.*field = parse_name(table, name, text); }};
}

// The run's own types; other DTypes are for files.
constexpr std::array<Named<DType>, 2> kRunTypes{{{DType::bf16, "bfloat16"}, {DType::f32, "float32"}}};

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> k = {
        number("experts", &MoeSpec::experts),
        number("top_k", &MoeSpec::top_k),
        number("hidden", &MoeSpec::hidden),
        number("inter", &MoeSpec::inter),
        choice("weights", format::kFormats, &MoeSpec::weights),
        choice("inputs", format::kInputFormats, &MoeSpec::inputs),
        choice("dtype", kRunTypes, &MoeSpec::dtype),
        choice("act", activation::kActivations, &MoeSpec::act),
        flag("bias", &MoeSpec::bias),
        flag("act_params", &MoeSpec::act_params),
        choice("routing", routing::kMethods, &MoeSpec::routing),
        number("groups", &MoeSpec::groups),
        number("top_groups", &MoeSpec::top_groups),
        number("routed_scale", &MoeSpec::routed_scale),
        flag("norm_topk", &MoeSpec::norm_topk),
        flag("routed", &MoeSpec::routed),
        flag("weight_on_input", &MoeSpec::weight_on_input),
        number("local_offset", &MoeSpec::local_offset),
        number("local_experts", &MoeSpec::local_experts),
        number("tokens", &MoeSpec::tokens),
        flag("finalize", &MoeSpec::finalize),
        flag("fp8_block_trtllm", &MoeSpec::fp8_block_trtllm),
        flag("fp8_f32_sums", &MoeSpec::fp8_f32_sums),
        flag("deterministic", &MoeSpec::deterministic),
    };
    for (Key& key : k)  // the default input format is the weight format's own
      if (key.name == "inputs")
        key.print = [](const MoeSpec& s) {
          return s.inputs == format::info(s.weights).input ? "" : std::string(name_of(format::kInputFormats, s.inputs));
        };
    return k;
  }();
  return table;
}

std::string accepted_keys() {
  std::string text;
  for (const Key& key : keys()) text += (text.empty() ? "" : ", ") + std::string(key.name);
  return text;
}

void validate_sizes(const MoeSpec& s) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  check(s.experts >= 1, "experts is {}; it must be positive", s.experts);
  check(s.top_k >= 1, "top_k is {}; it must be positive", s.top_k);
  check(s.hidden >= 1 && s.hidden < kLargest, "hidden is {}; it must be positive and below 2^31", s.hidden);
  check(s.inter >= 1 && s.inter < kLargest, "inter is {}; it must be positive and below 2^31", s.inter);
  check(s.tokens >= 0, "tokens is {}; it must not be negative", s.tokens);
  check(s.local_experts >= 0 && s.local_offset >= 0 && s.local_offset + int64_t{s.locals()} <= s.experts,
        "this rank owns {} experts from {} on, but there are {}", s.locals(), s.local_offset, s.experts);
}

void validate_formats(const MoeSpec& s) {
  const auto weights = name_of(format::kFormats, s.weights), inputs = name_of(format::kInputFormats, s.inputs);
  check(s.dtype == DType::bf16 || s.dtype == DType::f32, "dtype is {}; accepted: bfloat16, float32",
        to_string(s.dtype));
  if (!format::fits(s.weights, s.inputs)) {
    std::string accepted;
    for (const auto& [input, name] : format::kInputFormats)
      if (format::fits(s.weights, input)) accepted += (accepted.empty() ? "" : ", ") + std::string(name);
    fail(ErrorCode::invalid_argument, "inputs is {} with weights {}; accepted: {}", inputs, weights, accepted);
  }
  // Block scales of 16 and 32 columns may not be cut; 128x128 blocks and 1x128 groups may end short.
  const format::FormatInfo w = format::info(s.weights);
  const bool small_groups = w.scale == format::ScaleType::e8m0 || w.scale == format::ScaleType::e4m3;
  const int group = small_groups ? w.group_k : 1;
  check(s.hidden % group == 0, "hidden is {}; {} weights have a scale for {} columns, so it must be a multiple",
        s.hidden, weights, group);
  check(s.inter % group == 0, "inter is {}; {} weights have a scale for {} columns, so it must be a multiple", s.inter,
        weights, group);
  check(!s.fp8_block_trtllm || s.inputs == format::InputFormat::fp8_group,
        "fp8_block_trtllm is set with weights {} and inputs {}; it is for fp8_block with fp8_group", weights, inputs);
  check(!s.fp8_f32_sums || format::is_fp8(s.weights),
        "fp8_f32_sums is set with weights {}; it is for fp8_tensor, fp8_channel and fp8_block", weights);
}

}  // namespace

std::string to_string(const MoeSpec& spec) {
  std::string line;
  for (const Key& key : keys()) {
    const std::string value = key.print(spec);
    if (value.empty()) continue;
    if (!line.empty()) line += ' ';
    line += key.name;
    line += '=';
    line += value;
  }
  return line;
}

MoeSpec parse_moe_spec(std::string_view line) {
  MoeSpec spec;
  std::vector<std::string_view> seen;
  while (true) {
    const size_t begin = line.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) break;
    line.remove_prefix(begin);
    const std::string_view word = line.substr(0, line.find_first_of(" \t\r\n"));
    line.remove_prefix(word.size());
    const size_t equals = word.find('=');
    check(equals != std::string_view::npos, "\"{}\" in the spec line has no value; write key=value with the keys {}",
          word, accepted_keys());
    const std::string_view name = word.substr(0, equals);
    const Key* key = nullptr;
    for (const Key& k : keys())
      if (k.name == name) key = &k;
    check(key != nullptr, "\"{}\" is not a key of a spec line; accepted: {}", name, accepted_keys());
    for (std::string_view other : seen) check(other != name, "{} is given twice in the spec line", name);
    seen.push_back(key->name);
    key->read(spec, word.substr(equals + 1));
  }
  bool inputs_given = false;
  for (std::string_view name : seen) inputs_given = inputs_given || name == "inputs";
  if (!inputs_given) spec.inputs = format::info(spec.weights).input;
  return spec;
}

void validate(const MoeSpec& s) {
  validate_sizes(s);
  validate_formats(s);
  if (!s.routed) routing::validate(s.routing, s.routing_params());
  check(!s.routed || (s.groups == 1 && s.top_groups == 1 && s.norm_topk),
        "groups is {}, top_groups {} and norm_topk {} with routed=1; experts and weights are given, so leave these out",
        s.groups, s.top_groups, int{s.norm_topk});
  check(std::isfinite(s.routed_scale), "routed_scale is {}; it must be finite", s.routed_scale);
  check(!s.act_params || activation::takes_params(s.act),
        "act_params is set with act {}, which ignores alpha, beta and limit; only swiglu takes them",
        name_of(activation::kActivations, s.act));
  check(!s.weight_on_input || (s.routing == routing::Method::llama4 && s.top_k == 1),
        "weight_on_input is set with routing {} and top_k {}; only llama4 with top_k 1 puts its weight on the input",
        name_of(routing::kMethods, s.routing), s.top_k);
}

}  // namespace sluice
