// SPDX-License-Identifier: Apache-2.0
#include "io/quote.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice::io {

namespace {
// Bytes of the UTF-8 sequence at the front of `text`; 0 when it is broken. Overlong forms need no care here.
size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  return length;
}
}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (i >= limit) return out + "...";
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = sequence_length(text.substr(i));
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
      i += 1;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

std::string number_text(double value) {
  return value == std::trunc(value) && std::fabs(value) < 1e15 ? fmt::format("{:.1f}", value)
                                                               : fmt::format("{}", value);
}

std::string quote(std::string_view text, size_t limit) { return '"' + printable(text, limit) + '"'; }

}  // namespace sluice::io
