// SPDX-License-Identifier: Apache-2.0
// Writing safetensors files tensor by tensor, without holding them all in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/context.h"
#include "io/output_file.h"
#include "tensor/tensor.h"

namespace sluice::io {

// add() every tensor's type and shape, start(), write() each once in any order, finish(). The file appears at finish();
// before that nothing is left behind (OutputFile). The bytes depend on names, types, shapes, contents and metadata
// only: tensors are sorted by element size (largest first, so all are aligned) and name, as the Rust writer does.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(const std::filesystem::path& path, std::map<std::string, std::string> metadata = {});
  ~SafetensorsWriter();

  // Throws invalid_argument: empty or doubled name, a name with NUL or broken UTF-8, after start().
  void add(std::string_view name, DType dtype, const Shape& shape);
  // Fixes the layout, reserves the disk space, writes the header. Throws io when the disk is too small.
  void start();
  // Throws invalid_argument when the tensor was not added, was written before or has another type or shape. Not
  // thread-safe. To a device or a pipe in the order of the file only, as write_all() does it.
  void write(std::string_view name, const Tensor& tensor);
  // Throws invalid_argument when a tensor is missing, io when the disk refuses.
  void finish();

  // All of that for tensors that are there at once. progress is called before every tensor and before the file appears,
  // and may throw.
  void write_all(const std::vector<std::pair<std::string, Tensor>>& tensors,
                 const std::function<void(const Progress&)>& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::io
