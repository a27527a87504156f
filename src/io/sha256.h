// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): what hashlib, torch's users and `sha256sum` have at hand to compare bytes of weights with.
// Written by hand: OpenSSL and libsodium have it, but a dependency costs more than 60 lines that never change and are
// held to the published vectors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::io {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  // In lower-case hexadecimal; nothing may be added afterwards.
  std::string finish();

 private:
  void block(const std::byte* bytes);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> buffer_{};
  uint64_t length_ = 0;  // bytes
};

std::string sha256(std::span<const std::byte> bytes);

}  // namespace sluice::io
