// SPDX-License-Identifier: Apache-2.0
// The size that weights are expected to take, against what loading them took; and the sentence when that is too much.
#include "model/memory_fit.h"

#include "base/error.h"
#include "tests/model/fixture.h"
#include "weights/loaded_size.h"

namespace sluice::model {
namespace {

const std::string kFolder = SLUICE_SOURCE_DIR "/models/tiny-nemotron-h";

TEST(MemoryFit, TheExpectedSizeIsThatOfTheLoadedWeights) {
  const io::Checkpoint checkpoint = io::Checkpoint::open(kFolder);
  for (const std::string_view name : weights::online_formats()) {
    SCOPED_TRACE(name);
    if (name == "nvfp4") continue;  // needs a calibration; its size is nvfp4_online's
    const weights::OnlinePolicy policy = weights::parse_online_policy(name);
    const auto expected = static_cast<double>(weights::loaded_bytes(checkpoint, &policy));
    const auto loaded = static_cast<double>(load(kFolder, DType::bf16, std::string(name))->info().weight_bytes);
    EXPECT_GT(loaded, 0.97 * expected);
    // This model's widths (192 and less) are padded to tiles of 32 and 128.
    EXPECT_LT(loaded, 1.35 * expected);
  }
  EXPECT_EQ(weights::loaded_bytes(checkpoint, nullptr), checkpoint.bytes());
}

std::string refusal(const LoadOptions& options, DeviceId device, DeviceMemory memory) {
  try {
    check_fits(io::Checkpoint::open(kFolder), options, device, memory);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    return e.what();
  }
  return "";
}

TEST(MemoryFit, WhatDoesNotFitIsRefusedWithWhatWould) {
  const io::Checkpoint checkpoint = io::Checkpoint::open(kFolder);
  const int64_t bytes = checkpoint.bytes();
  LoadOptions o;
  o.path = kFolder;
  const DeviceId gpu{DeviceId::Kind::cuda, 1};
  EXPECT_EQ(refusal(o, {}, {bytes, 0}), "");  // the system makes room
  EXPECT_EQ(refusal(o, gpu, {2 * bytes, bytes}), "");
  const std::string host = refusal(o, {}, {bytes - 1, bytes - 1});
  EXPECT_NE(host.find("cpu has "), std::string::npos) << host;
  EXPECT_NE(host.find("accepted: quantization fp8 ("), std::string::npos) << host;
  EXPECT_EQ(host.find("bf16 ("), std::string::npos) << host;
  const std::string device = refusal(o, gpu, {2 * bytes, bytes * 6 / 10});
  EXPECT_NE(device.find("cuda:1 has "), std::string::npos) << device;
  EXPECT_NE(device.find(" free"), std::string::npos) << device;
  EXPECT_NE(refusal(o, gpu, {100, 100}).find("no quantization makes them fit"), std::string::npos);
  o.quantization = "mxfp8";
  const weights::OnlinePolicy policy = weights::parse_online_policy(o.quantization);
  const int64_t quantized = weights::loaded_bytes(checkpoint, &policy);
  EXPECT_LT(quantized, bytes);
  EXPECT_EQ(refusal(o, {}, {quantized, 0}), "");
  EXPECT_NE(refusal(o, {}, {quantized - 1, 0}), "");
}

TEST(MemoryFit, TheCacheIsKnownBeforeTheModel) {
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"}) {
    Context ctx = test_context();
    LoadOptions o;
    o.path = std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name;
    CacheShape planned;
    int64_t positions = 0;
    const auto model = load_model(ctx, o, [&](const CacheShape& shape, int64_t max_positions) {
      planned = shape;
      positions = max_positions;
      return CacheConfig{.blocks = 1};
    });
    EXPECT_EQ(planned, model->cache_shape()) << name;
    EXPECT_EQ(positions, model->info().max_positions) << name;
  }
}

TEST(MemoryFit, ACacheThatDoesNotFitIsRefusedWithWhatWould) {
  CacheShape shape;
  shape.attention.assign(10, {4, 128, 128});  // 20,480 bytes of a token
  CacheConfig cache{.blocks = 1000, .block_size = 64};
  const DeviceId gpu{DeviceId::Kind::cuda, 0};
  constexpr int64_t kWeights = 30'000'000'000, kTotal = 40'000'000'000;
  const int64_t bytes = 64'000 * shape.bytes_per_token();
  const auto refusal = [&](int64_t free) -> std::string {
    try {
      check_cache_fits(kWeights, shape, cache, gpu, {kTotal, free});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(kWeights + bytes), "");
  const std::string less = refusal(kWeights + bytes - 1);
  EXPECT_NE(less.find("1.3 GB for 64000 tokens beside 30.0 GB of weights, and cuda:0 has 31.3 GB of 40.0 GB free"),
            std::string::npos)
      << less;
  EXPECT_NE(less.find("; accepted: a cache of at most 63936 tokens"), std::string::npos) << less;
  EXPECT_NE(refusal(kWeights + 1000).find("leaves no room for keys and values"), std::string::npos);
  shape.mamba.push_back({64, 64, 8, 128, 4});
  cache.slots = 8;
  EXPECT_NE(refusal(kWeights + bytes).find("tokens and 8 states"), std::string::npos) << refusal(kWeights + bytes);
  EXPECT_EQ(refusal(kWeights + bytes + 8 * shape.bytes_per_slot(1)), "");
}

TEST(MemoryFit, IsLookedAtBeforeAnyWeight) {
  Context ctx = test_context();
  bool loading = false;
  ctx.progress = [&](const Progress&) { loading = true; };
  LoadOptions o;
  o.path = kFolder;
  try {
    load_model(ctx, o, [](const CacheShape&, int64_t) { return CacheConfig{.blocks = int64_t{1} << 40}; });
    FAIL() << "loaded";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory) << e.what();
  }
  EXPECT_FALSE(loading);
}

TEST(MemoryFit, TheHostSaysWhatItHas) {
  const DeviceMemory memory = host_device().memory();
  EXPECT_GT(memory.total, int64_t{1} << 26);
  EXPECT_LT(memory.total, int64_t{1} << 50);
  EXPECT_GT(memory.free, 0);
  EXPECT_LE(memory.free, memory.total);
}

}  // namespace
}  // namespace sluice::model
