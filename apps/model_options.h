// SPDX-License-Identifier: Apache-2.0
// The options that every command with a model has, and the loading of that model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "model/models.h"
#include "model/recorded_steps.h"

namespace sluice::apps {

struct ModelOptions {
  std::string path, device = "cpu", load_format = "auto", dtype = "bfloat16", quantization, quantization_rest,
                    quantization_head, calibration_text, moe_backend = "auto";
  std::string draft_moe_backend;  // add_speculative_options() declares it
  std::string fp8_block_numerics = "exact";
  std::string fp8_sums = "float32";
  std::string kv_cache_dtype = "auto";
  int tp_size = 1;
  bool deterministic = false;
  bool nvfp4_per_token = false;
};

void add_model_options(CLI::App& command, ModelOptions& options);

// Reads the checkpoint (twice when inputs are calibrated: once in BF16 for the calibration).
std::unique_ptr<model::Model> load_model(Context& ctx, const ModelOptions& options);
// How it does that; runs the calibration.
model::LoadOptions load_options(Context& ctx, const ModelOptions& options);

std::string read_text_file(const std::string& path);

struct SpeculativeOptions {
  std::string algorithm;
  int num_steps = 3;
  bool fixed_steps = false;
  int steps() const { return algorithm.empty() ? 0 : num_steps; }
};
void add_speculative_options(CLI::App& command, SpeculativeOptions& options, ModelOptions& model);

// How steps are launched on a GPU.
void add_launch_options(CLI::App& command, model::RecordingConfig& recording, std::optional<bool>& overlap);

}  // namespace sluice::apps
