// SPDX-License-Identifier: Apache-2.0
// What sluice_model and sluice_engine have in common: loading options, facts about a model, ids and text.
#pragma once

#include <span>

#include "model/load_options.h"
#include "model/model.h"
#include "sluice/c.h"
#include "text/tokenizer.h"

namespace sluice::capi {

// given NULL: all defaults.
model::LoadOptions read_load_options(const char* folder, const sluice_model_options* given);
sluice_model_info info_of(const model::ModelInfo& info);

// Throws for NULL with a count.
std::span<const int32_t> ids_of(const int32_t* ids, size_t count);
// What ids may be written to. Calls look at it before the work.
void check_ids_out(const int32_t* ids, size_t capacity, const size_t* count);
sluice_status copy_ids(std::span<const int32_t> found, int32_t* ids, size_t capacity, size_t* count);
sluice_status encode(const text::Tokenizer& tokenizer, const char* text, size_t bytes, int32_t* ids, size_t capacity,
                     size_t* count);
sluice_status decode(const text::Tokenizer& tokenizer, const int32_t* ids, size_t count, int skip_special_tokens,
                     char* buffer, size_t size, size_t* needed);

}  // namespace sluice::capi
