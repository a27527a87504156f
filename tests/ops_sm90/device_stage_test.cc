// SPDX-License-Identifier: Apache-2.0
// Weights made on the GPU: the bits of those made on the host, in every format, at sizes that no tile divides.
#include "ops/device_stage.h"

#include <algorithm>
#include <cstring>

#include "ops/linear.h"
#include "tests/ops_sm90/gpu.h"
#include "weights/requantize.h"

namespace sluice::test {
namespace {

using weights::QuantTensor;

Tensor to_host(const Tensor& t, Queue& queue) {
  if (t.empty() || t.device().is_host()) return t;
  Tensor host = t.to(DeviceId{}, queue);
  queue.wait();
  return host;
}

void expect_same(const Tensor& got, const Tensor& expected, Queue& queue, const char* what) {
  ASSERT_EQ(got.empty(), expected.empty()) << what;
  if (expected.empty()) return;
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  ASSERT_EQ(got.dtype(), expected.dtype()) << what;
  const Tensor host = to_host(got, queue);
  if (expected.dtype() == DType::f32) {  // a NaN has other bits on a GPU
    for (int64_t i = 0; i < expected.elements(); ++i)
      ASSERT_TRUE(host.as<float>()[i] == expected.as<float>()[i] ||
                  (std::isnan(host.as<float>()[i]) && std::isnan(expected.as<float>()[i])))
          << what << " " << i << ": " << host.as<float>()[i] << " against " << expected.as<float>()[i];
    return;
  }
  const auto *a = static_cast<const uint8_t*>(host.data()), *b = static_cast<const uint8_t*>(expected.data());
  // The sign of a NaN says nothing, and a GPU loses it.
  const bool e4m3 = expected.dtype() == DType::e4m3;
  for (int64_t i = 0; i < expected.bytes(); ++i) {
    if (!e4m3 || (a[i] & 0x7f) != 0x7f || (b[i] & 0x7f) != 0x7f) {
      ASSERT_EQ(int{a[i]}, int{b[i]}) << what << ", byte " << i << " of " << expected.bytes();
    }
  }
}

TEST(DeviceStage, FillsTheHostsDummies) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto stage = ops::make_device_stage(gpu.ctx);
  for (const Shape& shape : {Shape{1, 3, 7}, Shape{1, 70, 64}, Shape{3, 129, 136}, Shape{2, 0, 8}}) {
    const Tensor expected = weights::dummy_tensor(test_pool(), "a.weight", DType::bf16, shape);
    Tensor got = stage->make(DType::bf16, shape);
    stage->fill_dummy(got, weights::dummy_range("a.weight", shape), 0, shape[1] * shape[2]);
    expect_same(got, expected, *gpu.queue, "whole");
  }
  // Gate and up: the halves of each matrix of one tensor.
  const Tensor both = weights::dummy_tensor(test_pool(), "x.gate_up_proj", DType::bf16, {3, 10, 24});
  for (const int half : {0, 1}) {
    Tensor got = stage->make(DType::bf16, {3, 5, 24}), expected(DType::bf16, {3, 5, 24});
    for (int e = 0; e < 3; ++e)
      std::memcpy(expected.as<uint16_t>() + e * 120, both.as<uint16_t>() + e * 240 + half * 120, 240);
    stage->fill_dummy(got, weights::dummy_range("x.gate_up_proj", both.shape()), half * 120, 240);
    expect_same(got, expected, *gpu.queue, "half");
  }
}

// Values of all magnitudes; with `special` also NaN, infinities, subnormals.
Tensor random_stack(const Shape& shape, bool special) {
  Tensor t(DType::bf16, shape);
  for (int64_t i = 0; i < t.elements(); ++i) {
    float v = normal() * std::exp2(static_cast<float>(random()() % 12) - 6.0f);
    if (random()() % 50 == 0) v = 0;
    t.as<uint16_t>()[i] = float_to_bf16(v);
    if (special && random()() % 300 == 0) t.as<uint16_t>()[i] = static_cast<uint16_t>(random()());
    if (special && random()() % 2000 == 0) t.as<uint16_t>()[i] = random()() % 2 ? 0x7f80 : 0xffc1;
  }
  return t;
}

TEST(DeviceStage, QuantisesAsTheHostDoes) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto stage = ops::make_device_stage(gpu.ctx);
  for (const Shape& shape : {Shape{1, 1, 2}, Shape{3, 130, 258}, Shape{2, 256, 384}, Shape{5, 33, 48}})
    for (const bool special : {false, true}) {
      QuantTensor w{format::Format::bf16, shape[0], shape[1], shape[2], random_stack(shape, special), {}, {}};
      QuantTensor there = w;
      there.codes = w.codes.to(gpu.device->id(), *gpu.queue);
      gpu.queue->wait();
      for (const auto& named : format::kFormats) {
        SCOPED_TRACE(fmt::format("{} {}{}", named.name, to_string(shape), special ? " special" : ""));
        const QuantTensor expected = weights::quantize(gpu.ctx, named.value, w);
        const QuantTensor got = stage->quantize(named.value, there);
        EXPECT_EQ(got.format, expected.format);
        expect_same(got.codes, expected.codes, *gpu.queue, "codes");
        expect_same(got.scales, expected.scales, *gpu.queue, "scales");
        expect_same(got.global, expected.global, *gpu.queue, "global");
      }
    }
}

// Copies of every size, in no order, across the ends of staging buffers; again into memory that a kernel just used.
TEST(DeviceStage, UploadsWhatLiesAnywhere) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto stage = ops::make_device_stage(gpu.ctx);
  const int64_t bytes = (int64_t{40} << 20) + 12345;  // more than two threads' buffers
  Tensor host(DType::u8, {bytes}), there = stage->make(DType::u8, {bytes});
  host.zero();
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i + 8 <= bytes; i += 8) {
      const uint64_t word = random()();
      std::memcpy(host.as<uint8_t>() + i, &word, 8);
    }
    gpu.queue->zero(there.address(), bytes);
    std::vector<weights::DeviceStage::Copy> copies;
    for (int64_t at = 0; at < bytes;) {
      const int64_t size =
          std::min<int64_t>(bytes - at, random()() % 8 == 0 ? 1 + static_cast<int64_t>(random()() % (int64_t{20} << 20))
                                                            : static_cast<int64_t>(random()() % 5000));
      copies.push_back({static_cast<std::byte*>(there.address()) + at, host.as<uint8_t>() + at, size});
      at += size;
    }
    std::shuffle(copies.begin(), copies.end(), random());
    stage->upload(copies);
    expect_same(there, host, *gpu.queue, "uploaded");
  }
  stage->upload({});
}

TEST(DeviceStage, FindsNanCodes) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto stage = ops::make_device_stage(gpu.ctx);
  for (const int64_t count : {1, 15, 16, 33, 5000, 3000017}) {
    Tensor host(DType::e4m3, {count});
    for (int64_t i = 0; i < count; ++i) {
      const auto code = static_cast<uint8_t>(random()());
      host.as<uint8_t>()[i] = (code & 0x7f) == 0x7f ? 0x7e : code;
    }
    const auto found = [&] {
      const Tensor there = host.to(gpu.device->id(), *gpu.queue);
      return stage->has_nan(there);
    };
    EXPECT_FALSE(found()) << count;
    for (const uint8_t code : {0x7f, 0xff}) {
      const auto at = static_cast<int64_t>(random()() % static_cast<uint64_t>(count));
      const uint8_t before = host.as<uint8_t>()[at];
      host.as<uint8_t>()[at] = code;
      EXPECT_TRUE(found()) << count << ", at " << at;
      host.as<uint8_t>()[at] = before;
    }
  }
}

// Linear layers of matrices on the device: one product of several, whatever their scales, the same bits as of matrices
// on the host.
TEST(DeviceStage, LinearsTakeItsMatrices) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto stage = ops::make_device_stage(gpu.ctx);
  const int64_t cols = 256, tokens = 5;
  std::vector<uint16_t> x;
  for (int64_t i = 0; i < tokens * cols; ++i) x.push_back(float_to_bf16(normal()));
  const auto in = gpu.upload(x);
  struct Case {
    format::Format weights;
    format::InputFormat inputs;
  };
  using format::Format;
  using format::InputFormat;
  for (const Case& c :
       {Case{Format::bf16, InputFormat::plain}, Case{Format::fp8_tensor, InputFormat::fp8_token},
        Case{Format::fp8_channel, InputFormat::fp8_token}, Case{Format::fp8_block, InputFormat::fp8_group},
        Case{Format::mxfp8, InputFormat::mxfp8}, Case{Format::nvfp4, InputFormat::nvfp4_token}}) {
    SCOPED_TRACE(format::info(c.weights).name);
    std::vector<QuantTensor> host, device;
    int64_t rows = 0;
    for (const int64_t n : {256, 128, 128}) {
      QuantTensor w{Format::bf16, 1, n, cols, random_stack({1, n, cols}, false), {}, {}};
      QuantTensor there = w;
      there.codes = w.codes.to(gpu.device->id(), *gpu.queue);
      gpu.queue->wait();
      host.push_back(weights::quantize(gpu.ctx, c.weights, w));
      device.push_back(stage->quantize(c.weights, there));
      rows += n;
    }
    std::vector<std::vector<uint16_t>> results;
    for (const auto& parts : {host, device}) {
      ops::LinearOptions o;
      o.inputs = c.inputs;
      const auto linear = ops::make_linear(gpu.ctx, parts, {}, o);
      const auto out = gpu.upload(std::vector<uint16_t>(static_cast<size_t>(tokens * rows), 0xffff));
      const int64_t bytes = linear->workspace_bytes(tokens);
      const auto workspace = gpu.device->allocate(bytes);
      const ops::ConstMatrix rows_in{in.get(), DType::bf16, tokens, cols, cols};
      linear->run(gpu.ctx, rows_in, {out.get(), DType::bf16, tokens, rows, rows}, workspace.get(), bytes);
      results.push_back(gpu.download(out, static_cast<size_t>(tokens * rows)));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

}  // namespace
}  // namespace sluice::test
