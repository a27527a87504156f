// SPDX-License-Identifier: Apache-2.0
// The configuration of an engine, and the scheduler's and the cache's configuration that follow from it.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/scheduler.h"
#include "model/memory_fit.h"
#include "model/runner.h"

namespace sluice::engine {

struct EngineConfig {
  int64_t context_length = 0;  // longest prompt with its answer; 0: the model's
  int max_running = 32;        // sequences in a step
  int max_queued = 256;        // choices that wait for their first step
  // Prompt tokens per step, of all sequences; decoding comes on top of it. 0: ops::OpsTraits::prompt_rows; -1: whole
  // prompts.
  int64_t prefill_chunk = 0;
  int64_t cache_tokens = 0;  // tokens of keys and values; 0: max_running contexts, but at most 65536 or one context
  // In place of cache_tokens: what weights, states, and keys and values may take of the device's memory together, more
  // than 0 and at most 1. The cache has no more tokens than max_running contexts.
  std::optional<double> mem_fraction_static = std::nullopt;
  int64_t block_size = 64;  // tokens of a block: what the prefix cache shares
  bool prefix_cache = true;
  int state_snapshots = 16;               // recurrent models: states kept for the prefix cache; 0: no reuse for them
  int speculative_steps = 0;              // drafts per step from the model's multi-token-prediction head
  bool adaptive_drafts = false;           // at most as many, as DraftDepth finds them to pay
  model::RecordingConfig recording = {};  // of steps that only decode
  // Whether a step that only decodes begins before the tokens of the one before have come to the host. Nothing: on
  // an asynchronous device.
  std::optional<bool> overlap = std::nullopt;
};

// Throws invalid_argument naming the field, unsupported for speculative_steps without a draft head or with a model that
// is not row_invariant.
void validate(const EngineConfig& config, const model::ModelInfo& info);

// With what was left open filled in from the model, whose weights are on the device already, and the device, whose
// memory is as it is now. mem_fraction_static has become cache_tokens. Throws as validate(), and invalid_argument when
// the share of the memory has no room for a block.
EngineConfig completed(EngineConfig config, const model::ModelInfo& info, const model::CacheShape& shape,
                       DeviceId device, DeviceMemory memory);

// What an engine of this configuration will reserve, for a model that is not loaded yet. Of a share of the memory,
// whose rest is known when the weights are there, one block.
model::CachePlan cache_plan(const EngineConfig& config, DeviceId device);

// Of a completed one; `recurrent`: the model has layers with states.
model::RunnerConfig runner_config(const EngineConfig& config, bool recurrent);
SchedulerConfig scheduler_config(const EngineConfig& config, bool recurrent);

}  // namespace sluice::engine
