// SPDX-License-Identifier: Apache-2.0
// Reads a model's weights from a checkpoint: tensors by name, checked against the sizes that the configuration states.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/checkpoint.h"
#include "model/dense.h"
#include "model/load_options.h"
#include "moe/backend.h"

namespace sluice::weights {
struct StoredNames;
}

namespace sluice::model {

// A size and the configuration keys that it comes from, for the sentence when a tensor contradicts it.
struct Dim {
  int64_t n = 0;
  std::string_view keys;
};
using Dims = std::initializer_list<Dim>;

// A module by its checkpoint name, and the rows of its weight.
struct DenseModule {
  std::string name;
  Dim rows;
};

struct ExpertDims {
  Dim experts, inter, hidden;
};

// The large modules that a reader has made, by checkpoint name. Models of which only other tensors differ share them.
struct WeightParts {
  std::map<std::string, Dense> dense;
  std::map<std::string, std::shared_ptr<const moe::MoeLayer>> experts;
};

// The tensors that a model cannot be loaded without, in the order of loading. Checkpoints hold others too.
struct NeededTensors {
  struct One {
    std::string name;
    std::optional<Shape> shape;  // nothing: the loader checks it (packed codes, scales)
  };
  std::vector<One> all;
  int64_t largest = 0;  // elements of the largest, in any layout
};

enum class Bias : uint8_t { none, present };  // as the configuration says; the tensors must agree

class WeightReader {
 public:
  WeightReader(Context& ctx, const LoadOptions& options);
  // Of a checkpoint that differs from the one that `parts` were made of, with the same options, in the tensors
  // `changed` (sorted): modules without any of these are taken from there.
  WeightReader(Context& ctx, const LoadOptions& options, io::Checkpoint checkpoint,
               std::shared_ptr<const WeightParts> parts, std::vector<std::string> changed);
  // Reads nothing, and makes nothing that could run: what a family's loader asks of it goes to `list`. Of what a
  // checkpoint may have under several names or in several layouts, those that `checkpoint` has some of are meant. Looks
  // at its names, types and shapes only.
  WeightReader(Context& ctx, const LoadOptions& options, io::Checkpoint checkpoint, NeededTensors& list);
  ~WeightReader();

  const io::Config& config() const;
  const io::Checkpoint& checkpoint() const;
  const LoadOptions& options() const { return options_; }
  bool contains(std::string_view name) const;
  bool contains_module(const std::string& module) const;  // its weight, in whatever format
  // The same for a tensor that the configuration requires. Dummy weights, and lists, have every required tensor and no
  // optional one.
  bool has_required(std::string_view name) const { return options_.dummy || lists() || contains(name); }
  // The first of the names that the checkpoint has; throws bad_file naming all of them.
  std::string first_of(std::initializer_list<std::string> names) const;

  // Logs a warning when the checkpoint has tensors of layers that the configuration does not count, "<prefix>7." with 7
  // layers: the file may be whole and the number wrong. Not for an update: the model's first load has said it.
  void warn_of_more_layers(std::string_view prefix, Dim layers) const;

  // All throw bad_file, naming file, tensor, shape and configuration keys, when the tensor is missing or another shape.
  Tensor floats(const std::string& name, Dims shape) const;               // float32 copy
  Tensor embedding(const std::string& name, Dims shape) const;            // [V, hidden], bf16 or f32, as stored
  ops::RmsNorm norm(const std::string& name, Dim size, float eps) const;  // on the device
  Dense dense(const std::string& module, Dim rows, Dim cols, Bias bias = Bias::none) const;
  // Modules that read the same rows, as one product where their number formats agree.
  Dense dense(const std::vector<DenseModule>& modules, Dim cols, Bias bias = Bias::none) const;
  // What the keys ("k") or values ("v") of an attention layer are divided by before they are rounded to the cache's
  // e4m3: the checkpoint's own calibrated scale, which it may lack; else, and in any other cache, 1.
  float cache_scale(const std::string& attention, std::string_view which) const;
  // The embedding as output head; a copy of it where the head has a number format of its own.
  Dense tied_head(const std::string& module, const Tensor& weight) const;
  Tensor dequantized(const std::string& module, Dim rows, Dim cols) const;  // bf16 or f32 [N, K]

  // Copies the tensor to the memory of the device that the model runs on; the tensor itself if that is the host.
  Tensor to_device(const Tensor& host) const;

  // What was made so far. Dummy weights are not kept: no part of them can be replaced.
  std::shared_ptr<const WeightParts> parts() const;

  void end_progress() const;  // everything is read: the progress bar ends full

  // The experts under `module` ("model.layers.0.mlp.experts"), one by one or fused, prepared by `backend`
  // (moe::select). `spec` says everything but sizes and number formats.
  std::shared_ptr<const moe::MoeLayer> experts(const std::string& module, const ExpertDims& dims, MoeSpec spec,
                                               std::string_view backend) const;

 private:
  struct Impl;
  // With dummy weights, makes these tensors; without, does nothing.
  void add_dummies(std::initializer_list<std::pair<std::string, Shape>> tensors, DType dtype) const;
  bool makes_dummies() const;  // in the memory of the GPU that the model runs on
  bool lists() const;
  // With a list, adds to it; without, does nothing. True: there is a list.
  bool list(const std::string& name, const Shape& shape) const;
  bool list_module(const std::string& module, const Shape& shape) const;
  bool list_experts(const std::string& module, const ExpertDims& dims, bool gated) const;
  void list_stored(const std::string& module, const weights::StoredNames& names, const Shape& shape) const;
  struct Module;
  Module read_module(const std::string& module, Dim rows, Dim cols, Bias bias) const;
  void verify_shape(const std::string& name, Dims shape) const;
  void verify_module(const std::string& module, Dim rows, Dim cols) const;
  bool unchanged(const std::string& module) const;
  Dense read_dense(const std::vector<DenseModule>& modules, Dim cols, Bias bias) const;
  std::shared_ptr<const moe::MoeLayer> read_experts(const std::string& module, const ExpertDims& dims, MoeSpec spec,
                                                    std::string_view backend) const;
  void verify_experts(const std::string& module, const ExpertDims& dims, bool gated) const;
  Context& ctx_;
  LoadOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::model
