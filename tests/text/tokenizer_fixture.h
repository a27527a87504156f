// SPDX-License-Identifier: Apache-2.0
// Reads a tokenizer.json the short way, so that these tests depend on text/ alone. The real reader is io's.
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/tokenizer_data.h"

namespace sluice::text {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "cannot open {}", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void add_pre_tokenizer(const nlohmann::json& j, std::vector<PreTokenizerStep>& out) {
  const std::string type = j.at("type");
  if (type == "Sequence") {
    for (const auto& step : j.at("pretokenizers")) add_pre_tokenizer(step, out);
    return;
  }
  PreTokenizerStep s;
  if (type == "Split") {
    const auto& pattern = j.at("pattern");
    s.is_regex = pattern.contains("Regex");
    s.pattern = pattern.at(s.is_regex ? "Regex" : "String");
    s.behavior = parse_name(kSplitBehaviors, "behavior", j.at("behavior").get<std::string>());
    s.invert = j.at("invert");
  } else if (type == "Digits") {
    s.kind = PreTokenizerStep::Kind::digits;
    s.individual_digits = j.at("individual_digits");
  } else {
    check(type == "ByteLevel", "pre-tokenizer {}", type);
    s.kind = PreTokenizerStep::Kind::byte_level;
    s.add_prefix_space = j.at("add_prefix_space");
    s.use_regex = j.at("use_regex");
  }
  out.push_back(s);
}

inline TokenizerData tokenizer_data_of(const nlohmann::json& j, const std::string& source) {
  TokenizerData d;
  d.source = source;
  const auto& model = j.at("model");
  for (const auto& [token, id] : model.at("vocab").items()) d.vocab.emplace_back(token, id.get<int64_t>());
  for (const auto& m : model.at("merges")) d.merges.emplace_back(m.at(0), m.at(1));
  if (model.at("unk_token").is_string()) d.unk_token = model.at("unk_token");
  d.fuse_unk = model.at("fuse_unk");
  d.ignore_merges = model.at("ignore_merges");
  for (const auto& a : j.at("added_tokens"))
    d.added_tokens.push_back({a.at("content"), a.at("id"), a.at("single_word"), a.at("lstrip"), a.at("rstrip"),
                              a.at("normalized"), a.at("special")});
  if (j.at("normalizer").is_object())
    d.normalizers.push_back(parse_name(kNormalizers, "normalizer", j.at("normalizer").at("type").get<std::string>()));
  add_pre_tokenizer(j.at("pre_tokenizer"), d.pre_tokenizers);
  const auto& post = j.at("post_processor");
  if (post.is_object() && post.at("type") == "TemplateProcessing") {
    bool after = false;
    for (const auto& item : post.at("single")) {
      if (item.contains("Sequence")) {
        after = true;
        continue;
      }
      for (const int64_t id :
           post.at("special_tokens").at(item.at("SpecialToken").at("id").get<std::string>()).at("ids"))
        (after ? d.suffix_ids : d.prefix_ids).push_back(id);
    }
  }
  return d;
}

}  // namespace sluice::text
