// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_config.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace sluice::engine {

namespace {
constexpr int64_t kDefaultCacheTokens = 65536;
constexpr int64_t kMostPrefillRows = 1 << 20;

// SGLang's way to size the cache. `c` has a context length.
int64_t tokens_of_share(double fraction, const EngineConfig& c, const model::ModelInfo& info,
                        const model::CacheShape& shape, DeviceId device, DeviceMemory memory) {
  const model::CacheConfig cache = runner_config(c, shape.recurrent()).cache;
  const auto weights = static_cast<double>(info.weight_bytes), total = static_cast<double>(memory.total);
  const auto states = static_cast<double>(cache.slots * shape.bytes_per_slot(cache.versions()));
  double share = total * fraction;
  // Of a GPU, others may hold more than the rest. The weights are not among the free memory any more.
  if (device.reserves_memory()) share = std::min(share, static_cast<double>(memory.free) + weights);
  const int64_t useful = c.max_running * c.context_length, token = shape.bytes_per_token();
  if (token == 0) return useful;
  const double blocks = (share - weights - states) / static_cast<double>(token * c.block_size);
  check(blocks >= 1,
        "mem_fraction_static is {}; of {:.2f} GB of {} that leaves no room for keys and values beside {:.2f} GB of "
        "weights{}",
        fraction, total / 1e9, to_string(device), weights / 1e9,
        states > 0 ? fmt::format(" and {:.2f} GB of states", states / 1e9) : "");
  return std::min(useful, static_cast<int64_t>(blocks) * c.block_size);
}
}  // namespace

void validate(const EngineConfig& c, const model::ModelInfo& info) {
  check(c.context_length >= 0 && c.context_length <= info.max_positions,
        "context_length is {}; accepted: 1 to {} (max_position_embeddings), or 0 for all", c.context_length,
        info.max_positions);
  check(c.max_running >= 1 && c.max_running <= 4096, "max_running is {}; accepted: 1 to 4096", c.max_running);
  check(c.max_queued >= 1, "max_queued is {}; accepted: 1 or more", c.max_queued);
  check(c.prefill_chunk >= -1 && c.prefill_chunk <= kMostPrefillRows,
        "prefill_chunk is {}; accepted: 1 to {}, 0 for the device's default, or -1 for whole prompts", c.prefill_chunk,
        kMostPrefillRows);
  check(c.block_size >= 1 && c.block_size <= 4096, "block_size is {}; accepted: 1 to 4096", c.block_size);
  check(c.cache_tokens >= 0 && c.cache_tokens / c.block_size < INT32_MAX / 2,
        "cache_tokens is {}; accepted: 0 or more, fewer than 2^30 blocks", c.cache_tokens);
  if (c.mem_fraction_static) {
    check(*c.mem_fraction_static > 0 && *c.mem_fraction_static <= 1,
          "mem_fraction_static is {}; accepted: more than 0, at most 1", *c.mem_fraction_static);
    check(c.cache_tokens == 0, "mem_fraction_static is {} beside {} tokens of keys and values; accepted: one of them",
          *c.mem_fraction_static, c.cache_tokens);
  }
  check(c.state_snapshots >= 0 && c.state_snapshots <= 65536, "state_snapshots is {}; accepted: 0 to 65536",
        c.state_snapshots);
  check(c.recording.max_sequences >= 1 && c.recording.max_sequences <= 4096,
        "recording.max_sequences is {}; accepted: 1 to 4096", c.recording.max_sequences);
  check(c.speculative_steps >= 0 && c.speculative_steps <= 64, "speculative_steps is {}; accepted: 0 to 64",
        c.speculative_steps);
  if (c.speculative_steps > 0 && !info.has_draft)
    fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info.architecture);
  if (c.speculative_steps > 0 && !info.row_invariant)
    fail(ErrorCode::unsupported,
         "speculative_steps is {}, but this model's experts add in an order that depends on the batch, so drafts would "
         "change the text; accepted: 0, or the model loaded with deterministic",
         c.speculative_steps);
}

EngineConfig completed(EngineConfig c, const model::ModelInfo& info, const model::CacheShape& shape, DeviceId device,
                       DeviceMemory memory) {
  validate(c, info);
  if (c.context_length == 0) c.context_length = info.max_positions;
  if (const auto fraction = std::exchange(c.mem_fraction_static, std::nullopt))
    c.cache_tokens = tokens_of_share(*fraction, c, info, shape, device, memory);
  else if (c.cache_tokens == 0)
    c.cache_tokens = std::min(c.max_running * c.context_length, std::max(kDefaultCacheTokens, c.context_length));
  c.cache_tokens = round_up(c.cache_tokens, c.block_size);
  c.context_length = std::min(c.context_length, c.cache_tokens);
  if (c.prefill_chunk == 0) c.prefill_chunk = ops::traits_of(device).prompt_rows;
  if (c.prefill_chunk == -1) c.prefill_chunk = std::min(kMostPrefillRows, c.context_length);
  return c;
}

model::CachePlan cache_plan(const EngineConfig& config, DeviceId device) {
  return [config, device](const model::CacheShape& shape, int64_t max_positions) {
    EngineConfig c = config;
    model::ModelInfo info;
    info.max_positions = max_positions;
    info.has_draft = true;  // what a model cannot do is said when it is there
    validate(c, info);
    if (c.mem_fraction_static) c.cache_tokens = c.block_size;
    c.mem_fraction_static.reset();
    return runner_config(completed(c, info, shape, device, {}), shape.recurrent()).cache;
  };
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
