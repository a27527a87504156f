// SPDX-License-Identifier: Apache-2.0
#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr bool stands_for_itself(int b) {
  return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

constexpr char32_t kFirstStandIn = 0x100;  // the other 68 bytes take U+0100 and up, in order

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const auto table = [] {
    std::array<char32_t, 256> t{};
    char32_t stand_in = kFirstStandIn;
    for (int b = 0; b < 256; ++b)
      t[static_cast<size_t>(b)] = stands_for_itself(b) ? static_cast<char32_t>(b) : stand_in++;
    return t;
  }();
  return table;
}

const std::array<std::string, 256>& byte_alphabet_utf8() {
  static const auto table = [] {
    std::array<std::string, 256> t;
    for (size_t b = 0; b < 256; ++b) append_code_point(t[b], byte_alphabet()[b]);
    return t;
  }();
  return table;
}

std::optional<std::string> from_byte_alphabet(std::string_view token) {
  static const auto inverse = [] {
    std::array<int16_t, kFirstStandIn + 68> t{};
    t.fill(-1);
    for (size_t b = 0; b < 256; ++b) t[byte_alphabet()[b]] = static_cast<int16_t>(b);
    return t;
  }();
  std::string out;
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = next_code_point(token, pos);
    if (c >= inverse.size() || inverse[c] < 0) return std::nullopt;
    out += static_cast<char>(inverse[c]);
  }
  return out;
}

}  // namespace sluice::text
