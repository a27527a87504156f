// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: an Error, or a header whose tensors lie inside the file. The first byte chooses
// between the file and an index, so that both readers of names share what the fuzzer learns.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "io/safetensors_header.h"
#include "io/safetensors_index.h"

namespace {
void read_header(std::string_view file) {
  const auto header = sluice::io::parse_safetensors_header(file, "file");
  int64_t end = 0;
  for (const auto& entry : header.entries) {
    if (entry.begin != end || entry.end < entry.begin) std::abort();
    end = entry.end;
    // What a reader does with an accepted entry.
    if (entry.dtype->dtype &&
        sluice::elements_of(entry.shape) * sluice::bytes_of(*entry.dtype->dtype) != end - entry.begin)
      std::abort();
  }
  if (header.data_offset + end != static_cast<int64_t>(file.size())) std::abort();
}

void read_index(std::string_view text) {
  const auto index = sluice::io::parse_safetensors_index(text, "index");
  for (const auto& [name, shard] : index.tensors)
    if (index.shards.at(shard).find('/') != std::string::npos) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    data[0] == 'i' ? read_index(rest) : read_header(rest);
  } catch (const sluice::Error&) {
  }
  return 0;
}
