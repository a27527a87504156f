// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace sluice::text {
namespace {

bool word_before(std::string_view text, size_t pos) {
  return pos > 0 && is_word_character(previous_code_point(text, pos));
}
bool word_at(std::string_view text, size_t pos) {
  return pos < text.size() && is_word_character(next_code_point(text, pos));
}

}  // namespace

void AddedTokens::add(const AddedToken& token) {
  if (token_at_.empty()) token_at_.push_back(0);
  first_bytes_[static_cast<uint8_t>(token.content.front())] = true;
  uint32_t node = 0;
  for (const char c : token.content) {
    const auto [it, is_new] = edges_.try_emplace(uint64_t{node} << 8 | static_cast<uint8_t>(c), token_at_.size());
    if (is_new) token_at_.push_back(0);
    node = it->second;
  }
  tokens_.push_back(token);
  token_at_[node] = static_cast<uint32_t>(tokens_.size());
}

AddedTokens::Found AddedTokens::longest_at(std::string_view text) const {
  Found found{0, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_at_[node] != 0) found = {i + 1, token_at_[node] - 1};
  }
  return found;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool parse_special) const {
  std::vector<Part> out;
  size_t done = 0;  // [0, done) is in out
  for (size_t pos = 0; pos < text.size();) {
    if (!first_bytes_[static_cast<uint8_t>(text[pos])]) {
      ++pos;
      continue;
    }
    const Found found = longest_at(text.substr(pos));
    if (found.length == 0) {
      ++pos;
      continue;
    }
    size_t begin = pos, end = pos + found.length;
    pos = end;  // a match that is turned down below still hides what it overlaps
    const AddedToken& token = tokens_[found.token];
    if (token.special && !parse_special) continue;
    if (token.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (token.lstrip) {
      for (size_t p = begin; p > done && is_white_space(previous_code_point(text, p));) begin = p;
      begin = std::max(begin, done);
    }
    if (token.rstrip)
      for (size_t p = end; p < text.size() && is_white_space(next_code_point(text, p));) end = p;
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, static_cast<int32_t>(token.id)});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
  return out;
}

}  // namespace sluice::text
