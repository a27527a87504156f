// SPDX-License-Identifier: Apache-2.0
// SHA-256 against the vectors of FIPS 180-4 and of NIST's examples.
#include "io/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace sluice::io {
namespace {

std::string of(std::string_view text) { return sha256(std::as_bytes(std::span(text.data(), text.size()))); }

TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
         "nopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// However a text is cut, its hash is that of the whole.
TEST(Sha256, PiecesOfAnySize) {
  const std::string text(300, 'x');
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string_view whole = std::string_view(text).substr(0, length);
    for (const size_t piece : {1u, 7u, 63u, 64u, 65u}) {
      Sha256 hash;
      for (size_t at = 0; at < length; at += piece) {
        const std::string_view part = whole.substr(at, piece);
        hash.add(std::as_bytes(std::span(part.data(), part.size())));
      }
      EXPECT_EQ(hash.finish(), of(whole)) << length << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace sluice::io
