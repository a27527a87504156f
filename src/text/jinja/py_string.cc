// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/py_string.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using utf8proc_point = utf8proc_int32_t;

char32_t to_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_point>(c))); }
char32_t to_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_point>(c))); }
char32_t to_title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_point>(c))); }

// The one letter whose upper case has two, in wide use.
void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";
  } else {
    append_code_point(out, to_upper(c));
  }
}

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_point>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

// Calls map(character) for each and joins what it appends.
template <class Map>
std::string mapped(std::string_view s, Map map) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) map(out, next_code_point(s, pos));
  return out;
}

}  // namespace

bool is_py_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

size_t find_bytes(std::string_view s, std::string_view what, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (what.empty()) return from;
  const void* at = memmem(s.data() + from, s.size() - from, what.data(), what.size());
  return at ? static_cast<size_t>(static_cast<const char*>(at) - s.data()) : std::string_view::npos;
}

std::string_view strip(std::string_view s, Side side, std::optional<std::string_view> chars) {
  std::u32string set;
  if (chars)
    for (size_t pos = 0; pos < chars->size();) set += next_code_point(*chars, pos);
  std::sort(set.begin(), set.end());
  const auto goes = [&](char32_t c) { return chars ? std::binary_search(set.begin(), set.end(), c) : is_py_space(c); };
  size_t begin = 0, end = s.size();
  if (side != Side::right)
    for (size_t pos = 0; pos < end && goes(next_code_point(s, pos));) begin = pos;
  if (side != Side::left)
    for (size_t pos = end; pos > begin && goes(previous_code_point(s, pos));) end = pos;
  return s.substr(begin, end - begin);
}

namespace {

std::vector<std::string> split_at(std::string_view s, std::string_view separator, int64_t max_splits) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (max_splits < 0 || out.size() < static_cast<size_t>(max_splits)) {
    const size_t cut = find_bytes(s, separator, begin);
    if (cut == std::string_view::npos) break;
    out.emplace_back(s.substr(begin, cut - begin));
    begin = cut + separator.size();
  }
  out.emplace_back(s.substr(begin));
  return out;
}

// The same from the right: everything backwards, so that it stays linear.
std::vector<std::string> split_at_from_right(std::string_view s, std::string_view separator, int64_t max_splits) {
  const auto reversed = [](std::string_view v) { return std::string(v.rbegin(), v.rend()); };
  std::vector<std::string> out = split_at(reversed(s), reversed(separator), max_splits);
  for (std::string& part : out) part = reversed(part);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_at_space(std::string_view s, int64_t max_splits, bool from_right) {
  std::vector<std::string> out;
  s = strip(s, from_right ? Side::right : Side::left, std::nullopt);
  while (!s.empty()) {
    if (max_splits >= 0 && out.size() == static_cast<size_t>(max_splits)) {
      out.emplace_back(s);
      break;
    }
    size_t cut = from_right ? s.size() : 0;
    for (size_t pos = cut; from_right ? pos > 0 : pos < s.size(); cut = pos)
      if (is_py_space(from_right ? previous_code_point(s, pos) : next_code_point(s, pos))) break;
    out.emplace_back(from_right ? s.substr(cut) : s.substr(0, cut));
    s = strip(from_right ? s.substr(0, cut) : s.substr(cut), from_right ? Side::right : Side::left, std::nullopt);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<std::string> split(std::string_view s, std::optional<std::string_view> separator, int64_t max_splits,
                               bool from_right) {
  if (!separator) return split_at_space(s, max_splits, from_right);
  return from_right ? split_at_from_right(s, *separator, max_splits) : split_at(s, *separator, max_splits);
}

std::vector<std::string> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t at = pos;
    const char32_t c = next_code_point(s, pos);
    if (!((c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    out.emplace_back(s.substr(begin, (keep_ends ? pos : at) - begin));
    begin = pos;
  }
  if (begin < s.size()) out.emplace_back(s.substr(begin));
  return out;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t count) {
  std::string out;
  size_t begin = 0;
  for (int64_t n = 0; count < 0 || n < count; ++n) {
    if (from.empty()) {
      out += to;
      if (begin == s.size()) return out;
      size_t pos = begin;
      next_code_point(s, pos);
      out += s.substr(begin, pos - begin);
      begin = pos;
    } else {
      const size_t at = find_bytes(s, from, begin);
      if (at == std::string_view::npos) break;
      out += s.substr(begin, at - begin);
      out += to;
      begin = at + from.size();
    }
  }
  out += s.substr(begin);
  return out;
}

std::string upper(std::string_view s) { return mapped(s, append_upper); }

std::string lower(std::string_view s) {
  return mapped(s, [](std::string& out, char32_t c) { append_code_point(out, to_lower(c)); });
}

std::string capitalize(std::string_view s) {
  bool first = true;
  return mapped(s, [&](std::string& out, char32_t c) {
    append_code_point(out, first ? to_title(c) : to_lower(c));
    first = false;
  });
}

std::string title(std::string_view s) {
  bool after_letter = false;
  return mapped(s, [&](std::string& out, char32_t c) {
    append_code_point(out, after_letter ? to_lower(c) : to_title(c));
    after_letter = is_cased(c);
  });
}

std::string jinja_title(std::string_view s) {
  bool first = true;
  return mapped(s, [&](std::string& out, char32_t c) {
    if (first) {
      append_upper(out, c);
    } else {
      append_code_point(out, to_lower(c));
    }
    first = is_py_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
}

std::vector<std::string> characters(std::string_view s) {
  std::vector<std::string> out;
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    next_code_point(s, pos);
    out.emplace_back(s.substr(begin, pos - begin));
  }
  return out;
}

std::string repr(std::string_view s) {
  const char quote = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(s, pos);
    const auto category = utf8proc_category(static_cast<utf8proc_point>(c));
    const bool printable = c == ' ' || !(category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                                         category == UTF8PROC_CATEGORY_CS || category == UTF8PROC_CATEGORY_CO ||
                                         category == UTF8PROC_CATEGORY_CN || category == UTF8PROC_CATEGORY_ZL ||
                                         category == UTF8PROC_CATEGORY_ZP || category == UTF8PROC_CATEGORY_ZS);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (printable) {
      out += s.substr(begin, pos - begin);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else {
      out += c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                         : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out += quote;
  return out;
}

}  // namespace sluice::text::jinja
