// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer_json.h"

#include <utility>

#include "base/error.h"
#include "io/file.h"
#include "io/json_value.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
using text::PreTokenizerStep;
using text::TokenizerData;

constexpr int64_t kMaxTokenizerBytes = int64_t{100} << 20;  // the longest in use (260,000 tokens) are 33 MB
constexpr int64_t kMaxTemplateBytes = int64_t{16} << 20;
constexpr size_t kMaxTemplatePieces = 64;

// A value and the words for where it is: "tokenizer.json: model.vocab".
struct Node {
  const JsonValue* value;  // nullptr: absent or null
  std::string where;

  explicit operator bool() const { return value != nullptr; }
  Node operator[](std::string_view key) const {
    return {value ? value->find(key) : nullptr, where + (where.ends_with(": ") ? "" : ".") + printable(key)};
  }
  Node at(size_t i) const {
    const auto& array = *value->as<JsonValue::Array>();
    return {array[i].is_null() ? nullptr : &array[i], fmt::format("{}[{}]", where, i)};
  }
  std::string text() const { return value ? describe(*value) : "missing"; }

  template <class T>
  const T& as(std::string_view wanted) const {
    const T* p = value ? value->as<T>() : nullptr;
    if (p == nullptr) fail(ErrorCode::bad_file, "{} is {}; it must be {}", where, text(), wanted);
    return *p;
  }
  const std::string& string() const { return as<std::string>("a string"); }
  int64_t integer() const { return as<int64_t>("an integer"); }
  bool boolean(bool fallback) const { return value ? as<bool>("true or false") : fallback; }
  std::string string(std::string_view fallback) const { return value ? string() : std::string(fallback); }
  const JsonValue::Object& object() const { return as<JsonValue::Object>("an object"); }
  size_t size() const { return as<JsonValue::Array>("an array").size(); }
  // {"type": "Split", ...}
  const std::string& type() const {
    object();
    return (*this)["type"].string();
  }
};

// Calls visit(node) for the node, or for each member of {"type": "Sequence", <members>: [...]}, to any depth (the JSON
// parser bounds it).
template <class Visit>
void flatten(const Node& node, std::string_view members, const Visit& visit) {
  if (!node) return;
  if (node.type() != "Sequence") return visit(node);
  const Node list = node[members];
  for (size_t i = 0; i < list.size(); ++i) flatten(list.at(i), members, visit);
}

[[noreturn]] void refuse_kind(const Node& node, std::string_view known) {
  fail(ErrorCode::unsupported, "{} has the type {}; supported: {}", node.where, quote(node.type()), known);
}

void read_vocab(const Node& vocab, TokenizerData& out) {
  const auto& members = vocab.object();
  out.vocab.reserve(members.size());
  for (const JsonMember& member : members) {
    const auto* id = member.value.as<int64_t>();
    if (id == nullptr)
      fail(ErrorCode::bad_file, "{} gives token {} the id {}; it must be an integer", vocab.where, quote(member.key),
           describe(member.value));
    out.vocab.emplace_back(member.key, *id);
  }
}

void read_merges(const Node& merges, TokenizerData& out) {
  const size_t count = merges.size();
  out.merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonValue& merge = (*merges.value->as<JsonValue::Array>())[i];
    std::string left, right;
    if (const auto* line = merge.as<std::string>()) {
      // In the byte-level alphabet a space is a letter of its own, so the line has exactly one.
      const size_t space = line->find(' ');
      if (space != line->npos && line->find(' ', space + 1) == line->npos)
        left = line->substr(0, space), right = line->substr(space + 1);
    } else if (const auto* pair = merge.as<JsonValue::Array>(); pair && pair->size() == 2) {
      const auto *first = (*pair)[0].as<std::string>(), *second = (*pair)[1].as<std::string>();
      if (first && second) left = *first, right = *second;
    }
    if (left.empty() || right.empty())
      fail(ErrorCode::bad_file, "{}[{}] is {}; it must be two tokens, \"a b\" or [\"a\", \"b\"]", merges.where, i,
           describe(merge));
    out.merges.emplace_back(std::move(left), std::move(right));
  }
}

void read_model(const Node& model, TokenizerData& out) {
  if (model.type() != "BPE") refuse_kind(model, "BPE");
  read_vocab(model["vocab"], out);
  read_merges(model["merges"], out);
  out.unk_token = model["unk_token"].string("");
  out.fuse_unk = model["fuse_unk"].boolean(false);
  out.ignore_merges = model["ignore_merges"].boolean(false);
  out.byte_fallback = model["byte_fallback"].boolean(false);
  out.continuing_subword_prefix = model["continuing_subword_prefix"].string("");
  out.end_of_word_suffix = model["end_of_word_suffix"].string("");
  // Dropout draws merges at random: a training aid that would make the same text give other tokens each time.
  if (const Node dropout = model["dropout"];
      dropout && *dropout.value != JsonValue{0.0} && *dropout.value != JsonValue{int64_t{0}})
    fail(ErrorCode::unsupported, "{} is {}; it must be null or 0", dropout.where, dropout.text());
}

void read_added_tokens(const Node& list, TokenizerData& out) {
  if (!list) return;
  for (size_t i = 0; i < list.size(); ++i) {
    const Node token = list.at(i);
    token.object();
    out.added_tokens.push_back({token["content"].string(), token["id"].integer(), token["single_word"].boolean(false),
                                token["lstrip"].boolean(false), token["rstrip"].boolean(false),
                                token["normalized"].boolean(false), token["special"].boolean(false)});
  }
}

void read_normalizer(const Node& node, TokenizerData& out) {
  flatten(node, "normalizers", [&](const Node& step) {
    for (const auto& row : text::kNormalizers)
      if (row.name == step.type()) return out.normalizers.push_back(row.value);
    refuse_kind(step, "NFC, NFD, NFKC, NFKD, Sequence");
  });
}

PreTokenizerStep read_split(const Node& node) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::split;
  const Node pattern = node["pattern"];
  pattern.object();
  step.is_regex = static_cast<bool>(pattern["Regex"]);
  step.pattern = pattern[step.is_regex ? "Regex" : "String"].string();
  step.invert = node["invert"].boolean(false);
  const std::string& behavior = node["behavior"].string();
  std::string known;
  for (const auto& row : text::kSplitBehaviors) {
    if (row.name == behavior) {
      step.behavior = row.value;
      return step;
    }
    known.append(known.empty() ? "" : ", ").append(row.name);
  }
  fail(ErrorCode::bad_file, "{} is {}; accepted: {}", node["behavior"].where, quote(behavior), known);
}

void read_pre_tokenizer(const Node& node, TokenizerData& out) {
  flatten(node, "pretokenizers", [&](const Node& each) {
    const std::string& type = each.type();
    PreTokenizerStep step;
    if (type == "Split") {
      step = read_split(each);
    } else if (type == "ByteLevel") {
      step.kind = PreTokenizerStep::Kind::byte_level;
      step.add_prefix_space = each["add_prefix_space"].boolean(true);
      step.use_regex = each["use_regex"].boolean(true);
    } else if (type == "Digits") {
      step.kind = PreTokenizerStep::Kind::digits;
      step.individual_digits = each["individual_digits"].boolean(false);
    } else {
      refuse_kind(each, "Split, ByteLevel, Digits, Sequence");
    }
    out.pre_tokenizers.push_back(std::move(step));
  });
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [1]}}}
void read_template(const Node& node, TokenizerData& out) {
  const Node single = node["single"];
  // Each piece searches special_tokens; real templates have up to four.
  if (single.size() > kMaxTemplatePieces)
    fail(ErrorCode::unsupported, "{} has {} pieces; at most {} are read", single.where, single.size(),
         kMaxTemplatePieces);
  bool before_text = true;
  for (size_t i = 0; i < single.size(); ++i) {
    const Node piece = single.at(i);
    piece.object();
    if (piece["Sequence"]) {
      if (!std::exchange(before_text, false))
        fail(ErrorCode::unsupported, "{} puts the text in twice; supported: once", single.where);
      continue;
    }
    const Node token = piece["SpecialToken"];
    token.object();
    const Node ids = node["special_tokens"][token["id"].string()]["ids"];
    for (size_t k = 0; k < ids.size(); ++k)
      (before_text ? out.prefix_ids : out.suffix_ids).push_back(ids.at(k).integer());
  }
  if (before_text) fail(ErrorCode::bad_file, "{} leaves the text out; it must hold a Sequence", single.where);
}

void read_post_processor(const Node& node, TokenizerData& out) {
  bool seen = false;
  flatten(node, "processors", [&](const Node& each) {
    if (each.type() == "ByteLevel") return;  // trims offsets, adds nothing
    if (each.type() != "TemplateProcessing") refuse_kind(each, "ByteLevel, TemplateProcessing, Sequence");
    if (std::exchange(seen, true))
      fail(ErrorCode::unsupported, "{} is a second TemplateProcessing; supported: one", each.where);
    read_template(each, out);
  });
}

// "<s>" or {"content": "<s>", ...}
std::string token_text(const Node& node) {
  if (!node) return "";
  return node.value->as<JsonValue::Object>() ? node["content"].string() : node.string();
}

std::string chat_template(const Node& node) {
  if (!node || node.value->as<std::string>()) return node.string("");
  for (size_t i = 0; i < node.size(); ++i) {
    const Node each = node.at(i);
    each.object();
    if (each["name"].string() == "default") return each["template"].string();
  }
  return "";
}

void read_config(const Node& config, TokenizerData& out) {
  config.object();
  out.add_bos_token = config["add_bos_token"].boolean(false);
  out.add_eos_token = config["add_eos_token"].boolean(false);
  out.bos_token = token_text(config["bos_token"]);
  out.eos_token = token_text(config["eos_token"]);
  out.pad_token = token_text(config["pad_token"]);
  out.chat_template = chat_template(config["chat_template"]);
}
}  // namespace

text::TokenizerData parse_tokenizer(std::string_view tokenizer_json, std::string_view source,
                                    std::string_view config_json, std::string_view config_source) {
  TokenizerData out;
  out.source = source;
  const JsonValue root = parse_json_value(tokenizer_json, source);
  const Node top{&root, std::string(source) + ": "};
  if (!root.as<JsonValue::Object>())
    fail(ErrorCode::bad_file, "{} holds {}; it must be a JSON object", source, describe(root));
  read_model(top["model"], out);
  read_added_tokens(top["added_tokens"], out);
  read_normalizer(top["normalizer"], out);
  read_pre_tokenizer(top["pre_tokenizer"], out);
  read_post_processor(top["post_processor"], out);
  const Node decoder = top["decoder"];
  out.byte_level_decoder = decoder && decoder.type() == "ByteLevel";

  if (config_json.empty()) return out;
  const JsonValue config = parse_json_value(config_json, config_source, JsonDialect::python);
  if (!config.as<JsonValue::Object>())
    fail(ErrorCode::bad_file, "{} holds {}; it must be a JSON object", config_source, describe(config));
  read_config({&config, std::string(config_source) + ": "}, out);
  return out;
}

text::TokenizerData read_tokenizer(const std::filesystem::path& folder) {
  const auto config_path = folder / "tokenizer_config.json", template_path = folder / "chat_template.jinja";
  std::string config;
  if (is_present(config_path)) config = read_file(config_path, kMaxTokenizerBytes);
  TokenizerData out = parse_tokenizer(read_file(folder / "tokenizer.json", kMaxTokenizerBytes),
                                      printable((folder / "tokenizer.json").native(), 4096), config,
                                      printable(config_path.native(), 4096));
  if (is_present(template_path)) out.chat_template = read_file(template_path, kMaxTemplateBytes);
  return out;
}

}  // namespace sluice::io
