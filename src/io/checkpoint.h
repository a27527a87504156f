// SPDX-License-Identifier: Apache-2.0
// A Hugging Face model folder: configs, and tensors found by name in one safetensors file or in shards with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/context.h"
#include "io/config.h"
#include "io/safetensors.h"

namespace sluice::io {

// Copying copies a handle. Thread-safe.
class Checkpoint {
 public:
  // Reads config.json, the index and every shard's header; no tensor byte. model.safetensors is preferred to an index,
  // as by transformers. Throws not_found (no folder, no config.json, no weights, a shard is missing) or bad_file: the
  // index names a path instead of a file in the folder, or it and the shards disagree on which tensors there are.
  static Checkpoint open(const std::filesystem::path& folder);
  // The folder's configurations with tensors that are in memory instead of its files, which need not be there.
  static Checkpoint open_configs(const std::filesystem::path& folder);
  Checkpoint with_tensors(const std::vector<std::pair<std::string, Tensor>>& tensors) const;

  const std::filesystem::path& folder() const;
  const Config& config() const;                            // config.json
  const std::optional<Config>& generation_config() const;  // generation_config.json
  const std::optional<Config>& tokenizer_config() const;   // tokenizer_config.json
  const std::optional<Config>& quant_config() const;       // hf_quant_config.json (ModelOpt)

  std::vector<std::string> names() const;  // sorted
  bool contains(std::string_view name) const;
  const SafetensorsEntry* find(std::string_view name) const;  // type and shape without data; nullptr: no such tensor
  // As SafetensorsFile::tensor: a view; clone() what outlives the loading.
  Tensor tensor(std::string_view name) const;
  // For error sentences: <folder>/model-00001-of-00002.safetensors: tensor "x". The folder alone when there is no x.
  std::string source_of(std::string_view name) const;

  int64_t bytes() const;                  // of all tensors
  void populate(Context& context) const;  // brings all shards into memory; see io/mmap.h

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace sluice::io
