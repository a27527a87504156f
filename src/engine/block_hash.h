// SPDX-License-Identifier: Apache-2.0
// The prefix cache's key: a hash that names a full block of tokens together with everything before it.
//
// SipHash-2-4 with 128 bits of result (Aumasson and Bernstein, 2012) under a key that nobody else knows. Plain hashes,
// however wide, can be made to collide by whoever chooses the prompts, and a collision would answer with another user's
// context; without the key there is nothing to compute, and 2^32 blocks collide by chance with probability 2^-65.
// Written by hand: libsodium and OpenSSL have it, but a dependency costs more than 40 lines that never change and are
// held to the published vectors.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sluice::engine {

struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};

using HashKey = BlockHash;
HashKey random_key();  // from the operating system

// SipHash-2-4-128 of the words' bytes, little-endian.
BlockHash siphash128(const HashKey& key, std::span<const uint64_t> words);

// What takes the place of the hash before the first block for requests with a salt: their prefixes are found by
// requests with the same salt only.
BlockHash hash_salt(const HashKey& key, std::string_view salt);

// The hash of a block of `tokens` that follows the block with hash `before` (BlockHash{} for the first block).
BlockHash hash_block(const HashKey& key, const BlockHash& before, std::span<const int32_t> tokens);

}  // namespace sluice::engine
