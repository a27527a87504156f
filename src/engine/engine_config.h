// SPDX-License-Identifier: Apache-2.0
// What an engine is asked to be, and what that means for the scheduler and the cache.
#pragma once

#include <cstdint>

#include "engine/scheduler.h"
#include "model/model.h"

namespace sluice::engine {

struct EngineConfig {
  int64_t context_length = 0;   // longest prompt with its answer; 0: the model's
  int max_running = 32;         // sequences in a step
  int max_queued = 256;         // choices that wait for their first step
  int64_t prefill_chunk = 512;  // prompt tokens a step, of all sequences; decoding comes on top of it
  int64_t cache_tokens = 0;     // tokens of keys and values; 0: max_running contexts, but at most 65536 or one context
  int64_t block_size = 64;      // tokens of a block: what the prefix cache shares
  bool prefix_cache = true;
  int state_snapshots = 16;   // recurrent models: states kept for the prefix cache; 0: no reuse for them
  int speculative_steps = 0;  // drafts a step from the model's multi-token-prediction head
};

// With what was 0 filled in from the model. Throws invalid_argument naming the field, unsupported for speculative_steps
// without a draft head.
EngineConfig completed(EngineConfig config, const model::ModelInfo& info);

// Of a completed one; `recurrent`: the model has layers with states.
model::CacheConfig cache_config(const EngineConfig& config, bool recurrent);
SchedulerConfig scheduler_config(const EngineConfig& config, bool recurrent);

}  // namespace sluice::engine
