// SPDX-License-Identifier: Apache-2.0
// Broken tokenizer.json files: M7 and M13 of docs/robustness.md. Also the seeds of the fuzz target.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "tests/io/safetensors_defects.h"

namespace sluice::io {

// Tokens a, b, ab and one added token.
inline const char* const kSoundTokenizer =
    R"({"version":"1.0","added_tokens":[{"id":3,"content":"<s>","special":true}],"normalizer":{"type":"NFC"},)"
    R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
    R"({"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Isolated","invert":false},)"
    R"({"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
    R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}},)"
    R"("decoder":{"type":"ByteLevel"},)"
    R"("model":{"type":"BPE","dropout":null,"unk_token":null,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";

inline const char* const kSoundTokenizerConfig =
    R"({"add_bos_token":true,"bos_token":{"content":"<s>"},"eos_token":"<s>","pad_token":null,)"
    R"("model_max_length":1000000000000000019884624838656,"chat_template":"{{ messages }}"})";

enum class TokenizerDefect {
  not_json,
  array,
  deep,
  no_model,
  no_model_type,
  unigram,
  no_vocab,
  vocab_list,
  vocab_empty,
  id_string,
  id_negative,
  id_fraction,
  id_huge,
  id_minus_zero,
  id_twice,
  token_twice,
  no_merges,
  merges_object,
  merge_one,
  merge_three,
  merge_number,
  merge_pair_of_one,
  merge_pair_number,
  merge_unknown,
  added_no_content,
  added_empty,
  added_id_negative,
  added_id_missing,
  added_id_taken,
  added_list_number,
  normalizer_unknown,
  normalizer_no_type,
  pre_unknown,
  split_no_pattern,
  split_behavior,
  split_bad_regex,
  post_unknown,
  post_no_text,
  post_text_twice,
  post_long,
  post_unknown_token,
  post_id_beyond,
  decoder_other,
  dropout,
  byte_fallback,
  unk_unknown,
  count
};

struct DefectiveTokenizer : DefectiveFile {
  ErrorCode code = ErrorCode::bad_file;
};

inline DefectiveTokenizer make_defect(TokenizerDefect defect) {
  using D = TokenizerDefect;
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kSoundTokenizer;
    return text.replace(text.find(from), from.size(), to);
  };
  constexpr ErrorCode kUnsupported = ErrorCode::unsupported;
  switch (defect) {
    case D::not_json:
      return {{"not_json", "{", {"not JSON"}}};
    case D::array:
      return {{"array", "[]", {"JSON object"}}};
    case D::deep:
      return {{"deep", "{\"model\":" + std::string(100'000, '['), {"128"}}};
    case D::no_model:
      return {{"no_model", with("\"model\"", "\"modell\""), {"model is missing"}}};
    case D::no_model_type:
      return {{"no_model_type", with("\"type\":\"BPE\",", ""), {"model.type is missing"}}};
    case D::unigram:
      return {{"unigram", with("BPE", "Unigram"), {"model", "\"Unigram\"", "BPE"}}, kUnsupported};
    case D::no_vocab:
      return {{"no_vocab", with("\"vocab\"", "\"words\""), {"model.vocab is missing"}}};
    case D::vocab_list:
      return {{"vocab_list", with(R"({"a":0,"b":1,"ab":2})", "[]"), {"model.vocab is an array"}}};
    case D::vocab_empty:
      return {{"vocab_empty", with(R"({"a":0,"b":1,"ab":2})", "{}"), {"vocabulary is empty"}}};
    case D::id_string:
      return {{"id_string", with("\"b\":1", "\"b\":\"1\""), {"\"b\"", "\"1\"", "integer"}}};
    case D::id_negative:
      return {{"id_negative", with("\"b\":1", "\"b\":-1"), {"\"b\"", "-1"}}};
    case D::id_fraction:
      return {{"id_fraction", with("\"b\":1", "\"b\":1.5"), {"\"b\"", "1.5", "integer"}}};
    case D::id_huge:
      return {{"id_huge", with("\"b\":1", "\"b\":4611686018427387904"), {"\"b\"", "4611686018427387904"}}};
    case D::id_minus_zero:
      return {{"id_minus_zero", with("\"b\":1", "\"b\":-0"), {"\"b\"", "-0", "integer"}}};
    case D::id_twice:
      return {{"id_twice", with("\"b\":1", "\"b\":0"), {"\"a\"", "\"b\"", "id 0"}}};
    case D::token_twice:
      return {{"token_twice", with("\"b\":1", "\"b\":1,\"\\u0062\":4"), {"\"b\" twice"}}};
    case D::no_merges:
      return {{"no_merges", with("\"merges\"", "\"pairs\""), {"model.merges is missing"}}};
    case D::merges_object:
      return {{"merges_object", with("[\"a b\"]", "{}"), {"model.merges is an object"}}};
    case D::merge_one:
      return {{"merge_one", with("\"a b\"", "\"ab\""), {"model.merges[0]", "\"ab\"", "two tokens"}}};
    case D::merge_three:
      return {{"merge_three", with("\"a b\"", "\"a b c\""), {"model.merges[0]", "two tokens"}}};
    case D::merge_number:
      return {{"merge_number", with("\"a b\"", "\"a b\",7"), {"model.merges[1]", "7"}}};
    case D::merge_pair_of_one:
      return {{"merge_pair_of_one", with("\"a b\"", "[\"a\"]"), {"model.merges[0]", "two tokens"}}};
    case D::merge_pair_number:
      return {{"merge_pair_number", with("\"a b\"", "[\"a\",1]"), {"model.merges[0]", "two tokens"}}};
    case D::merge_unknown:
      return {{"merge_unknown", with("\"a b\"", "\"a z\""), {"z"}}};
    case D::added_no_content:
      return {{"added_no_content", with("\"content\":\"<s>\",", ""), {"added_tokens[0].content is missing"}}};
    case D::added_empty:
      return {{"added_empty", with("\"content\":\"<s>\"", "\"content\":\"\""), {"added token", "empty"}}};
    case D::added_id_negative:
      return {{"added_id_negative", with("\"id\":3", "\"id\":-3"), {"-3"}}};
    case D::added_id_missing:
      return {{"added_id_missing", with("\"id\":3,", ""), {"added_tokens[0].id is missing"}}};
    case D::added_id_taken:
      return {{"added_id_taken", with("\"id\":3", "\"id\":1"), {"\"b\"", "<s>", "id 1"}}};
    case D::added_list_number:
      return {{"added_list_number", with("\"added_tokens\":[", "\"added_tokens\":[5,"), {"added_tokens[0] is 5"}}};
    case D::normalizer_unknown:
      return {{"normalizer_unknown", with("NFC", "Lowercase"), {"normalizer", "\"Lowercase\"", "NFKC"}}, kUnsupported};
    case D::normalizer_no_type:
      return {{"normalizer_no_type", with("{\"type\":\"NFC\"}", "{}"), {"normalizer.type is missing"}}};
    case D::pre_unknown:
      return {{"pre_unknown", with("Digits", "Metaspace"), {"pre_tokenizer.pretokenizers[1]", "\"Metaspace\""}},
              kUnsupported};
    case D::split_no_pattern:
      return {{"split_no_pattern", with("\"Regex\"", "\"Glob\""), {"pattern.String is missing"}}};
    case D::split_behavior:
      return {{"split_behavior", with("Isolated", "Alone"), {"behavior", "\"Alone\"", "Isolated"}}};
    case D::split_bad_regex:
      return {{"split_bad_regex", with("\\\\p{L}+", "(["), {"tokenizer.json"}}};
    case D::post_unknown:
      return {{"post_unknown", with("TemplateProcessing", "BertProcessing"), {"post_processor", "BertProcessing"}},
              kUnsupported};
    case D::post_no_text:
      return {{"post_no_text", with("{\"Sequence\"", "{\"Seq\""), {"SpecialToken is missing"}}};
    case D::post_text_twice:
      return {{"post_text_twice",
               with("{\"Sequence\"", R"({"Sequence":{"id":"A"}},{"Sequence")"),
               {"post_processor.single", "twice"}},
              kUnsupported};
    case D::post_long: {
      std::string pieces;
      for (int k = 0; k < 65; ++k) pieces += R"({"SpecialToken":{"id":"<s>"}},)";
      return {{"post_long", with("{\"Sequence\"", pieces + "{\"Sequence\""), {"post_processor.single", "67", "64"}},
              kUnsupported};
    }
    case D::post_unknown_token:
      return {{"post_unknown_token",
               with("\"special_tokens\":{\"<s>\"", "\"special_tokens\":{\"<t>\""),
               {"special_tokens.<s>"}}};
    case D::post_id_beyond:
      return {{"post_id_beyond", with("\"ids\":[3]", "\"ids\":[77]"), {"77"}}};
    case D::decoder_other:
      return {{"decoder_other",
               with("\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"Metaspace\"}"),
               {"tokenizer.json", "byte-level"}},
              kUnsupported};
    case D::dropout:
      return {{"dropout", with("\"dropout\":null", "\"dropout\":0.1"), {"model.dropout is 0.1"}}, kUnsupported};
    case D::byte_fallback:
      return {{"byte_fallback", with("\"dropout\":null", "\"byte_fallback\":true"), {"tokenizer.json"}}, kUnsupported};
    case D::unk_unknown:
      return {{"unk_unknown", with("\"unk_token\":null", "\"unk_token\":\"?\""), {"\"?\""}}};
    case D::count:
      break;
  }
  return {};
}

inline std::vector<DefectiveTokenizer> tokenizer_defects() {
  std::vector<DefectiveTokenizer> files;
  for (int i = 0; i < static_cast<int>(TokenizerDefect::count); ++i)
    files.push_back(make_defect(static_cast<TokenizerDefect>(i)));
  return files;
}

}  // namespace sluice::io
