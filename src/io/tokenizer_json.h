// SPDX-License-Identifier: Apache-2.0
// tokenizer.json and tokenizer_config.json -> the plain data that text::Tokenizer is built from.
#pragma once

#include <filesystem>
#include <string_view>

#include "text/tokenizer_data.h"

namespace sluice::io {

// Reads tokenizer.json, tokenizer_config.json (may be absent) and chat_template.jinja (wins when present) of a model
// folder. Throws not_found (no tokenizer.json), bad_file (not JSON, a missing or mistyped member, a merge that is not
// two tokens, a doubled token), unsupported (a kind of model, normalizer, pre-tokenizer or post-processor that text/
// does not know, by name). What the numbers mean together (ids, merges against the vocabulary) is text::Tokenizer's to
// check.
text::TokenizerData read_tokenizer(const std::filesystem::path& folder);

// The same from texts; `config_json` may be empty. `source` and `config_source` name the files in error sentences.
text::TokenizerData parse_tokenizer(std::string_view tokenizer_json, std::string_view source,
                                    std::string_view config_json, std::string_view config_source);

}  // namespace sluice::io
