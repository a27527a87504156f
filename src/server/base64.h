// SPDX-License-Identifier: Apache-2.0
// Base64 (RFC 4648) of bytes in answers. Written here: ten lines, and Boost.Beast's own function is not public
// (it is in a namespace `detail`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::server {

inline std::string base64(std::span<const std::byte> bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k)
      three = three << 8 | (i + k < bytes.size() ? static_cast<uint32_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kAlphabet[three >> (18 - 6 * k) & 63];
  }
  return out;
}

}  // namespace sluice::server
