// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: 8 bytes N, N bytes of JSON, then the tensors' bytes without a gap. The rules are
// those of the Rust reader (docs/robustness.md), so what it accepts is accepted here, and it alone: duplicate,
// empty or NUL-holding names and unknown fields of a tensor are refused on top.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace sluice::io {

// An element type as files name it. Types without a DType can be listed, but not read.
struct FileDType {
  std::string_view name;  // "BF16"
  int bits;
  std::optional<DType> dtype;
};
const FileDType* find_file_dtype(std::string_view name);  // nullptr: unknown
const FileDType& file_dtype_of(DType dtype);

struct SafetensorsEntry {
  std::string name;
  const FileDType* dtype = nullptr;
  Shape shape;
  int64_t begin = 0, end = 0;  // bytes after the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // by offset: they cover [0, data_bytes) without hole or overlap
  std::map<std::string, std::string> metadata;  // "__metadata__"
  int64_t data_offset = 0;                      // of the first tensor byte in the file
};

// The longest header, as in the Rust reader; checked before anything is allocated.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// `file` is the whole file; nothing beyond the header is read. Throws bad_file: `source`, the tensor, the value, what
// would be accepted.
SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view source);

}  // namespace sluice::io
