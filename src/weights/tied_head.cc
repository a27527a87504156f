// SPDX-License-Identifier: Apache-2.0
#include "weights/tied_head.h"

namespace sluice::weights {

std::optional<std::string> tied_embedding(const io::Checkpoint& checkpoint) {
  const io::Config& config = checkpoint.config();
  if (!config.boolean("tie_word_embeddings", false)) return {};
  const auto names = {"model.embed_tokens", "model.embeddings", "backbone.embeddings", "backbone.embed_tokens"};
  for (const std::string name : names)
    if (checkpoint.contains(name + ".weight")) return name;
  fail(ErrorCode::bad_file, "{}: tie_word_embeddings is true, but no module {} has a weight", config.source(),
       fmt::join(names, ", "));
}

}  // namespace sluice::weights
