// SPDX-License-Identifier: Apache-2.0
// The tensors that a trainer sends to an engine that was loaded with dummy weights: a checkpoint that comes little by
// little, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/context.h"
#include "model/models.h"

namespace sluice::engine {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// How much of a model has come.
struct SentTensors {
  int64_t come = 0, needed = 0;
  std::string missing;  // the first that is needed and has not come; "": all have
  bool complete() const { return missing.empty(); }
};

// A value: adding tensors makes another. The bytes of tensors are never looked at, so any thread may check tensors
// before they are read.
class SentWeights {
 public:
  // `ctx` must live longer. `configs`: the checkpoint of the dummies, without tensors. `awaited`: names that are needed
  // besides those that the model needs.
  SentWeights(Context* ctx, const model::LoadOptions& options, io::Checkpoint configs, std::set<std::string> awaited);

  // With these besides; of two of one name the later one counts. Throws invalid_argument, naming the tensor, its value
  // and what is accepted, for a tensor that the model needs in another shape, for one that is larger than any tensor
  // of a model of this configuration, and for a name that is given twice; after built() also for one that neither came
  // before nor is among those that the model uses.
  SentWeights with(const NamedTensors& tensors) const;
  void check(const NamedTensors& tensors) const;  // throws what with() throws
  // The same after a model was built of them, which asked for these names.
  SentWeights built(std::shared_ptr<const io::AskedNames> asked) const;
  bool asked_for(const std::string& name) const { return asked_ == nullptr || asked_->contains(name); }

  const io::Checkpoint& checkpoint() const { return checkpoint_; }
  const SentTensors& state() const { return state_; }
  // Of the loading of what was sent: `options` without dummies.
  const model::LoadOptions& options() const { return options_; }

 private:
  // What is needed, given the names, types and shapes that have come.
  struct List {
    model::NeededTensors needed;
    std::vector<std::string> more;  // awaited, and not needed
    std::unordered_map<std::string_view, const Shape*> shapes;
  };
  void make_list();
  bool keeps_list(const NamedTensors& tensors) const;
  void check_names(const NamedTensors& tensors) const;
  void check_shape(const std::string& name, const Tensor& tensor) const;
  void count();

  Context* ctx_;
  model::LoadOptions options_;
  io::Checkpoint checkpoint_;
  std::set<std::string> awaited_;
  std::shared_ptr<const io::AskedNames> asked_;  // of built(); null: before it, when any name may come
  std::shared_ptr<const List> list_;
  SentTensors state_;
};

}  // namespace sluice::engine
