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

#include "io/asked_names.h"
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
  // This checkpoint with some of its tensors replaced by others of the same type and shape, which are shared, not
  // copied. Throws invalid_argument naming the first tensor that it has not, that is another type or shape, or that is
  // named twice.
  Checkpoint updated(const std::vector<std::pair<std::string, Tensor>>& tensors) const;
  // The same of any type and shape, and also tensors that it has not: of files, or of configurations alone. Throws
  // invalid_argument for a name that is given twice.
  Checkpoint extended(const std::vector<std::pair<std::string, Tensor>>& tensors) const;
  // What updated() and extended() have put in place of the files' own or beside them, sorted.
  std::vector<std::string> updated_names() const;
  // The files' own tensors again.
  Checkpoint without_updates() const;
  // Of those that updated() and extended() have put there, the ones that were asked for.
  Checkpoint with_updates_of(const AskedNames& asked) const;
  // The same tensors. Every name that contains(), find() and tensor() of it and its copies are called with is noted.
  Checkpoint noting(std::shared_ptr<AskedNames> asked) const;
  // For a name that a model knows and does not read. Does nothing without noting().
  void note(std::string_view name) const;

  const std::filesystem::path& folder() const;
  const Config& config() const;                            // config.json
  const std::optional<Config>& generation_config() const;  // generation_config.json
  const std::optional<Config>& quant_config() const;       // hf_quant_config.json (ModelOpt)

  std::vector<std::string> names() const;  // sorted
  bool contains(std::string_view name) const;
  const SafetensorsEntry* find(std::string_view name) const;  // type and shape without data; nullptr: no such tensor
  // As SafetensorsFile::tensor: a view; clone() what outlives the loading.
  Tensor tensor(std::string_view name) const;
  // For error sentences: <folder>/model-00001-of-00002.safetensors: tensor "x". The folder alone when there is no x.
  std::string source_of(std::string_view name) const;

  // MappedFile::forget for memory of one of the files; nothing for other memory. For codes that have been packed: they
  // would count a second time in the process's resident size.
  void forget(const void* memory, int64_t bytes) const;

  // Throws bad_file when one of the files was written to since it was opened: its bytes are others than those loaded.
  void check_unchanged() const;

  int64_t bytes() const;  // of all tensors

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
  std::shared_ptr<AskedNames> asked_;  // of noting(); null: nothing is noted
};

}  // namespace sluice::io
