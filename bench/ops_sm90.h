// SPDX-License-Identifier: Apache-2.0
// What ops_sm90 measures with: a GPU, random tensors, one row of the table per operation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "ops/linear.h"
#include "ops/ops.h"

namespace sluice::bench {

using namespace sluice::ops;

class Bench {
 public:
  explicit Bench(std::string only);

  Context& ctx() { return ctx_; }
  Ops& ops() { return *ops_; }
  Queue& queue() { return *queue_; }
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

  // Random bfloat16 values (or float32 of the same), repeated.
  std::shared_ptr<void> random(int64_t bytes, DType dtype = DType::bf16);
  std::shared_ptr<int32_t> ints(const std::vector<int32_t>& v);
  Tensor tensor(DType dtype, Shape shape);
  Tensor floats(int64_t n) { return tensor(DType::f32, {n}); }

  // call(i): one call on the i-th set of buffers.
  void row(const std::string& name, double bytes, double flops, int calls, const std::function<void(int)>& call);
  // For what waits for its result: host time per call.
  void waiting_row(const std::string& name, double bytes, const std::function<void()>& call);

 private:
  static constexpr int64_t kNoise = 16 << 20;

  double time(const std::function<void()>& run);
  void print(const std::string& name, double us, double bytes, double flops);
  double measure_copy();

  std::string only_;
  std::unique_ptr<Device> device_ = make_cuda_device(0);
  std::unique_ptr<Queue> queue_ = device_->make_queue();
  ThreadPool pool_{4};
  Context ctx_{.pool = pool_, .queue = *queue_};
  std::unique_ptr<Ops> ops_ = make_ops(ctx_);
  std::shared_ptr<void> noise_;
  double copy_tbs_ = 0;
};

inline std::string label(const char* what, const std::string& detail) { return fmt::format("{} {}", what, detail); }

inline Matrix bf16(const std::shared_ptr<void>& memory, int64_t rows, int64_t cols) {
  return {memory.get(), DType::bf16, rows, cols, cols};
}
inline Matrix f32(const std::shared_ptr<void>& memory, int64_t rows, int64_t cols) {
  return {memory.get(), DType::f32, rows, cols, cols};
}

// ops_rows_sm90.cc
void bench_rows(Bench& b);
void bench_requantize(Bench& b);
void bench_samples(Bench& b);
// ops_linear_sm90.cc
void bench_linears(Bench& b);
// ops_attention_sm90.cc
void bench_attentions(Bench& b);
void bench_mla(Bench& b);
void bench_mla_prompts(Bench& b);
// ops_mamba_sm90.cc
void bench_mamba(Bench& b);

}  // namespace sluice::bench
