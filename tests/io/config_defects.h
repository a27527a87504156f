// SPDX-License-Identifier: Apache-2.0
// Broken config.json files: M7, M9 and M11 of docs/robustness.md. Also the seeds of the fuzz target.
#pragma once

#include <string>
#include <vector>

#include "io/config.h"
#include "tests/io/safetensors_defects.h"

namespace sluice::io {

inline const char* const kSoundConfig =
    R"({"model_type":"m","num_experts":8,"top_k":2,"theta":1e4,"eos":[1,2],"tie":false,"limit":[0,Infinity],)"
    R"("rope":{"factor":2.0},"groups":[{"bits":4}],"names":["lm_head"]})";

// Asks for what a model loader asks for; also the body of the fuzz target.
inline void read_like_a_model(const Config& c) {
  const int64_t experts = c.integer({"num_experts", "n_routed_experts"}, {.min = 1, .max = 1 << 16});
  const int64_t top_k = c.integer("top_k", {.min = 1});
  if (top_k > experts) c.refuse("top_k", "is " + std::to_string(top_k) + "; it must be at most num_experts");
  c.string("model_type");
  c.number("theta", {.min = 1e-3, .max = 1e12});
  c.integers("eos", {.min = 0, .max = 1 << 24});
  c.boolean("tie");
  c.numbers("limit", {.min = 0});
  c.object("rope").number("factor", {.min = 1});
  for (const Config& group : c.objects("groups")) group.integer("bits", {.min = 2, .max = 16});
  c.strings("names");
}

enum class ConfigDefect {
  not_json,
  array,
  number,
  nul_byte,
  trailing,
  single_quotes,
  comment,
  deep_arrays,
  deep_objects,
  number_huge,
  leading_zero,
  invalid_utf8,
  lone_surrogate,
  duplicate,
  duplicate_escaped,
  experts_zero,
  experts_2_31,
  experts_2_63,
  experts_negative,
  experts_minus_zero,
  experts_float,
  experts_string,
  experts_list,
  experts_missing,
  experts_null,
  experts_disagree,
  top_k_above_experts,
  theta_zero,
  theta_nan,
  theta_infinite,
  theta_string,
  theta_object,
  type_number,
  eos_negative,
  eos_nested,
  tie_number,
  limit_negative,
  rope_list,
  rope_factor,
  groups_object,
  groups_numbers,
  groups_bits,
  names_number,
  count
};

inline DefectiveFile make_defect(ConfigDefect defect) {
  using D = ConfigDefect;
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kSoundConfig;
    return text.replace(text.find(from), from.size(), to);
  };
  std::string deep;
  switch (defect) {
    case D::not_json:
      return {"not_json", "{num_experts: 8}", {"not JSON", "byte"}};
    case D::array:
      return {"array", "[]", {"JSON object"}};
    case D::number:
      return {"number", "8", {"JSON object"}};
    case D::nul_byte:
      return {"nul_byte", kSoundConfig + std::string("\0{", 2), {"NUL"}};
    case D::trailing:
      return {"trailing", kSoundConfig + std::string("}"), {"not JSON"}};
    case D::single_quotes:
      return {"single_quotes", "{'a':1}", {"not JSON"}};
    case D::comment:
      return {"comment", "{/*x*/}", {"not JSON"}};
    case D::deep_arrays:
      return {"deep_arrays", with("[1,2]", std::string(100'000, '[') + std::string(100'000, ']')), {"128"}};
    case D::deep_objects:
      for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
      return {"deep_objects", deep, {"128"}};
    case D::number_huge:
      return {"number_huge", with("1e4", "1e999"), {"1e999"}};
    case D::leading_zero:
      return {"leading_zero", with(":2,", ":02,"), {"not JSON"}};
    case D::invalid_utf8:
      return {"invalid_utf8", with("\"m\"", "\"\xc0\xaf\""), {"UTF-8"}};
    case D::lone_surrogate:
      return {"lone_surrogate", with("\"m\"", "\"\\udc00\""), {"surrogate"}};
    case D::duplicate:
      return {"duplicate", with("\"tie\"", "\"top_k\":2,\"tie\""), {"\"top_k\" twice"}};
    case D::duplicate_escaped:
      return {"duplicate_escaped", with("\"tie\"", "\"top\\u005fk\":2,\"tie\""), {"\"top_k\" twice"}};
    case D::experts_zero:
      return {"experts_zero", with(":8", ":0"), {"num_experts is 0", "1 to 65536"}};
    case D::experts_2_31:
      return {"experts_2_31", with(":8", ":2147483648"), {"2147483648", "65536"}};
    case D::experts_2_63:
      return {"experts_2_63", with(":8", ":9223372036854775808"), {"num_experts", "65536"}};
    case D::experts_negative:
      return {"experts_negative", with(":8", ":-8"), {"num_experts is -8"}};
    case D::experts_minus_zero:
      return {"experts_minus_zero", with(":8", ":-0"), {"num_experts is -0"}};
    case D::experts_float:
      return {"experts_float", with(":8", ":8.5"), {"num_experts is 8.5", "integer"}};
    case D::experts_string:
      return {"experts_string", with(":8", ":\"8\""), {"num_experts is \"8\"", "integer"}};
    case D::experts_list:
      return {"experts_list", with(":8", ":[8]"), {"num_experts is an array", "integer"}};
    case D::experts_missing:
      return {"experts_missing", with("num_experts", "experts"), {"num_experts or n_routed_experts is missing"}};
    case D::experts_null:
      return {"experts_null", with(":8", ":null"), {"num_experts or n_routed_experts is missing"}};
    case D::experts_disagree:
      return {"experts_disagree",
              with("\"tie\"", "\"n_routed_experts\":9,\"tie\""),
              {"num_experts is 8", "n_routed_experts is 9"}};
    case D::top_k_above_experts:
      return {"top_k_above_experts", with("\"top_k\":2", "\"top_k\":9"), {"top_k is 9", "num_experts"}};
    case D::theta_zero:
      return {"theta_zero", with("1e4", "0"), {"theta is 0", "0.001"}};
    case D::theta_nan:
      return {"theta_nan", with("1e4", "NaN"), {"theta is NaN"}};
    case D::theta_infinite:
      return {"theta_infinite", with("1e4", "Infinity"), {"theta is Infinity"}};
    case D::theta_string:
      return {"theta_string", with("1e4", "\"1e4\""), {"theta is \"1e4\"", "number"}};
    case D::theta_object:
      return {"theta_object", with("1e4", "{\"__float__\":\"many\"}"), {"theta is many", "number"}};
    case D::type_number:
      return {"type_number", with("\"m\"", "3"), {"model_type is 3", "string"}};
    case D::eos_negative:
      return {"eos_negative", with("[1,2]", "[1,-2]"), {"eos holds -2 at [1]"}};
    case D::eos_nested:
      return {"eos_nested", with("[1,2]", "[[1]]"), {"eos holds an array of 1 value at [0]"}};
    case D::tie_number:
      return {"tie_number", with("false", "0"), {"tie is 0", "true or false"}};
    case D::limit_negative:
      return {"limit_negative", with("[0,Infinity]", "[-Infinity,0]"), {"limit holds -Infinity at [0]"}};
    case D::rope_list:
      return {"rope_list", with("{\"factor\":2.0}", "[]"), {"rope is an array", "object"}};
    case D::rope_factor:
      return {"rope_factor", with("2.0", "0.5"), {"rope.factor is 0.5", "at least 1"}};
    case D::groups_object:
      return {"groups_object", with("[{\"bits\":4}]", "{}"), {"groups is an object", "array of objects"}};
    case D::groups_numbers:
      return {"groups_numbers", with("[{\"bits\":4}]", "[{\"bits\":4},4]"), {"groups holds 4 at [1]"}};
    case D::groups_bits:
      return {"groups_bits", with("\"bits\":4", "\"bits\":99"), {"groups[0].bits is 99", "2 to 16"}};
    case D::names_number:
      return {"names_number", with("\"lm_head\"", "1"), {"names holds 1 at [0]", "string"}};
    case D::count:
      break;
  }
  return {};
}

inline std::vector<DefectiveFile> config_defects() {
  std::vector<DefectiveFile> files;
  for (int i = 0; i < static_cast<int>(ConfigDefect::count); ++i)
    files.push_back(make_defect(static_cast<ConfigDefect>(i)));
  return files;
}

}  // namespace sluice::io
