// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"

namespace sluice::engine {

namespace {
constexpr int64_t kDefaultCacheTokens = 65536;
}  // namespace

EngineConfig completed(EngineConfig c, const model::ModelInfo& info, DeviceId device) {
  check(c.context_length >= 0 && c.context_length <= info.max_positions,
        "context_length is {}; accepted: 1 to {} (max_position_embeddings), or 0 for all", c.context_length,
        info.max_positions);
  check(c.max_running >= 1 && c.max_running <= 4096, "max_running is {}; accepted: 1 to 4096", c.max_running);
  check(c.max_queued >= 1, "max_queued is {}; accepted: 1 or more", c.max_queued);
  check(c.prefill_chunk >= 0 && c.prefill_chunk <= 1 << 20,
        "prefill_chunk is {}; accepted: 1 to 1048576, or 0 for the device's default", c.prefill_chunk);
  check(c.block_size >= 1 && c.block_size <= 4096, "block_size is {}; accepted: 1 to 4096", c.block_size);
  check(c.cache_tokens >= 0 && c.cache_tokens / c.block_size < INT32_MAX / 2,
        "cache_tokens is {}; accepted: 0 or more, fewer than 2^30 blocks", c.cache_tokens);
  check(c.state_snapshots >= 0 && c.state_snapshots <= 65536, "state_snapshots is {}; accepted: 0 to 65536",
        c.state_snapshots);
  check(c.speculative_steps >= 0 && c.speculative_steps <= 64, "speculative_steps is {}; accepted: 0 to 64",
        c.speculative_steps);
  if (c.speculative_steps > 0 && !info.has_draft)
    fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info.architecture);
  if (c.speculative_steps > 0 && !info.row_invariant)
    fail(ErrorCode::unsupported,
         "speculative_steps is {}, but this model's experts add in an order that depends on the batch, so drafts would "
         "change the text; accepted: 0, or the model loaded with deterministic",
         c.speculative_steps);
  if (c.prefill_chunk == 0) c.prefill_chunk = ops::traits_of(device).prompt_rows;
  if (c.context_length == 0) c.context_length = info.max_positions;
  if (c.cache_tokens == 0)
    c.cache_tokens = std::min(c.max_running * c.context_length, std::max(kDefaultCacheTokens, c.context_length));
  c.cache_tokens = round_up(c.cache_tokens, c.block_size);
  c.context_length = std::min(c.context_length, c.cache_tokens);
  return c;
}

model::RunnerConfig runner_config(const EngineConfig& c, bool recurrent) {
  model::RunnerConfig out;
  out.cache.blocks = c.cache_tokens / c.block_size;
  out.cache.block_size = c.block_size;
  out.cache.slots = static_cast<int>(c.max_running + (recurrent && c.prefix_cache ? c.state_snapshots : 0));
  out.cache.draft_rows = c.speculative_steps > 0 ? c.speculative_steps + 1 : 0;
  out.rows = c.prefill_chunk + c.max_running * (1 + c.speculative_steps);
  out.sequences = c.max_running;
  out.sequence_tokens = c.context_length;
  out.drafts = c.speculative_steps;
  out.recording = c.recording;
  return out;
}

SchedulerConfig scheduler_config(const EngineConfig& c, bool recurrent) {
  SchedulerConfig out;
  out.max_running = c.max_running;
  out.prefill_budget = c.prefill_chunk;
  out.blocks = static_cast<int32_t>(c.cache_tokens / c.block_size);
  out.block_size = c.block_size;
  out.prefix_cache = c.prefix_cache;
  out.recurrent = recurrent;
  out.snapshots = c.prefix_cache ? c.state_snapshots : 0;
  out.drafts = c.speculative_steps;
  return out;
}

}  // namespace sluice::engine
