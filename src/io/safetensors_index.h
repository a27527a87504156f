// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::io {

struct SafetensorsIndex {
  std::vector<std::string> shards;                      // file names in order of first appearance, each once
  std::vector<std::pair<std::string, size_t>> tensors;  // name, index into `shards`; in file order, each name once
};

// A million tensors take about a second. Throws bad_file: no weight_map, a doubled tensor, a shard that is not the
// plain name of a file (a path could lead out of the folder).
SafetensorsIndex parse_safetensors_index(std::string_view text, std::string_view source);

}  // namespace sluice::io
