// SPDX-License-Identifier: Apache-2.0
// THE LIST of model families, and the one way from a folder to a model.
#pragma once

#include <filesystem>
#include <memory>

#include "model/load_options.h"
#include "model/memory_fit.h"
#include "model/model.h"
#include "model/weight_reader.h"
#include "text/tokenizer.h"

namespace sluice::model {

// Reads the configuration and all weights. Throws unsupported for an architecture that is not in the list (naming it
// and the list), bad_file when config.json is wrong in itself or contradicts the tensors, and what io and weights
// throw; out_of_memory, before a weight is read, when weights and the planned cache do not fit.
std::unique_ptr<Model> load_model(Context& ctx, const LoadOptions& options, const CachePlan& cache = {});

// A model with what its weights were read from, so that some of them can be replaced by others.
struct LiveModel {
  std::unique_ptr<Model> model;
  io::Checkpoint source;  // without tensors for dummy weights
  std::shared_ptr<const WeightParts> parts;
};
LiveModel load_live_model(Context& ctx, const LoadOptions& options, const CachePlan& cache = {});
// The same of a checkpoint that is open already: of options.path, with tensors in memory. `asked` takes the names that
// such a model uses, or would use if they were there; the result's source has no other tensors in memory.
LiveModel load_live_model(Context& ctx, const LoadOptions& options, const io::Checkpoint& source,
                          const std::shared_ptr<io::AskedNames>& asked);
// The same, loaded with the same options, with some of its tensors replaced: as the checkpoint has them, and quantised
// here if options.quantization quantises the checkpoint's. What they do not touch is shared with `now`, so the cost is
// that of the modules touched, and `now` goes on to work. Throws as io::Checkpoint::updated() and check_unchanged() and
// as load_model(); `now` is left as it was.
LiveModel update_live_model(Context& ctx, const LoadOptions& options, const LiveModel& now,
                            const std::vector<std::pair<std::string, Tensor>>& tensors);
// The same for a checkpoint that differs from now.source in the tensors `changed`, which both have.
LiveModel update_live_model(Context& ctx, const LoadOptions& options, const LiveModel& now, io::Checkpoint source,
                            std::vector<std::string> changed);

// The tensors that a model of this configuration and of these tensors, which may be some of them, needs. Their bytes
// are not looked at. Any thread.
NeededTensors needed_tensors(Context& ctx, const LoadOptions& options, const io::Checkpoint& checkpoint);

// The tokenizer of a model's folder; no weights are looked at, so that what they would be wasted on is refused before
// they are read. Throws what load_model() throws for a folder without a model of the list, then what
// io::read_tokenizer() and text::Tokenizer throw, and bad_file when it has ids that the model has no logits for.
text::Tokenizer load_tokenizer(const std::filesystem::path& folder);

// "Qwen3MoeForCausalLM, NemotronHForCausalLM, ..."
std::string model_names();

}  // namespace sluice::model
