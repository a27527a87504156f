// SPDX-License-Identifier: Apache-2.0
#include "engine/block_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

namespace sluice::engine {
namespace {

// Key 00 01 .. 0f, message 00 01 .. of 8 * `count` bytes: `openssl mac -macopt size:16 SIPHASH` and, for 0 and 8 bytes,
// the table of the algorithm's own reference implementation.
TEST(BlockHash, IsSipHashWith128Bits) {
  const HashKey key{0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  std::array<uint8_t, 64> bytes{};
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::array<uint64_t, 8> words{};
  for (size_t i = 0; i < 64; ++i) words[i / 8] |= uint64_t{bytes[i]} << (i % 8 * 8);
  const auto swap = [](uint64_t hex) { return __builtin_bswap64(hex); };
  const auto expect = [&](size_t count, uint64_t first, uint64_t second) {
    EXPECT_EQ(siphash128(key, std::span(words).first(count)), (BlockHash{swap(first), swap(second)})) << count;
  };
  expect(0, 0xA3817F04BA25A8E6u, 0x6DF67214C7550293u);
  expect(1, 0x3B62A9BA6258F561u, 0x0F83E264F31497B4u);
  expect(2, 0x6EE2A4CA67B054BBu, 0xFD3315BF85230577u);
  expect(8, 0x1EAF077DC0D4CD3Fu, 0x8CAD4D383658A74Bu);
}

TEST(BlockHash, DependsOnEveryTokenTheBlockBeforeAndTheKey) {
  const HashKey key = random_key();
  for (const size_t size : {1, 2, 3, 16}) {
    std::vector<int32_t> tokens(size, 7);
    const BlockHash hash = hash_block(key, {}, tokens);
    EXPECT_EQ(hash, hash_block(key, {}, tokens));
    EXPECT_NE(hash, hash_block(key, hash, tokens));
    EXPECT_NE(hash, hash_block(random_key(), {}, tokens));
    for (int32_t& t : tokens) {
      ++t;
      EXPECT_NE(hash, hash_block(key, {}, tokens));
      --t;
    }
  }
}

}  // namespace
}  // namespace sluice::engine
