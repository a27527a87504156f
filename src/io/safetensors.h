// SPDX-License-Identifier: Apache-2.0
// One safetensors file, mapped: tensors are views of the file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/mmap.h"
#include "io/safetensors_header.h"
#include "tensor/tensor.h"

namespace sluice::io {

// Copying copies a handle. Thread-safe.
class SafetensorsFile {
 public:
  // Maps the file and checks the whole header; no tensor byte is read. Throws not_found, bad_file, io.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::string& name() const;                       // the path, printable
  const std::vector<SafetensorsEntry>& entries() const;  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const;
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  const SafetensorsEntry* find(std::string_view name) const;  // nullptr: no such tensor

  // A read-only view that keeps the mapping alive; a copy when the bytes are not aligned to the element type. Throws
  // not_found, unsupported (an element type without a DType, e.g. F8_E5M2), bad_file (the file was cut meanwhile).
  // clone() what outlives the loading: a file that is cut short under a view raises SIGBUS.
  Tensor tensor(std::string_view name) const;

  const std::shared_ptr<const MappedFile>& mapping() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace sluice::io
