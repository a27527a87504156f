// SPDX-License-Identifier: Apache-2.0
#include "text/special_guard.h"

#include <algorithm>

namespace sluice::text {

namespace {
// U+FDD0, a noncharacter "for internal use": it cuts a user's special token in two until the text is encoded. A text
// that holds one already loses it.
constexpr std::string_view kCut = "\xEF\xB7\x90";

std::string without_cuts(std::string_view text) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t cut = text.find(kCut, at);
    out.append(text.substr(at, cut - at));
    if (cut == text.npos) return out;
    at = cut + kCut.size();
  }
}
}  // namespace

SpecialGuard::SpecialGuard(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id) && tokenizer.bytes_of(id).size() > 1)
      special_texts_.emplace_back(tokenizer.bytes_of(id));
}

std::string SpecialGuard::guard(std::string_view text) const {
  std::string out = without_cuts(text);
  for (const std::string& special : special_texts_) {
    for (size_t at = out.find(special); at != out.npos; at = out.find(special, at)) {
      size_t after_first = at + 1;  // character
      while (after_first < out.size() && (static_cast<unsigned char>(out[after_first]) & 0xC0) == 0x80) ++after_first;
      out.insert(after_first, kCut);
      at = after_first + kCut.size();
    }
  }
  return out;
}

std::vector<int32_t> SpecialGuard::encode(const Tokenizer& tokenizer, std::string_view rendered, size_t enough) const {
  // The template writes the bos token itself.
  const EncodeOptions options{.parse_special = true, .add_special_tokens = false, .enough = enough};
  std::vector<int32_t> ids;
  for (size_t at = 0;;) {
    const size_t cut = rendered.find(kCut, at);
    const std::vector<int32_t> piece = tokenizer.encode(rendered.substr(at, cut - at), options);
    ids.insert(ids.end(), piece.begin(), piece.end());
    if (cut == rendered.npos || ids.size() > enough) return ids;
    at = cut + kCut.size();
  }
}

bool SpecialGuard::is_special(std::string_view text) const {
  return std::find(special_texts_.begin(), special_texts_.end(), text) != special_texts_.end();
}

size_t SpecialGuard::bytes_without_guards(std::string_view rendered) {
  size_t bytes = rendered.size();
  for (size_t at = rendered.find(kCut); at != rendered.npos; at = rendered.find(kCut, at + kCut.size()))
    bytes -= kCut.size();
  return bytes;
}

}  // namespace sluice::text
