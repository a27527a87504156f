// SPDX-License-Identifier: Apache-2.0
// What every backend refuses in the same words, before it touches memory.
#pragma once

#include "moe/backend.h"

namespace sluice::moe {

// Throws unless `w` has the shapes, formats, scales and extras that `spec` (already valid) promises.
void check_weights(const MoeSpec& spec, const weights::ExpertWeights& w);

// Throws unless the pointers that this call needs are there and their types are readable.
void check_args(const MoeSpec& spec, const MoeArgs& args);

}  // namespace sluice::moe
