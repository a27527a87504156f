// SPDX-License-Identifier: Apache-2.0
// Every operation of a model on one GPU: microseconds per call (replays of a graph of many calls, median), the bytes or
// operations that it cannot avoid, and the ratio to the time these take.
//   ops_sm90 [part of an operation's name]
#include "ops_sm90.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "base/bf16.h"
#include "event_time.h"

namespace sluice::bench {

namespace {
constexpr double kDenseTflops = 780;  // BF16 products of 8192 x 8192 x 8192 on random data
}

Bench::Bench(std::string only) : only_(std::move(only)) {
  noise_ = device_->allocate(kNoise * 2);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<bf16_t> v(static_cast<size_t>(kNoise));
  for (bf16_t& x : v) x = float_to_bf16(normal(rng));
  queue_->copy(noise_.get(), v.data(), kNoise * 2);
  queue_->wait();
  copy_tbs_ = measure_copy();
  std::printf("copy rate %.2f TB/s, read and written\n", copy_tbs_);
  std::printf("%-44s %10s %12s %10s %7s\n", "operation", "us", "bytes", "floor us", "ratio");
}

std::shared_ptr<void> Bench::random(int64_t bytes, DType dtype) {
  auto memory = device_->allocate(bytes);
  if (dtype == DType::f32) {
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    std::vector<float> v(static_cast<size_t>(std::min<int64_t>(bytes / 4, 1 << 20)));
    for (float& x : v) x = normal(rng);
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(v.size()) * 4)
      queue_->copy(static_cast<char*>(memory.get()) + at, v.data(),
                   std::min<int64_t>(static_cast<int64_t>(v.size()) * 4, bytes - at));
  } else {
    for (int64_t at = 0; at < bytes; at += kNoise * 2)
      queue_->copy(static_cast<char*>(memory.get()) + at, noise_.get(), std::min(kNoise * 2, bytes - at));
  }
  queue_->wait();
  return memory;
}

std::shared_ptr<int32_t> Bench::ints(const std::vector<int32_t>& v) {
  auto memory = device_->allocate(static_cast<int64_t>(v.size()) * 4);
  queue_->copy(memory.get(), v.data(), static_cast<int64_t>(v.size()) * 4);
  queue_->wait();
  return {memory, static_cast<int32_t*>(memory.get())};
}

Tensor Bench::tensor(DType dtype, Shape shape) {
  const auto memory = random(elements_of(shape) * bytes_of(dtype), dtype);
  return {dtype, std::move(shape), memory.get(), memory, ctx_.device().id()};
}

void Bench::row(const std::string& name, double bytes, double flops, int calls, const std::function<void(int)>& call) {
  if (!wants(name)) return;
  try {
    for (int i = 0; i < std::min(calls, 3); ++i) call(i);  // memory grows, functions load
    queue_->wait();
    const auto graph = queue_->capture([&] {
      for (int i = 0; i < calls; ++i) call(i);
    });
    print(name, time([&] { graph->launch(); }) / calls, bytes, flops);
  } catch (const std::exception& e) {
    std::printf("%-44s %s\n", name.c_str(), e.what());
  }
}

void Bench::waiting_row(const std::string& name, double bytes, const std::function<void()>& call) {
  if (!wants(name)) return;
  try {
    for (int i = 0; i < 3; ++i) call();
    print(name, time(call), bytes, 0);
  } catch (const std::exception& e) {
    std::printf("%-44s %s\n", name.c_str(), e.what());
  }
}

double Bench::time(const std::function<void()>& run) { return median_us(*queue_, 150e3, run); }

void Bench::print(const std::string& name, double us, double bytes, double flops) {
  const double memory = bytes / copy_tbs_ / 1e6, math = flops / kDenseTflops / 1e6;
  std::printf("%-44s %10.2f %12.0f %10.2f %7.2f%s\n", name.c_str(), us, bytes, std::max(memory, math),
              us / std::max({memory, math, 1e-9}), math > memory ? " flops" : "");
  std::fflush(stdout);
}

double Bench::measure_copy() {
  const int64_t bytes = int64_t{2} << 30;
  const auto a = device_->allocate(bytes), b = device_->allocate(bytes);
  return 2.0 * static_cast<double>(bytes) / time([&] { queue_->copy(a.get(), b.get(), bytes); }) / 1e6;
}

}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  try {
    Bench b(argc > 1 ? argv[1] : "");
    bench_rows(b);
    bench_requantize(b);
    bench_attentions(b);
    bench_linears(b);
    bench_samples(b);
    bench_mamba(b);
    bench_mla(b);
    bench_mla_prompts(b);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ops_sm90: %s\n", e.what());
    return 1;
  }
  return 0;
}
