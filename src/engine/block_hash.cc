// SPDX-License-Identifier: Apache-2.0
#include "engine/block_hash.h"

#include <bit>
#include <cstring>
#include <random>
#include <vector>

namespace sluice::engine {

namespace {
class SipHash {
 public:
  explicit SipHash(const HashKey& k)
      : v0_(k.low ^ 0x736f6d6570736575u),
        v1_(k.high ^ 0x646f72616e646f6du ^ 0xee),
        v2_(k.low ^ 0x6c7967656e657261u),
        v3_(k.high ^ 0x7465646279746573u) {}
  void add(uint64_t word) {
    ++words_;
    absorb(word);
  }
  BlockHash finish() {
    absorb(words_ * 8 << 56);  // the last word holds the length, and no bytes are left over
    v2_ ^= 0xee;
    rounds(4);
    BlockHash out;
    out.low = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    rounds(4);
    out.high = v0_ ^ v1_ ^ v2_ ^ v3_;
    return out;
  }

 private:
  void absorb(uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }
  void rounds(int n) {
    for (int i = 0; i < n; ++i) {
      v0_ += v1_, v1_ = std::rotl(v1_, 13) ^ v0_, v0_ = std::rotl(v0_, 32);
      v2_ += v3_, v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_, v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_, v1_ = std::rotl(v1_, 17) ^ v2_, v2_ = std::rotl(v2_, 32);
    }
  }
  uint64_t v0_, v1_, v2_, v3_, words_ = 0;
};
}  // namespace

HashKey random_key() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  const uint64_t low = word();
  return {low, word()};
}

BlockHash siphash128(const HashKey& key, std::span<const uint64_t> words) {
  SipHash hash(key);
  for (const uint64_t w : words) hash.add(w);
  return hash.finish();
}

BlockHash hash_salt(const HashKey& key, std::string_view salt) {
  std::vector<uint64_t> words(1 + (salt.size() + 7) / 8);
  words[0] = salt.size();
  std::memcpy(words.data() + 1, salt.data(), salt.size());
  return siphash128(key, words);
}

BlockHash hash_block(const HashKey& key, const BlockHash& before, std::span<const int32_t> tokens) {
  SipHash hash(key);
  hash.add(before.low);
  hash.add(before.high);
  for (size_t i = 0; i < tokens.size(); i += 2) {
    const uint64_t second = i + 1 < tokens.size() ? static_cast<uint32_t>(tokens[i + 1]) : 0;
    hash.add(static_cast<uint32_t>(tokens[i]) | second << 32);
  }
  return hash.finish();
}

}  // namespace sluice::engine
