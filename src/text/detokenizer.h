// SPDX-License-Identifier: Apache-2.0
// Decoding one token at a time, for streams: never half a character, and all pieces together are what
// Tokenizer::decode gives for the same ids.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace sluice::text {

class Detokenizer {
 public:
  // `tokenizer` must live longer.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = false)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that is certain after one more token: valid UTF-8, often empty inside a character of several tokens.
  std::string push(int32_t id);

  // What is left at the end of a stream: empty, or one U+FFFD for a character that was never completed. Afterwards a
  // new stream may begin.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  // the first 1 to 3 bytes of a character
};

}  // namespace sluice::text
