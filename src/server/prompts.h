// SPDX-License-Identifier: Apache-2.0
// A prompt as a string, as token ids, or several of either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/fields.h"
#include "text/tokenizer.h"

namespace sluice::server {

struct Prompt {
  std::vector<int32_t> ids;         // not empty
  std::optional<std::string> text;  // when it was one
};

inline constexpr size_t kMaxPrompts = 1024;  // of a request

// One text's ids. As Hugging Face does it: special tokens in the text are tokens, the bos token is put in front.
Prompt encode_prompt(std::string_view field, std::string text, const text::Tokenizer& tokenizer);

// A string, an array of strings, of ids, or of arrays of ids. Throws ApiError 400 for anything else, for an empty one
// and for ids outside of the vocabulary.
std::vector<Prompt> read_prompts(Fields& fields, std::string_view key, const text::Tokenizer& tokenizer, int64_t vocab);
std::vector<Prompt> read_id_prompts(Fields& fields, std::string_view key, int64_t vocab);

// Throws ApiError 400 when prompts times n is more than a request may ask for.
void check_choices(size_t prompts, int64_t n);

}  // namespace sluice::server
