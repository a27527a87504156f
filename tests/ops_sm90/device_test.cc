// SPDX-License-Identifier: Apache-2.0
// The GPU as a device: copies, events, recorded work, errors.
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {
namespace {

TEST(CudaDevice, RefusesWhatIsNotThere) {
  try {
    make_cuda_device(9999);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
  }
  EXPECT_THROW(make_cuda_device(-1), Error);
  int on_the_host = 0;
  EXPECT_TRUE(!device_of(&on_the_host) || device_of(&on_the_host)->is_host());
}

TEST(CudaDevice, CopiesAndClears) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  std::vector<int32_t> values(1000);
  for (int32_t& v : values) v = static_cast<int32_t>(random()());
  const auto memory = gpu.upload(values);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % Device::kAlignment, 0u);
  EXPECT_EQ(gpu.download(memory, 1000), values);
  const auto staging = gpu.device->allocate_staging(4000);
  gpu.queue->copy(staging.get(), memory.get(), 4000);
  gpu.queue->wait();
  EXPECT_EQ(std::vector<int32_t>(static_cast<int32_t*>(staging.get()), static_cast<int32_t*>(staging.get()) + 1000),
            values);
  gpu.queue->zero(memory.get(), 400);
  std::fill_n(values.begin(), 100, 0);
  EXPECT_EQ(gpu.download(memory, 1000), values);
  EXPECT_EQ(device_of(memory.get()), gpu.device->id());
  EXPECT_EQ(device_of(staging.get()), DeviceId{});
}

TEST(CudaDevice, SaysHowMuchIsFree) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  try {
    gpu.device->allocate(int64_t{1} << 50);
    FAIL() << "allocated";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string_view(e.what()).find("cuda:0"), std::string_view::npos) << e.what();
  }
  EXPECT_NE(gpu.device->allocate(0), nullptr);
}

TEST(CudaDevice, QueuesWaitForEachOthersEvents) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  const auto other = gpu.device->make_queue();
  constexpr int64_t kBytes = 256 << 20;
  const auto a = gpu.device->allocate(kBytes), b = gpu.device->allocate(kBytes);
  std::vector<uint8_t> last(16, 1);
  gpu.queue->zero(a.get(), kBytes);
  gpu.queue->zero(b.get(), kBytes);
  gpu.queue->wait();
  const std::vector<uint8_t> ones(static_cast<size_t>(kBytes), 1);
  gpu.queue->copy(a.get(), ones.data(), kBytes);
  const auto copied = gpu.queue->record();
  other->wait_for(*copied);
  other->copy(b.get(), a.get(), kBytes);
  other->copy(last.data(), static_cast<uint8_t*>(b.get()) + kBytes - 16, 16);
  other->wait();
  EXPECT_EQ(last, std::vector<uint8_t>(16, 1));
}

TEST(CudaDevice, RecordedWorkReadsTheNewestData) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto run_ops = ops::make_ops(gpu.ctx);
  constexpr int64_t kRows = 5, kCols = 1024;
  const auto random_rows = [&] {
    std::vector<bf16_t> v(kRows * kCols);
    for (bf16_t& x : v) x = float_to_bf16(normal());
    return v;
  };
  const auto x = gpu.upload(random_rows()), y = gpu.upload(random_rows());
  const ops::Matrix mx{x.get(), DType::bf16, kRows, kCols, kCols}, my{y.get(), DType::bf16, kRows, kCols, kCols};
  const auto step = [&] {
    run_ops->add(mx, my);
    run_ops->silu_multiply(mx, my);
  };
  const auto graph = gpu.queue->capture(step);
  ASSERT_NE(graph, nullptr);
  for (int round = 0; round < 3; ++round) {
    const auto new_x = random_rows(), new_y = random_rows();
    const auto run = [&](auto&& enqueue) {
      gpu.queue->copy(x.get(), new_x.data(), kRows * kCols * 2);
      gpu.queue->copy(y.get(), new_y.data(), kRows * kCols * 2);
      enqueue();
      return gpu.download(x, kRows * kCols);
    };
    const auto recorded = run([&] { graph->launch(); });
    EXPECT_NE(recorded, new_x);
    EXPECT_EQ(recorded, run(step));
  }
}

TEST(CudaDevice, RecordingIsLeftCleanAfterAnError) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  EXPECT_THROW(gpu.queue->capture([&] { gpu.device->allocate(1000); }), Error);
  EXPECT_THROW(gpu.queue->capture([] { throw std::runtime_error("stop"); }), std::runtime_error);
  const std::vector<int32_t> values{1, 2, 3};
  EXPECT_EQ(gpu.download(gpu.upload(values), 3), values);
  EXPECT_NE(gpu.queue->capture([] {}), nullptr);
}

}  // namespace
}  // namespace sluice::test
