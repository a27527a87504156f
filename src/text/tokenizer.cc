// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/normalize.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// The largest vocabularies have 262,144 tokens. Without a bound a file of 100 bytes could ask for gigabytes.
constexpr int64_t kMaxId = (int64_t{1} << 22) - 1;
// Finding added tokens takes time proportional to text times longest token.
constexpr size_t kMaxAddedTokenBytes = 1024;

const TokenizerData& supported(const TokenizerData& data) {
  const auto refuse_if = [&](bool bad, std::string_view what) {
    if (bad) fail(ErrorCode::unsupported, "{}: {}; byte-level BPE is accepted", data.source, what);
  };
  refuse_if(data.byte_fallback, "the model uses byte_fallback");
  refuse_if(!data.continuing_subword_prefix.empty(), "the model has a continuing_subword_prefix");
  refuse_if(!data.end_of_word_suffix.empty(), "the model has an end_of_word_suffix");
  refuse_if(!data.byte_level_decoder, "the decoder is not ByteLevel");
  check_file(!data.vocab.empty(), "{}: the vocabulary is empty", data.source);
  return data;
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerData& data)
    : normalizers_(supported(data).normalizers),
      pre_tokenizer_(data.pre_tokenizers, data.source),
      bpe_((add_vocab(data), data)),
      bos_token_(data.bos_token),
      eos_token_(data.eos_token),
      pad_token_(data.pad_token),
      chat_template_(data.chat_template) {
  add_added_tokens(data);
  add_frame(data);
  measure(data);
}

void Tokenizer::measure(const TokenizerData& data) {
  const auto swallows = [](const AddedToken& t) { return t.lstrip || t.rstrip; };
  const auto removes = [](const PreTokenizerStep& s) {
    return s.kind == PreTokenizerStep::Kind::split && s.behavior == SplitBehavior::removed;
  };
  if (std::any_of(data.added_tokens.begin(), data.added_tokens.end(), swallows)) return;
  if (std::any_of(data.pre_tokenizers.begin(), data.pre_tokenizers.end(), removes)) return;
  // A byte without a token is dropped, or any number of them is one unknown token.
  for (const std::string& byte : byte_alphabet_utf8())
    if (ids_.count(byte) == 0) return;
  for (const Entry& e : entries_) most_bytes_of_an_id_ = std::max(most_bytes_of_an_id_, e.bytes.size());
  // Normal forms join characters: nine bytes of Hangul letters become a syllable of three, and none loses more than
  // three bytes of four.
  if (!normalizers_.empty()) most_bytes_of_an_id_ *= 4;
}

Tokenizer::Entry& Tokenizer::entry(int64_t id, std::string_view token, const std::string& source) {
  check_file(id >= 0 && id <= kMaxId, "{}: token \"{}\" has the id {}; ids are 0 to {}", source, token, id, kMaxId);
  if (static_cast<size_t>(id) >= entries_.size()) entries_.resize(static_cast<size_t>(id) + 1);
  return entries_[static_cast<size_t>(id)];
}

void Tokenizer::add_vocab(const TokenizerData& data) {
  std::unordered_map<int64_t, std::string_view> owners;
  for (const auto& [token, id] : data.vocab) {
    check_file(to_valid_utf8(token) == token, "{}: the token with id {} is not valid UTF-8", data.source, id);
    Entry& e = entry(id, token, data.source);
    const auto owner = owners.try_emplace(id, token).first->second;
    check_file(owner == token, "{}: tokens \"{}\" and \"{}\" both have the id {}", data.source, owner, token, id);
    const bool is_new = ids_.try_emplace(token, static_cast<int32_t>(id)).second;
    check_file(is_new, "{}: the token \"{}\" is in the vocabulary twice", data.source, token);
    e.bytes = from_byte_alphabet(token).value_or(token);
  }
}

void Tokenizer::add_added_tokens(const TokenizerData& data) {
  std::unordered_map<int64_t, std::string_view> owners;
  for (const auto& [token, id] : ids_) owners.emplace(id, token);
  for (AddedToken token : data.added_tokens) {
    check_file(!token.content.empty(), "{}: the added token with id {} is an empty string", data.source, token.id);
    check_file(token.content.size() <= kMaxAddedTokenBytes,
               "{}: the added token with id {} has {} bytes; the limit is {}", data.source, token.id,
               token.content.size(), kMaxAddedTokenBytes);
    check_file(to_valid_utf8(token.content) == token.content, "{}: the added token with id {} is not valid UTF-8",
               data.source, token.id);
    Entry& e = entry(token.id, token.content, data.source);
    const auto known = ids_.try_emplace(token.content, static_cast<int32_t>(token.id)).first->second;
    check_file(known == token.id, "{}: the token \"{}\" has two ids, {} and {}", data.source, token.content, known,
               token.id);
    const auto owner = owners.try_emplace(token.id, ids_.find(token.content)->first).first->second;
    check_file(owner == token.content, "{}: tokens \"{}\" and \"{}\" both have the id {}", data.source, owner,
               token.content, token.id);
    if (token.normalized) token.content = normalized(token.content);  // it decodes to that, too
    check_file(!token.content.empty(), "{}: the added token with id {} is an empty string when normalized", data.source,
               token.id);
    e.bytes = from_byte_alphabet(token.content).value_or(token.content);
    e.special = e.special || token.special;
    (token.normalized ? normalized_tokens_ : raw_tokens_).add(token);
  }
}

void Tokenizer::add_frame(const TokenizerData& data) {
  const auto checked = [&](int64_t id) {
    check_file(id >= 0 && id < vocab_size(), "{}: the post-processor adds the id {}; ids are 0 to {}", data.source, id,
               vocab_size() - 1);
    return static_cast<int32_t>(id);
  };
  const auto named = [&](const std::string& token, std::string_view what) {
    const auto id = id_of(token);
    check_file(id.has_value(), "{}: add_{}_token is true, but the {} token \"{}\" is not in the vocabulary",
               data.source, what, what, token);
    return *id;
  };
  for (const int64_t id : data.prefix_ids) prefix_ids_.push_back(checked(id));
  for (const int64_t id : data.suffix_ids) suffix_ids_.push_back(checked(id));
  if (data.add_bos_token) {
    const int32_t bos = named(data.bos_token, "bos");
    if (prefix_ids_.empty() || prefix_ids_.front() != bos) prefix_ids_.insert(prefix_ids_.begin(), bos);
  }
  if (data.add_eos_token) {
    const int32_t eos = named(data.eos_token, "eos");
    if (suffix_ids_.empty() || suffix_ids_.back() != eos) suffix_ids_.push_back(eos);
  }
}

std::string Tokenizer::normalized(std::string_view text) const {
  std::string out(text);
  for (const Normalizer form : normalizers_) out = normalize(out, form);
  return out;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = prefix_ids_;
  const std::string valid = to_valid_utf8(text);
  for (const auto& raw : raw_tokens_.split(valid, options.parse_special)) {
    if (ids.size() > options.enough) break;
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    const std::string part = normalized(std::string_view(valid).substr(raw.begin, raw.end - raw.begin));
    for (const auto& p : normalized_tokens_.split(part, options.parse_special)) {
      if (p.id >= 0) {
        ids.push_back(p.id);
      } else {
        encode_text(std::string_view(part).substr(p.begin, p.end - p.begin), options.enough, ids);
      }
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

void Tokenizer::encode_text(std::string_view text, size_t enough, std::vector<int32_t>& ids) const {
  const auto pieces = pre_tokenizer_.split(std::string(text));
  for (const Match& span : pieces.spans) {
    if (ids.size() > enough) return;
    bpe_.encode(std::string_view(pieces.text).substr(span.begin, span.end - span.begin), ids);
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (!skip_special_tokens || !is_special(id)) bytes += bytes_of(id);
  return to_valid_utf8(bytes);
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return entries_[static_cast<size_t>(id)].bytes;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && entries_[static_cast<size_t>(id)].special;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto it = ids_.find(std::string(token));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace sluice::text
