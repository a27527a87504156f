// SPDX-License-Identifier: Apache-2.0
// The tokens that a grammar chooses from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace sluice::grammar {

struct Vocabulary {
  // By id: the bytes that the token adds to a text; "" for gaps.
  std::vector<std::string> bytes;
  // By id: control tokens, which no text holds. Structural tags alone may match those that they name.
  std::vector<bool> special;
  // Ids that end an answer; no grammar takes them for text.
  std::vector<int32_t> stops;
  int64_t size = 0;  // of the logits: at least bytes.size(), the ids beyond are padding
};

// `size`: of the logits; `stops`: the model's own.
Vocabulary vocabulary_of(const text::Tokenizer& tokenizer, int64_t size, std::span<const int32_t> stops);

}  // namespace sluice::grammar
