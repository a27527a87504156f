// SPDX-License-Identifier: Apache-2.0
#include "weights/tied_head.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "weights/stored.h"

namespace sluice::weights {

namespace {

constexpr std::array<std::string_view, 4> kEmbeddings = {"model.embed_tokens", "model.embeddings",
                                                         "backbone.embeddings", "backbone.embed_tokens"};

std::string weight_of(std::string_view module) { return fmt::format("{}.weight", module); }

// Also of another float type, and with zeros of either sign.
bool same_values(const io::Checkpoint& checkpoint, const std::string& a, const std::string& b) {
  const Shape& shape = checkpoint.find(a)->shape;
  if (shape != checkpoint.find(b)->shape) return false;
  const Tensor x = read_floats(checkpoint, a, shape), y = read_floats(checkpoint, b, shape);
  return std::equal(x.as<float>(), x.as<float>() + x.elements(), y.as<float>());
}

}  // namespace

std::optional<std::string> tied_embedding(const io::Checkpoint& checkpoint) {
  const io::Config& config = checkpoint.config();
  if (!config.boolean("tie_word_embeddings", false)) return {};
  for (const std::string_view name : kEmbeddings)
    if (checkpoint.contains(weight_of(name))) return std::string(name);
  fail(ErrorCode::bad_file, "{}: tie_word_embeddings is true, but no module {} has a weight", config.source(),
       fmt::join(kEmbeddings, ", "));
}

void check_tied_head(const io::Checkpoint& checkpoint, std::string_view head) {
  if (!checkpoint.config().boolean("tie_word_embeddings", false)) return;
  const auto* embedding = std::find_if(kEmbeddings.begin(), kEmbeddings.end(),
                                       [&](std::string_view module) { return checkpoint.contains(weight_of(module)); });
  if (embedding == kEmbeddings.end()) return;
  const std::string name = weight_of(head), tied_to = weight_of(*embedding);
  if (!checkpoint.contains(name)) return;
  const std::vector<std::string> sent = checkpoint.updated_names();
  for (const std::string& one : {name, tied_to})
    if (std::binary_search(sent.begin(), sent.end(), one)) return;
  const Tensor a = checkpoint.tensor(name), b = checkpoint.tensor(tied_to);
  const bool copied = a.dtype() == b.dtype() && a.shape() == b.shape() &&
                      std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
  check_file(copied || same_values(checkpoint, name, tied_to),
             "{} is not that of {}, but tie_word_embeddings is true ({}); accepted: false, to use both, or the same "
             "weights",
             checkpoint.source_of(name), *embedding, checkpoint.config().source());
}

}  // namespace sluice::weights
