// SPDX-License-Identifier: Apache-2.0
#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// True when every character is below the first one that `form` changes or moves.
bool is_unchanged(std::string_view text, Normalizer form) {
  // Below U+0300 there are no combining marks, and composed forms keep those characters; U+0300 is CC 80.
  const uint8_t first_changed = form == Normalizer::nfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<uint8_t>(c) < first_changed; });
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// utf8proc_decompose() orders marks by swapping neighbours: 250,000 marks of class 230 before as many of class
// 220 would take 6e10 swaps. Characters are decomposed one by one here and each run is sorted.
std::vector<utf8proc_int32_t> decompose(std::string_view text, int options) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, pos));
    utf8proc_int32_t parts[32];  // the longest decomposition of Unicode has 18 code points
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, parts, 32, static_cast<utf8proc_option_t>(options), &boundary);
    if (n < 1 || n > 32) {
      out.push_back(c);
    } else {
      out.insert(out.end(), parts, parts + n);
    }
  }
  for (auto run = out.begin(); run != out.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, out.end(), [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
  return out;
}

}  // namespace

std::string normalize(std::string_view text, Normalizer form) {
  if (is_unchanged(text, form)) return std::string(text);
  int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (form == Normalizer::nfkc || form == Normalizer::nfkd) options |= UTF8PROC_COMPAT;
  std::vector<utf8proc_int32_t> points = decompose(text, options);
  if (form == Normalizer::nfc || form == Normalizer::nfkc) {
    const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                            static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (n < 0) fail(ErrorCode::internal, "normalizing {} bytes of text failed: {}", text.size(), utf8proc_errmsg(n));
    points.resize(static_cast<size_t>(n));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto c : points) append_code_point(out, static_cast<char32_t>(c));
  return out;
}

}  // namespace sluice::text
