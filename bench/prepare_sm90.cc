// SPDX-License-Identifier: Apache-2.0
// Weights on their way to a GPU: random ones made there, BF16 quantised there, copies from host memory and from a file
// in the page cache. Bytes written per second, in the fastest of some runs.
//
//   prepare_sm90 [FILE]     FILE: any large file, read twice; its second reading counts
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "device/cuda.h"
#include "io/mmap.h"
#include "ops/device_stage.h"

namespace {

using namespace sluice;
using weights::DeviceStage;

double best_seconds(Queue& queue, int runs, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i <= runs; ++i) {
    queue.wait();
    const auto start = std::chrono::steady_clock::now();
    work();
    queue.wait();
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i > 0) best = std::min(best, s);
  }
  return best;
}

void print(const char* what, double bytes, double seconds) {
  std::printf("%-36s %10.2f ms %9.1f GB/s\n", what, seconds * 1e3, bytes / seconds / 1e9);
  std::fflush(stdout);
}

void upload(const char* what, Queue& queue, DeviceStage& stage, const std::byte* from, int64_t bytes) {
  const Tensor to = stage.make(DType::u8, {bytes});
  const DeviceStage::Copy copy{const_cast<void*>(to.address()), from, bytes};
  print(what, static_cast<double>(bytes), best_seconds(queue, 3, [&] { stage.upload({&copy, 1}); }));
}

int run(int argc, char** argv) {
  if (const Support usable = cuda_device_supported(0); !usable) {
    std::printf("skipped: %s\n", usable.reason.c_str());
    return 0;
  }
  const auto device = make_cuda_device(0);
  const auto queue = device->make_queue();
  ThreadPool pool(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u)));
  Context ctx{.pool = pool, .queue = *queue};
  const auto stage = ops::make_device_stage(ctx);

  // Gate or up of a layer of Qwen3-30B-A3B.
  weights::QuantTensor w;
  w.experts = 128, w.rows = 768, w.cols = 2048;
  w.codes = stage->make(DType::bf16, {w.experts, w.rows, w.cols});
  const auto bytes = static_cast<double>(w.codes.bytes());
  const weights::DummyRange range = weights::dummy_range("x.weight", {w.rows, w.cols});
  print("random bf16", bytes, best_seconds(*queue, 5, [&] { stage->fill_dummy(w.codes, range, 0, w.rows * w.cols); }));
  for (const auto& f : format::kFormats) {
    if (f.value == format::Format::bf16) continue;
    const std::string what = "bf16 to " + std::string(f.name) + " (bytes read)";
    print(what.c_str(), bytes, best_seconds(*queue, 5, [&] { stage->quantize(f.value, w); }));
  }
  const weights::QuantTensor fp8 = stage->quantize(format::Format::fp8_channel, w);
  print("search for NaN codes", static_cast<double>(fp8.codes.bytes()),
        best_seconds(*queue, 5, [&] { stage->has_nan(fp8.codes); }));

  const int64_t size = int64_t{4} << 30;
  Tensor host(DType::u8, {size});
  pool.parallel_for(size >> 20, [&](int64_t i, int) { std::memset(host.as<uint8_t>() + (i << 20), 1, 1 << 20); });
  upload("upload of host memory", *queue, *stage, host.as<std::byte>(), size);
  if (argc > 1) {
    const io::MappedFile file(argv[1]);
    upload("upload of a file", *queue, *stage, file.data(), std::min(file.size(), size));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "prepare_sm90: %s\n", e.what());
    return 1;
  }
}
