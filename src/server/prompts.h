// SPDX-License-Identifier: Apache-2.0
// A prompt as a string, as token ids, or several of either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/fields.h"
#include "text/tokenizer.h"

namespace sluice::server {

struct Prompt {
  std::vector<int32_t> ids;         // not empty, unless who reads it says so
  std::optional<std::string> text;  // when it was one
  size_t before = 0, after = 0;     // how many of the first and last ids were put around the text's
};

inline constexpr size_t kMaxPrompts = 1024;  // of a request

// Throws ApiError 400 context_length_exceeded for a text with too many bytes to be `context` tokens, so that megabytes
// are not tokenized in vain.
void check_bytes(std::string_view field, size_t bytes, const text::Tokenizer& tokenizer, int64_t context);
// The same at more than `context` ids, of a text that was not tokenized to its end.
void check_enough(std::string_view field, size_t ids, int64_t context);

// A string, an array of strings, of ids, or of arrays of ids. As Hugging Face does it: special tokens in a text are
// tokens, the bos token is put in front unless add_special_tokens is false. Throws ApiError 400 for anything else, for
// an empty one, for ids outside of the vocabulary and for a text that is longer than the context.
std::vector<Prompt> read_prompts(Fields& fields, std::string_view key, const text::Tokenizer& tokenizer,
                                 const engine::Limits& limits, bool add_special_tokens = true);
// may_be_empty: arrays of ids within an array.
std::vector<Prompt> read_id_prompts(Fields& fields, std::string_view key, int64_t vocab, bool may_be_empty = false);

// Throws ApiError 400 when prompts times n is more than a request may ask for. field: n's name.
void check_choices(size_t prompts, int64_t n, std::string_view field = "n");

}  // namespace sluice::server
