// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose output head is the embedding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "io/checkpoint.h"

namespace sluice::weights {

// The module that is also the output head, as "model.embed_tokens"; nothing: the head has weights of its own
// (tie_word_embeddings is not true). Throws bad_file when the embedding is missing.
std::optional<std::string> tied_embedding(const io::Checkpoint& checkpoint);

// Throws bad_file when a checkpoint whose head is tied holds other weights for the module `head`, too: fine-tuning with
// a head of its own leaves that behind, and results would be those of another model. Not where it lacks one of the two,
// or an update has put one there: the other may follow.
void check_tied_head(const io::Checkpoint& checkpoint, std::string_view head);

}  // namespace sluice::weights
