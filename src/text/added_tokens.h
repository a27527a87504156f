// SPDX-License-Identifier: Apache-2.0
// Finds added tokens ("<|im_start|>", ...) in text. Leftmost, then longest, as Hugging Face does.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer_data.h"

namespace sluice::text {

class AddedTokens {
 public:
  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  struct Part {
    size_t begin, end;  // bytes of the text
    int32_t id;         // -1: text without an added token
  };
  // The whole of `text` (valid UTF-8) in parts. With parse_special off, special tokens are text.
  std::vector<Part> split(std::string_view text, bool parse_special) const;

 private:
  struct Found {
    size_t length;  // 0: nothing
    uint32_t token;
  };
  Found longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> first_bytes_{};
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node << 8 | byte) -> node
  std::vector<uint32_t> token_at_;                // by node: 1 + index in tokens_, or 0
};

}  // namespace sluice::text
