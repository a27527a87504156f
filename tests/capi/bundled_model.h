// SPDX-License-Identifier: Apache-2.0
// The bundled checkpoint, and how it continues a prompt.
#pragma once

#include <string>

inline const std::string kFolder = std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h";
inline const std::string kPrompt = "Henry meditated awhile all to himself early the next morning as";
// README.md of the checkpoint: 48 greedy tokens of transformers in float32.
inline const std::string kContinuation =
    " he went down the hill to the house. He had been in the house for a long time, and had been in the house for some "
    "time, when he had been in the house, and had been in the house for some time,";
