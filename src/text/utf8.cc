// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

namespace sluice::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Sequence {
  size_t length;  // bytes that are right so far
  bool complete;  // they are a character
  bool cut;       // they could become one with more bytes
};

// Table 3-7 of the Unicode standard: only the second byte has bounds that depend on the first.
Sequence scan(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t b0 = byte(0);
  if (b0 < 0x80) return {1, true, false};
  size_t need = 0;
  if (b0 >= 0xC2 && b0 <= 0xDF) need = 2;
  if (b0 >= 0xE0 && b0 <= 0xEF) need = 3;
  if (b0 >= 0xF0 && b0 <= 0xF4) need = 4;
  if (need == 0) return {1, false, false};
  const uint8_t low = b0 == 0xE0 ? 0xA0 : b0 == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = b0 == 0xED ? 0x9F : b0 == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < need; ++i) {
    if (i == s.size()) return {i, false, true};
    const bool ok = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!ok) return {i, false, false};
  }
  return {need, true, false};
}

}  // namespace

size_t append_utf8(std::string& out, std::string_view bytes, bool last) {
  size_t good = 0;  // [good, pos) is valid and not yet copied
  size_t pos = 0;
  while (pos < bytes.size()) {
    if (static_cast<uint8_t>(bytes[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Sequence s = scan(bytes.substr(pos, 4));
    if (!s.complete) {
      out += bytes.substr(good, pos - good);
      if (s.cut && !last) return bytes.size() - pos;
      out += kReplacement;
      good = pos + s.length;
    }
    pos += s.length;
  }
  out += bytes.substr(good);
  return 0;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  append_utf8(out, bytes, true);
  return out;
}

char32_t next_code_point(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) -> char32_t { return static_cast<uint8_t>(text[pos + i]); };
  const char32_t b0 = byte(0);
  char32_t c = b0;
  size_t length = 1;
  if (b0 >= 0xF0) {
    c = (b0 & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    length = 4;
  } else if (b0 >= 0xE0) {
    c = (b0 & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    length = 3;
  } else if (b0 >= 0xC0) {
    c = (b0 & 0x1F) << 6 | (byte(1) & 0x3F);
    length = 2;
  }
  pos += length;
  return c;
}

char32_t previous_code_point(std::string_view text, size_t& pos) {
  do --pos;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80);
  size_t p = pos;
  return next_code_point(text, p);
}

void append_code_point(std::string& out, char32_t c) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // circled and squared letters are symbols that are Alphabetic
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
  }
}

}  // namespace sluice::text
