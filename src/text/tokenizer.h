// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back: byte-level BPE with added tokens, normalizer and pre-tokenizer, equal to Hugging
// Face's `tokenizers`. Immutable after construction; any number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_data.h"

namespace sluice::text {

struct EncodeOptions {
  // "<|im_end|>" in the text becomes its token, as Hugging Face always does. Off, it is plain text: for a user's
  // words that must not be able to end their own turn.
  bool parse_special = true;
  // Puts the post-processor's prefix and suffix (usually the bos token) around the text.
  bool add_special_tokens = true;
  // Stops soon after `enough` ids: a text with more is too long for the caller anyway. The result has more than
  // `enough` ids exactly when the text has.
  size_t enough = SIZE_MAX;
};

class Tokenizer {
 public:
  // Throws bad_file, naming data.source, for what is broken and unsupported for what is not byte-level BPE.
  explicit Tokenizer(const TokenizerData& data);

  // Any bytes; invalid UTF-8 is read as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Valid UTF-8. Ids without a token (gaps, out of range) give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

  // The largest id plus one: logits may have more columns (padding), never fewer.
  int32_t vocab_size() const { return static_cast<int32_t>(entries_.size()); }

  // The bytes that one id adds to a text, possibly part of a character; empty for ids without a token.
  std::string_view bytes_of(int32_t id) const;
  bool is_special(int32_t id) const;

  // How many ids add_special_tokens puts before and after those of a text.
  size_t prefix_size() const { return prefix_ids_.size(); }
  size_t suffix_size() const { return suffix_ids_.size(); }

  // The most bytes of a text that one id can stand for, so that a text's length says how many ids it has at least;
  // 0: not known, as with tokens that swallow the white space around them.
  size_t most_bytes_of_an_id() const { return most_bytes_of_an_id_; }

  // The id of a token as the file writes it ("<|im_end|>", byte-level alphabet for ordinary tokens).
  std::optional<int32_t> id_of(std::string_view token) const;

  const std::string& bos_token() const { return bos_token_; }  // empty: none
  const std::string& eos_token() const { return eos_token_; }
  const std::string& pad_token() const { return pad_token_; }
  const std::string& chat_template() const { return chat_template_; }

 private:
  struct Entry {
    std::string bytes;
    bool special = false;
  };
  void add_vocab(const TokenizerData& data);
  void add_added_tokens(const TokenizerData& data);
  void add_frame(const TokenizerData& data);
  Entry& entry(int64_t id, std::string_view token, const std::string& source);
  void measure(const TokenizerData& data);
  void encode_text(std::string_view text, size_t enough, std::vector<int32_t>& ids) const;
  std::string normalized(std::string_view text) const;

  std::vector<Entry> entries_;  // by id
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Normalizer> normalizers_;
  AddedTokens raw_tokens_, normalized_tokens_;  // looked for before and after the normalizer
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  std::vector<int32_t> prefix_ids_, suffix_ids_;
  std::string bos_token_, eos_token_, pad_token_, chat_template_;
  size_t most_bytes_of_an_id_ = 0;
};

}  // namespace sluice::text
