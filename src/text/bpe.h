// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding of one piece: O(n log n) in its bytes and never recursive.
// Written by hand: Hugging Face's tokenizers is a Rust library that no C++ package has, and sentencepiece's merges are
// others. The ids equal tokenizers' on recorded vectors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer_data.h"

namespace sluice::text {

class Bpe {
 public:
  // Takes model part of `data`: vocab, merges, unk_token, fuse_unk, ignore_merges. Ids have been checked by the
  // caller. Throws bad_file for a merge or an unknown token that the vocabulary does not have.
  explicit Bpe(const TokenizerData& data);

  // Appends the ids of `piece` (bytes, not the byte-level alphabet).
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;  // of the two together
  };
  struct Symbol {
    int32_t id;
    uint32_t previous, next;  // positions, kNone at the ends
    bool alive;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  std::vector<Symbol> symbols_of(std::string_view piece) const;

  std::array<int32_t, 256> byte_ids_;                // -1: the byte has no token
  std::unordered_map<uint64_t, Merge> merges_;       // by key()
  std::unordered_map<std::string, int32_t> pieces_;  // whole tokens as bytes; filled for ignore_merges only
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
};

}  // namespace sluice::text
