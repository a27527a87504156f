// SPDX-License-Identifier: Apache-2.0
// What tokenizer.json and tokenizer_config.json say, as plain data. io/ fills it without judging the
// numbers: ids may be negative, doubled or have gaps, merges may name nothing. text::Tokenizer checks
// them, so that there is one place with one set of sentences. Kinds that have no enumerator here
// (Unigram, WordPiece, Metaspace, Replace, ...) are refused by io/, by name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/named.h"

namespace sluice::text {

enum class Normalizer { nfc, nfd, nfkc, nfkd };

// The names are the "type" values of tokenizer.json.
inline constexpr std::array<Named<Normalizer>, 4> kNormalizers{
    {{Normalizer::nfc, "NFC"}, {Normalizer::nfd, "NFD"}, {Normalizer::nfkc, "NFKC"}, {Normalizer::nfkd, "NFKD"}}};

// What becomes of the text that a Split pattern matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

inline constexpr std::array<Named<SplitBehavior>, 5> kSplitBehaviors{
    {{SplitBehavior::removed, "Removed"},
     {SplitBehavior::isolated, "Isolated"},
     {SplitBehavior::merged_with_previous, "MergedWithPrevious"},
     {SplitBehavior::merged_with_next, "MergedWithNext"},
     {SplitBehavior::contiguous, "Contiguous"}}};

struct PreTokenizerStep {
  enum class Kind { split, byte_level, digits };
  Kind kind = Kind::split;

  // split: {"pattern": {"Regex": ...}} or, with is_regex false, {"pattern": {"String": ...}}
  std::string pattern;
  bool is_regex = true;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;

  // byte_level; use_regex adds GPT-2's own pattern. Both are true when the file does not say.
  bool add_prefix_space = true;
  bool use_regex = true;

  // digits
  bool individual_digits = false;
};

struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;  // matches only between non-word characters
  bool lstrip = false;       // takes the white space to its left with it
  bool rstrip = false;
  bool normalized = false;  // looked for in the normalized text, not in the raw one
  bool special = false;     // left out by decode(skip_special_tokens)
};

struct TokenizerData {
  std::string source;  // the file, for error sentences

  // model: BPE
  std::vector<std::pair<std::string, int64_t>> vocab;       // token (in the byte-level alphabet), id; in file order
  std::vector<std::pair<std::string, std::string>> merges;  // by rank; the file may write "a b" or ["a","b"]
  std::string unk_token;                                    // empty: characters without a token are dropped
  bool fuse_unk = false;
  bool ignore_merges = false;                                 // a pre-token that is a token is not merged at all
  bool byte_fallback = false;                                 // refused by text::Tokenizer
  std::string continuing_subword_prefix, end_of_word_suffix;  // refused unless empty

  std::vector<AddedToken> added_tokens;          // tokenizer.json's "added_tokens", in file order
  std::vector<Normalizer> normalizers;           // "Sequence" flattened; null is empty
  std::vector<PreTokenizerStep> pre_tokenizers;  // "Sequence" flattened
  bool byte_level_decoder = true;                // the only decoder; false is refused by text::Tokenizer

  // post_processor: what TemplateProcessing "single" puts around the text (ByteLevel adds nothing)
  std::vector<int64_t> prefix_ids, suffix_ids;

  // tokenizer_config.json; absent or null is empty or false. Tokens may be objects there: their "content".
  bool add_bos_token = false, add_eos_token = false;
  std::string bos_token, eos_token, pad_token;
  std::string chat_template;  // or chat_template.jinja; of a list of named ones, "default"
};

}  // namespace sluice::text
