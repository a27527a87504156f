// SPDX-License-Identifier: Apache-2.0
// Which number format each module of a checkpoint is stored in, from its config files (docs/reference.md, Quantised
// checkpoints).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/formats.h"
#include "io/checkpoint.h"
#include "weights/name_pattern.h"

namespace sluice::weights {

struct ModuleFormat {
  format::Format weights = format::Format::bf16;
  format::InputFormat inputs = format::InputFormat::plain;
  bool operator==(const ModuleFormat&) const = default;
};

class QuantScheme {
 public:
  QuantScheme() = default;  // everything in BF16

  // Reads, in this order: config's `quantization_config`, its `compression_config`, `hf_quant_config`'s `quantization`
  // (the root file hf_quant_config.json, when there is one). Throws unsupported with what is accepted for unknown
  // methods, and bad_file for configs that contradict themselves.
  static QuantScheme detect(const io::Config& config, const std::optional<io::Config>& hf_quant_config = {});
  static QuantScheme detect(const io::Checkpoint& checkpoint);

  // `module` is a checkpoint name: "model.layers.0.self_attn.q_proj", "model.layers.3.mlp.experts.7.up_proj",
  // "model.layers.3.mlp.experts" for fused tensors. Modules that no rule names are BF16. Throws bad_file for a regular
  // expression of the configuration that backtracks too much.
  ModuleFormat of(std::string_view module) const;

  // Throws invalid_argument for a quantised checkpoint: `quantization`, a format, is for those in BF16.
  void check_not_quantized(std::string_view quantization) const;
  bool quantized() const { return !rules_.empty() || !layers_.empty(); }
  const std::string& method() const { return method_; }  // "modelopt NVFP4"; "none" for BF16
  const std::string& source() const { return source_; }  // the file that said so; empty for BF16

 private:
  struct Rule {
    std::vector<NamePattern> targets;  // empty: every module
    ModuleFormat format;
  };
  struct Layer {
    std::string module;  // normal_name
    ModuleFormat format;
  };
  friend class SchemeReader;

  std::vector<NamePattern> excluded_;
  std::vector<Rule> rules_;    // the first that matches
  std::vector<Layer> layers_;  // MIXED_PRECISION's quantized_layers, sorted by name
  std::string method_ = "none", source_;
};

}  // namespace sluice::weights
