// SPDX-License-Identifier: Apache-2.0
// Checks that all backends share: they refuse bad input with the same sentences, before they touch memory.
#pragma once

#include "moe/backend.h"

namespace sluice::moe {

// Throws unless `w` has the shapes, formats, scales and extras that `spec` (already valid) promises.
void check_weights(const MoeSpec& spec, const weights::ExpertWeights& w);

// Throws unless the pointers that this call needs are there and their types are readable.
void check_args(const MoeSpec& spec, const MoeArgs& args);

// For a call on host memory: the same arguments with tokens = min(tokens, max(*num_tokens, 0)).
MoeArgs real_args(MoeArgs args);

// Backends that allocate prepared weights themselves refuse the caller's memory.
void check_no_memory(std::string_view backend, const PrepareOptions& options);

// Throws unless the workspace is given, is aligned and has `needed` bytes; anything will do where `needed` is 0.
void check_workspace(const void* workspace, int64_t size, int64_t tokens, int64_t needed, int alignment);

}  // namespace sluice::moe
