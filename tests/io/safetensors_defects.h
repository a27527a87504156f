// SPDX-License-Identifier: Apache-2.0
// Broken safetensors files, one for each defect: M1-M8, M10 of docs/robustness.md. Also the seeds of
// the fuzz target.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace sluice::io {

struct DefectiveFile {
  std::string name;                // of the defect
  std::string bytes;               // the file
  std::vector<std::string> words;  // that the sentence must hold
};

// 8 bytes of length, the header, `data_bytes` bytes of data.
inline std::string pack_safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i * 37 + 1);
  return file;
}

// Two tensors and metadata; 28 bytes of data.
inline const char* const kSoundHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"F32","shape":[4],"data_offsets":[12,28]}}  )";

inline std::string sound_safetensors() { return pack_safetensors(kSoundHeader, 28); }

enum class SafetensorsDefect {
  empty_header,
  seven_bytes,
  length_max,
  length_wraps,
  length_over_limit,
  length_past_end,
  not_an_object,
  leading_space,
  not_json,
  invalid_utf8,
  lone_surrogate,
  nul_then_garbage,
  trailing_text,
  deep_arrays,
  deep_objects,
  number_huge,
  number_leading_zero,
  top_is_array,
  value_is_number,
  value_is_null,
  metadata_number,
  metadata_list,
  metadata_null,
  metadata_nested,
  metadata_twice,
  metadata_key_twice,
  duplicate_name,
  duplicate_escaped,
  empty_name,
  nul_name,
  long_name,
  no_dtype,
  no_shape,
  no_offsets,
  dtype_twice,
  unknown_field,
  unknown_dtype,
  dtype_number,
  shape_string,
  shape_nested,
  shape_negative,
  shape_minus_zero,
  shape_fraction,
  shape_exponent,
  shape_beyond_int64,
  shape_product_wraps,
  shape_times_width_wraps,
  shape_overflow_then_zero,
  shape_of_65,
  shape_of_a_million,
  offsets_one,
  offsets_three,
  offsets_swapped,
  offsets_negative,
  offsets_fraction,
  offsets_object,
  span_too_small,
  span_too_large,
  half_byte,
  overlap,
  hole_first,
  hole_between,
  past_end,
  trailing_bytes,
  truncated_data,
  count
};

inline DefectiveFile make_defect(SafetensorsDefect defect) {
  using D = SafetensorsDefect;
  const auto one = [](const std::string& body, size_t data = 8) {
    return pack_safetensors("{\"w\":" + body + "}", data);
  };
  const auto tensor = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return one(R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}");
  };
  const auto shape = [&](const std::string& s) { return tensor("\"F32\"", s, "[0,8]"); };
  const auto ones = [](int count) {
    std::string text = "[1";
    for (int i = 1; i < count; ++i) text += ",1";
    return text + "]";
  };
  const auto offsets = [&](const std::string& o) { return tensor("\"F32\"", "[2]", o); };
  const auto two = [](const std::string& a, const std::string& b, size_t data) {
    return pack_safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                                R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                            data);
  };
  const auto with_length = [](uint64_t length) {
    std::string file = sound_safetensors();
    std::memcpy(file.data(), &length, 8);
    return file;
  };
  const std::string good = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  switch (defect) {
    case D::empty_header:
      return {"empty_header", pack_safetensors("", 0), {"begin with"}};
    case D::seven_bytes:
      return {"seven_bytes", std::string(7, '\1'), {"7 bytes", "at least 8"}};
    case D::length_max:
      return {"length_max", with_length(~uint64_t{0}), {"18446744073709551615", "100000000"}};
    case D::length_wraps:
      return {"length_wraps", with_length(~uint64_t{0} - 7), {"18446744073709551608"}};
    case D::length_over_limit:
      return {"length_over_limit", with_length(100'000'001), {"100000001", "100000000"}};
    case D::length_past_end:
      return {"length_past_end", with_length(99'999'999), {"99999999", "ends after"}};
    case D::not_an_object:
      return {"not_an_object", pack_safetensors("\"text\"", 0), {"begin with"}};
    case D::leading_space:
      return {"leading_space", pack_safetensors(" {}", 0), {"begin with"}};
    case D::not_json:
      return {"not_json", pack_safetensors("{\"a\":,}", 0), {"not JSON", "byte"}};
    case D::invalid_utf8:
      return {"invalid_utf8", pack_safetensors("{\"\xff\":1}", 0), {"UTF-8"}};
    case D::lone_surrogate:
      return {"lone_surrogate", pack_safetensors(R"({"\ud800":1})", 0), {"surrogate"}};
    case D::nul_then_garbage:
      return {"nul_then_garbage", pack_safetensors(std::string("{}\0{{{", 6), 0), {"NUL"}};
    case D::trailing_text:
      return {"trailing_text", pack_safetensors("{}x", 0), {"not JSON"}};
    case D::deep_arrays:
      return {"deep_arrays", shape(std::string(100'000, '[')), {"\"w\""}};
    case D::deep_objects: {
      std::string header;
      for (int i = 0; i < 100'000; ++i) header += "{\"a\":";
      return {"deep_objects", pack_safetensors(header, 0), {}};
    }
    case D::number_huge:
      return {"number_huge", shape("[1e999]"), {"1e999"}};
    case D::number_leading_zero:
      return {"number_leading_zero", shape("[01]"), {"not JSON"}};
    case D::top_is_array:
      return {"top_is_array", pack_safetensors("[]", 0), {"begin with"}};
    case D::value_is_number:
      return {"value_is_number", one("7"), {"\"w\"", "7", "dtype"}};
    case D::value_is_null:
      return {"value_is_null", one("null"), {"\"w\"", "null"}};
    case D::metadata_number:
      return {"metadata_number", pack_safetensors(R"({"__metadata__":{"k":1}})", 0), {"\"k\"", "1"}};
    case D::metadata_list:
      return {"metadata_list", pack_safetensors(R"({"__metadata__":[]})", 0), {"__metadata__", "array"}};
    case D::metadata_null:
      return {"metadata_null", pack_safetensors(R"({"__metadata__":null})", 0), {"__metadata__", "null"}};
    case D::metadata_nested:
      return {"metadata_nested", pack_safetensors(R"({"__metadata__":{"k":{"x":"y"}}})", 0), {"\"k\"", "object"}};
    case D::metadata_twice:
      return {
          "metadata_twice", pack_safetensors(R"({"__metadata__":{},"__metadata__":{}})", 0), {"__metadata__ twice"}};
    case D::metadata_key_twice:
      return {"metadata_key_twice", pack_safetensors(R"({"__metadata__":{"k":"1","k":"2"}})", 0), {"twice"}};
    case D::duplicate_name:
      return {"duplicate_name", pack_safetensors("{\"w\":" + good + ",\"w\":" + good + "}", 1), {"\"w\" twice"}};
    case D::duplicate_escaped:
      return {
          "duplicate_escaped", pack_safetensors("{\"w\":" + good + ",\"\\u0077\":" + good + "}", 1), {"\"w\" twice"}};
    case D::empty_name:
      return {"empty_name", pack_safetensors("{\"\":" + good + "}", 1), {"empty name"}};
    case D::nul_name:
      return {"nul_name", pack_safetensors("{\"w\\u0000x\":" + good + "}", 1), {"NUL", "w\\x00x"}};
    case D::long_name:
      return {"long_name", pack_safetensors("{\"" + std::string(1 << 20, 'n') + "\":7}", 0), {"nnn..."}};
    case D::no_dtype:
      return {"no_dtype", one(R"({"shape":[8],"data_offsets":[0,8]})"), {"\"w\" has no dtype"}};
    case D::no_shape:
      return {"no_shape", one(R"({"dtype":"U8","data_offsets":[0,8]})"), {"\"w\" has no shape"}};
    case D::no_offsets:
      return {"no_offsets", one(R"({"dtype":"U8","shape":[8]})"), {"\"w\" has no data_offsets"}};
    case D::dtype_twice:
      return {"dtype_twice", one(R"({"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]})"), {"dtype twice"}};
    case D::unknown_field:
      return {"unknown_field", one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"stride":[1]})"), {"\"stride\""}};
    case D::unknown_dtype:
      return {"unknown_dtype", tensor("\"Q4_K\"", "[8]", "[0,8]"), {"\"w\"", "\"Q4_K\"", "BF16"}};
    case D::dtype_number:
      return {"dtype_number", tensor("3", "[8]", "[0,8]"), {"\"w\" dtype", "3"}};
    case D::shape_string:
      return {"shape_string", shape("\"[2]\""), {"\"w\" shape", "[2]"}};
    case D::shape_nested:
      return {"shape_nested", shape("[[2]]"), {"\"w\" shape", "array"}};
    case D::shape_negative:
      return {"shape_negative", shape("[-2]"), {"\"w\" shape", "-2"}};
    case D::shape_minus_zero:
      return {"shape_minus_zero", shape("[-0]"), {"\"w\" shape", "-0"}};
    case D::shape_fraction:
      return {"shape_fraction", shape("[2.5]"), {"\"w\" shape", "2.5"}};
    case D::shape_exponent:
      return {"shape_exponent", shape("[2e0]"), {"\"w\" shape"}};
    case D::shape_beyond_int64:
      return {"shape_beyond_int64", shape("[9223372036854775808]"), {"\"w\" shape"}};
    case D::shape_product_wraps:
      return {"shape_product_wraps", shape("[4294967296,4294967296]"), {"\"w\"", "2^63"}};
    case D::shape_times_width_wraps:
      return {"shape_times_width_wraps", tensor("\"F64\"", "[2305843009213693952]", "[0,8]"), {"\"w\"", "2^63"}};
    case D::shape_overflow_then_zero:
      return {"shape_overflow_then_zero", tensor("\"U8\"", "[4294967296,4294967296,0]", "[0,0]"), {"2^63"}};
    case D::shape_of_65:
      return {"shape_of_65", shape(ones(65)), {"\"w\" has 65 dimensions; accepted: at most 64"}};
    case D::shape_of_a_million:
      return {"shape_of_a_million", shape(ones(1'000'000)), {"\"w\" has 1000000 dimensions; accepted: at most 64"}};
    case D::offsets_one:
      return {"offsets_one", offsets("[0]"), {"\"w\"", "1 data_offsets"}};
    case D::offsets_three:
      return {"offsets_three", offsets("[0,8,8]"), {"\"w\"", "more than two"}};
    case D::offsets_swapped:
      return {"offsets_swapped", offsets("[8,0]"), {"\"w\"", "[8, 0]"}};
    case D::offsets_negative:
      return {"offsets_negative", offsets("[-8,0]"), {"\"w\" data_offsets", "-8"}};
    case D::offsets_fraction:
      return {"offsets_fraction", offsets("[0,8.0]"), {"\"w\" data_offsets", "8"}};
    case D::offsets_object:
      return {"offsets_object", offsets("{\"begin\":0}"), {"\"w\" data_offsets", "object"}};
    case D::span_too_small:
      return {"span_too_small", shape("[4]"), {"\"w\"", "16", "8"}};
    case D::span_too_large:
      return {"span_too_large", shape("[1]"), {"\"w\"", "4", "8"}};
    case D::half_byte:
      return {"half_byte", tensor("\"F4\"", "[15]", "[0,8]"), {"\"w\"", "F4", "whole bytes"}};
    case D::overlap:
      return {"overlap", two("[0,4]", "[2,6]", 6), {"\"b\"", "inside another"}};
    case D::hole_first:
      return {"hole_first", two("[1,5]", "[5,9]", 9), {"\"a\"", "hole"}};
    case D::hole_between:
      return {"hole_between", two("[0,4]", "[5,9]", 9), {"\"b\"", "hole"}};
    case D::past_end:
      return {"past_end", two("[0,4]", "[4,8]", 6), {"\"b\"", "8", "6"}};
    case D::trailing_bytes:
      return {"trailing_bytes", sound_safetensors() + "PK", {"2 bytes after"}};
    case D::truncated_data:
      return {"truncated_data", pack_safetensors(kSoundHeader, 27), {"\"b\"", "28", "27"}};
    case D::count:
      break;
  }
  return {};
}

inline std::vector<DefectiveFile> safetensors_defects() {
  std::vector<DefectiveFile> files;
  for (int i = 0; i < static_cast<int>(SafetensorsDefect::count); ++i)
    files.push_back(make_defect(static_cast<SafetensorsDefect>(i)));
  return files;
}

}  // namespace sluice::io
