// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose output head is the embedding.
#pragma once

#include <optional>
#include <string>

#include "io/checkpoint.h"

namespace sluice::weights {

// The module that is also the output head, as "model.embed_tokens"; nothing: the head has weights of its own
// (tie_word_embeddings is not true). Throws bad_file when the embedding is missing.
std::optional<std::string> tied_embedding(const io::Checkpoint& checkpoint);

}  // namespace sluice::weights
