// SPDX-License-Identifier: Apache-2.0
// What a text must look like: the constraint as a request gives it, before it is compiled for a vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::grammar {

enum class Kind : uint8_t {
  json_schema,     // a JSON document that the schema accepts
  regex,           // the whole text matches (ECMAScript's syntax)
  ebnf,            // GBNF, as llama.cpp and xgrammar have it; the first rule is `root`
  structural_tag,  // xgrammar's JSON: free text with structured parts between tags
};
const char* to_string(Kind kind);  // "JSON schema", "regular expression", "grammar", "structural tag"

struct Source {
  Kind kind = Kind::json_schema;
  std::string text;
  // Whether properties and items that a JSON schema does not name are refused where the schema does not say. Both
  // xgrammar's users do it: an open object invites a model to go on for ever.
  bool closed = true;
  // Of a structural tag: texts whose control tokens may stand in it beside those that its own tags are made of.
  std::vector<std::string> tags = {};

  bool operator==(const Source&) const = default;
};

// One of `choices`, each a text in UTF-8, as a grammar.
Source one_of(std::span<const std::string> choices);

// Bounds of what is handed to the library. Compiling cannot be interrupted, and its time grows faster than the text.
inline constexpr size_t kMaxSchemaBytes = 256 * 1024;
inline constexpr size_t kMaxRegexBytes = 8 * 1024;
inline constexpr size_t kMaxEbnfBytes = 64 * 1024;
inline constexpr int kMaxNesting = 64;               // of groups in a pattern or grammar
inline constexpr int64_t kMaxExpandedSize = 10'000;  // atoms of a pattern with its repetitions written out
// Of strings in JSON. Repetitions of more are matched by a rule of their own, which xgrammar 0.2.8 does not keep from
// writing quotation marks and control characters.
inline constexpr int64_t kMaxStringPatternSize = 1000, kMaxStringPatternCount = 128;

// Between the parts of a JSON document: a new line and its indentation. Without a bound, a model that has lost its
// thread writes blanks up to max_tokens.
inline constexpr int kMostWhiteSpace = 16;

struct TagStyle;

// A source as the library gets it.
struct Prepared {
  std::string text;
  std::vector<std::string> patterns;   // of strings in JSON
  bool lengths = false;                // strings in JSON have bounds of their length
  const TagStyle* style = nullptr;     // of the arguments in a structural tag; nullptr: they are JSON
  std::vector<std::string> tags = {};  // of a structural tag: every text that may name control tokens
};

// Throws invalid_argument with one sentence for what the library cannot take (too large, too deep, too many
// repetitions) and, in a JSON schema, for what it would ignore: a keyword without effect must not look like one that
// holds. What passes may still fail to compile.
Prepared prepare(const Source& source);

// The parts of prepare(). `what`: the beginning of the sentences, "regular expression".
void check_pattern(std::string_view pattern, std::string_view what);
void check_string_pattern(std::string_view pattern, std::string_view what);  // of a string in JSON
void check_ebnf(std::string_view text);
// The same pattern in ASCII, as the library reads it rightly. Throws invalid_argument for what it would read as
// another.
std::string adapted_pattern(std::string_view pattern, std::string_view what);
Prepared prepare_schema(std::string_view text, bool closed);
Prepared prepare_structural_tag(std::string_view text);

}  // namespace sluice::grammar
