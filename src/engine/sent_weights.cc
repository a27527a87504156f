// SPDX-License-Identifier: Apache-2.0
#include "engine/sent_weights.h"

#include <algorithm>
#include <limits>

#include "io/quote.h"

namespace sluice::engine {

SentWeights::SentWeights(Context* ctx, const model::LoadOptions& options, io::Checkpoint configs,
                         std::set<std::string> awaited)
    : ctx_(ctx), options_(options), checkpoint_(std::move(configs)), awaited_(std::move(awaited)) {
  options_.dummy = false;
  make_list();
  count();
}

void SentWeights::make_list() {
  auto list = std::make_shared<List>();
  list->needed = model::needed_tensors(*ctx_, options_, checkpoint_);
  std::set<std::string> more = awaited_;
  for (const auto& one : list->needed.all) {
    more.erase(one.name);
    if (one.shape) list->shapes[one.name] = &*one.shape;
  }
  list->more.assign(more.begin(), more.end());
  list_ = std::move(list);
}

void SentWeights::count() {
  state_ = {};
  const auto add = [&](const std::string& name) {
    ++state_.needed;
    if (checkpoint_.contains(name))
      ++state_.come;
    else if (state_.missing.empty())
      state_.missing = name;
  };
  for (const auto& one : list_->needed.all) add(one.name);
  for (const std::string& name : list_->more) add(name);
}

// A list takes as long as looking at every tensor of the model, and a trainer sends hundreds of buckets. Names that are
// listed, with values that need no scales, choose no other layout; nor do tensors like those that were there.
bool SentWeights::keeps_list(const NamedTensors& tensors) const {
  return std::all_of(tensors.begin(), tensors.end(), [&](const auto& given) {
    const auto& [name, tensor] = given;
    const DType type = tensor.dtype();
    if (const io::SafetensorsEntry* entry = checkpoint_.find(name))
      return entry->dtype->dtype == type && entry->shape == tensor.shape();
    const auto listed = list_->shapes.find(name);
    const bool values = type == DType::bf16 || type == DType::f32 || type == DType::f16;
    return values && listed != list_->shapes.end() && *listed->second == tensor.shape();
  });
}

void SentWeights::check_shape(const std::string& name, const Tensor& tensor) const {
  const auto listed = list_->shapes.find(name);
  sluice::check(listed == list_->shapes.end() || *listed->second == tensor.shape(),
                "tensor {} has the shape {}; accepted: {}, as {} says", io::quote(name),
                sluice::to_string(tensor.shape()),
                listed == list_->shapes.end() ? "" : sluice::to_string(*listed->second), checkpoint_.config().source());
  sluice::check(tensor.elements() <= list_->needed.largest,
                "tensor {} has the shape {}; accepted: at most the {} elements of the model's largest tensor",
                io::quote(name), sluice::to_string(tensor.shape()), list_->needed.largest);
}

// A trainer that sent more than the model uses may send it again.
void SentWeights::check_names(const NamedTensors& tensors) const {
  for (const auto& [name, tensor] : tensors)
    sluice::check(asked_for(name) || checkpoint_.contains(name), "the model of {} has no tensor {}",
                  io::printable(checkpoint_.folder().native(), 4096), io::quote(name));
}

SentWeights SentWeights::with(const NamedTensors& tensors) const {
  check_names(tensors);
  // First of all: the bytes of a tensor need not fit in 64 bits. A type has at most 8.
  for (const auto& [name, tensor] : tensors)
    if (tensor.elements() > std::numeric_limits<int64_t>::max() / 8) check_shape(name, tensor);
  SentWeights out = *this;
  out.checkpoint_ = checkpoint_.extended(tensors);
  // What is needed follows from what came: experts one by one or fused, a prefix of all names, scales of codes.
  if (!keeps_list(tensors)) {
    out.make_list();
    for (const auto& [name, tensor] : tensors) out.check_shape(name, tensor);
  }
  out.count();
  return out;
}

SentWeights SentWeights::built(std::shared_ptr<const io::AskedNames> asked) const {
  SentWeights out = *this;
  out.asked_ = std::move(asked);
  return out;
}

void SentWeights::check(const NamedTensors& tensors) const {
  check_names(tensors);
  if (!keeps_list(tensors)) with(tensors);
}

}  // namespace sluice::engine
