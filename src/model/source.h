// SPDX-License-Identifier: Apache-2.0
// A checkpoint as models read it: tensors by name, checked against the sizes that the configuration promises.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "io/checkpoint.h"
#include "model/dense.h"
#include "model/load_options.h"
#include "model/norm.h"
#include "moe/backend.h"

namespace sluice::model {

// A size and the configuration keys that it comes from, for the sentence when a tensor contradicts it.
struct Dim {
  int64_t n = 0;
  std::string_view keys;
};
using Dims = std::initializer_list<Dim>;

struct ExpertDims {
  Dim experts, inter, hidden;
};

enum class Bias : uint8_t { none, present };  // as the configuration says; the tensors must agree

class Source {
 public:
  Source(Context& ctx, const LoadOptions& options);
  ~Source();

  const io::Config& config() const;
  const io::Checkpoint& checkpoint() const;
  const LoadOptions& options() const { return options_; }
  bool contains(std::string_view name) const;
  // The same for a tensor that the configuration promises: dummy weights have it, but none that is merely optional.
  bool keeps(std::string_view promised) const { return options_.dummy || contains(promised); }
  // The first of the names that the checkpoint has; throws bad_file naming all of them.
  std::string first_of(std::initializer_list<std::string> names) const;

  // All throw bad_file, naming file, tensor, shape and configuration keys, when the tensor is missing or another shape.
  Tensor floats(const std::string& name, Dims shape) const;  // float32 copy
  Tensor table(const std::string& name, Dims shape) const;   // bf16 or f32, as stored
  Norm norm(const std::string& name, Dim size, float eps) const;
  Dense dense(const std::string& module, Dim rows, Dim cols, Bias bias = Bias::none) const;
  Dense tied(const std::string& module, const Tensor& weight) const;        // a head that is the embedding
  Tensor dequantized(const std::string& module, Dim rows, Dim cols) const;  // bf16 or f32 [N, K]

  void finish() const;  // everything is read: the progress ends full

  // The experts under `module` ("model.layers.0.mlp.experts"), one by one or fused, prepared by `backend`
  // (moe::select). `spec` says everything but sizes and number formats.
  std::shared_ptr<const moe::MoeLayer> experts(const std::string& module, const ExpertDims& dims, MoeSpec spec,
                                               std::string_view backend) const;

 private:
  struct Impl;
  void offer(std::initializer_list<std::pair<std::string, Shape>> tensors, DType dtype) const;
  void verify_shape(const std::string& name, Dims shape) const;
  void verify_module(const std::string& module, Dim rows, Dim cols) const;
  void verify_experts(const std::string& module, const ExpertDims& dims, bool gated) const;
  Context& ctx_;
  LoadOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::model
