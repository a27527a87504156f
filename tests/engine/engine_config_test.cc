// SPDX-License-Identifier: Apache-2.0
// What an engine's configuration becomes with a model and a device: sizes of the cache from a share of the memory.
#include "engine/engine_config.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace sluice::engine {
namespace {

constexpr DeviceId kGpu{DeviceId::Kind::cuda, 0};
constexpr int64_t kGB = 1'000'000'000;
constexpr int64_t kChunk = 512;  // given, as a build without CUDA does not know the GPU's default

model::ModelInfo info_of(int64_t weights, int64_t positions = 100'000) {
  model::ModelInfo info;
  info.max_positions = positions;
  info.weight_bytes = weights;
  return info;
}

model::CacheShape attention_shape() {
  model::CacheShape shape;
  shape.attention.assign(10, {4, 128, 128});  // bf16: 10 layers, 4 heads, keys and values of 128: 20,480 bytes
  return shape;
}

std::string refusal(const EngineConfig& config, const model::ModelInfo& info, DeviceMemory memory) {
  try {
    completed(config, info, attention_shape(), kGpu, memory);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

TEST(EngineConfig, AShareOfTheMemoryIsWhatWeightsLeaveOfIt) {
  const EngineConfig config{.max_running = 1000, .prefill_chunk = kChunk, .mem_fraction_static = 0.75};
  // 0.75 * 80 GB - 30 GB = 30 GB: 1,464,843 tokens of 20,480 bytes, in 22,888 whole blocks of 64.
  const EngineConfig c = completed(config, info_of(30 * kGB), attention_shape(), kGpu, {80 * kGB, 50 * kGB});
  EXPECT_EQ(c.cache_tokens, 22'888 * 64);
  EXPECT_EQ(c.mem_fraction_static, std::nullopt);
  EXPECT_EQ(c.context_length, 100'000);
  // Others hold 40 GB of the GPU: 10 GB are free beside the weights.
  EXPECT_EQ(completed(config, info_of(30 * kGB), attention_shape(), kGpu, {80 * kGB, 10 * kGB}).cache_tokens,
            10 * kGB / 20'480 / 64 * 64);
  // What is free of the host says little: files in memory are not, but make room.
  EXPECT_EQ(completed(config, info_of(30 * kGB), attention_shape(), {}, {80 * kGB, kGB}).cache_tokens, 22'888 * 64);
}

TEST(EngineConfig, StatesOfRecurrentLayersCount) {
  model::CacheShape shape = attention_shape();
  shape.mamba.push_back({64, 64, 8, 128, 4});
  EngineConfig config{.max_running = 1000, .prefill_chunk = kChunk, .mem_fraction_static = 0.75};
  const auto tokens = [&] {
    return completed(config, info_of(30 * kGB), shape, kGpu, {80 * kGB, 50 * kGB}).cache_tokens;
  };
  const int64_t state = shape.bytes_per_slot(1);
  EXPECT_EQ(tokens(), (30 * kGB - 1016 * state) / 20'480 / 64 * 64);
  config.prefix_cache = false;  // no snapshots
  EXPECT_EQ(tokens(), (30 * kGB - 1000 * state) / 20'480 / 64 * 64);
}

TEST(EngineConfig, NoMoreTokensThanCanBeUsed) {
  EngineConfig config{.max_running = 4, .prefill_chunk = kChunk, .mem_fraction_static = 1.0};
  const auto tokens = [&] {
    return completed(config, info_of(kGB), attention_shape(), kGpu, {80 * kGB, 79 * kGB}).cache_tokens;
  };
  EXPECT_EQ(tokens(), 400'000);
  config.context_length = 640;
  EXPECT_EQ(tokens(), 4 * 640);
}

TEST(EngineConfig, RefusesSharesWithTheirNumbers) {
  const DeviceMemory memory{80 * kGB, 50 * kGB};
  EXPECT_EQ(
      refusal({.mem_fraction_static = 0.25}, info_of(30 * kGB), memory),
      "mem_fraction_static is 0.25; of 80.00 GB of cuda:0 that leaves no room for keys and values beside 30.00 GB of "
      "weights");
  for (const double fraction : {0.0, -0.5, 1.01, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE(
        refusal({.mem_fraction_static = fraction}, info_of(kGB), memory).find("; accepted: more than 0, at most 1"),
        std::string::npos)
        << fraction;
  EXPECT_EQ(refusal({.cache_tokens = 4096, .mem_fraction_static = 0.5}, info_of(kGB), memory),
            "mem_fraction_static is 0.5 beside 4096 tokens of keys and values; accepted: one of them");
}

TEST(EngineConfig, WholePromptsInAStep) {
  const auto chunk = [](EngineConfig config, int64_t positions) {
    return completed(config, info_of(0, positions), attention_shape(), kGpu, {}).prefill_chunk;
  };
  EXPECT_EQ(chunk({.prefill_chunk = -1}, 5000), 5000);
  EXPECT_EQ(chunk({.context_length = 300, .prefill_chunk = -1}, 5000), 300);
  EXPECT_EQ(chunk({.prefill_chunk = -1, .cache_tokens = 640}, 5000), 640);
  EXPECT_EQ(chunk({.prefill_chunk = -1, .cache_tokens = 1 << 22}, 1 << 22), 1 << 20);
}

TEST(EngineConfig, ThePlanOfACacheIsWhatTheEngineReserves) {
  model::CacheShape shape = attention_shape();
  shape.mamba.push_back({64, 64, 8, 128, 4});
  const EngineConfig config{.max_running = 8, .prefill_chunk = kChunk, .cache_tokens = 1000, .block_size = 32};
  const model::CacheConfig plan = cache_plan(config, kGpu)(shape, 100'000);
  const model::CacheConfig reserved =
      runner_config(completed(config, info_of(kGB), shape, kGpu, {80 * kGB, 50 * kGB}), true).cache;
  EXPECT_EQ(plan.blocks, reserved.blocks);
  EXPECT_EQ(plan.block_size, reserved.block_size);
  EXPECT_EQ(plan.slots, reserved.slots);
  // What a share leaves is known when the weights are there.
  EXPECT_EQ(cache_plan({.prefill_chunk = kChunk, .mem_fraction_static = 0.5}, kGpu)(shape, 100'000).blocks, 1);
  EXPECT_THROW(cache_plan({.mem_fraction_static = 2.0}, kGpu)(shape, 100'000), Error);
  EXPECT_THROW(cache_plan({.cache_tokens = 64, .mem_fraction_static = 0.5}, kGpu)(shape, 100'000), Error);
}

}  // namespace
}  // namespace sluice::engine
