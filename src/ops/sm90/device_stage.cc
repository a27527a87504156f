// SPDX-License-Identifier: Apache-2.0
#include "ops/sm90/device_stage.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "io/read_ahead.h"
#include "kernels/sm90/prepare/dummy.h"
#include "kernels/sm90/prepare/find_nan.h"
#include "kernels/sm90/prepare/quantize_weights.h"

namespace sluice::ops::sm90 {

using namespace sluice::sm90;
using weights::QuantTensor;

void Sm90Stage::fill_dummy(Tensor& out, const weights::DummyRange& range, int64_t first, int64_t stride) {
  check(out.dtype() == DType::bf16 && out.device() == ctx_.device().id(),
        "dummy weights are {} on {}; bfloat16 on {} is expected", to_string(out.dtype()), to_string(out.device()),
        to_string(ctx_.device().id()));
  if (out.elements() == 0) return;
  const DeviceGuard guard(index());
  const int64_t matrices = out.dim(0);
  launch_dummy({static_cast<bf16_t*>(out.address()), matrices, out.elements() / matrices, first, stride, range},
               stream());
}

// A reader copies a piece of a mapped file to its staging buffer, sends it off and waits, while others read.
void Sm90Stage::upload(std::span<const Copy> in_any_order) {
  constexpr int64_t kStaging = int64_t{64} << 20, kLeast = int64_t{1} << 20, kMost = int64_t{8} << 20;
  Device& device = ctx_.device();
  if (queues_.empty()) {
    piece_ = std::clamp<int64_t>(kStaging / ctx_.pool.size(), kLeast, kMost);
    staging_ = device.allocate_staging(piece_ * ctx_.pool.size());
    for (int i = 0; i < ctx_.pool.size(); ++i) queues_.push_back(device.make_queue());
  }
  // In the order of the files.
  std::vector<Copy> copies(in_any_order.begin(), in_any_order.end());
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return std::less<>()(a.from, b.from); });
  struct Part {
    size_t copy;
    int64_t begin, bytes;
  };
  std::vector<Part> parts;
  std::vector<size_t> first{0};  // part of each piece
  int64_t room = piece_;
  for (size_t c = 0; c < copies.size(); ++c)
    for (int64_t begin = 0; begin < copies[c].bytes;) {
      const int64_t bytes = std::min(room, copies[c].bytes - begin);
      parts.push_back({c, begin, bytes});
      begin += bytes;
      room -= bytes;
      if (room > 0) continue;
      first.push_back(parts.size());
      room = piece_;
    }
  if (first.back() != parts.size()) first.push_back(parts.size());
  const std::unique_ptr<Event> before = ctx_.queue.record();
  for (const auto& queue : queues_) queue->wait_for(*before);
  ctx_.pool.parallel_for(static_cast<int64_t>(first.size()) - 1, [&](int64_t piece, int worker) {
    Queue& queue = *queues_[static_cast<size_t>(worker)];
    auto* buffer = static_cast<std::byte*>(staging_.get()) + worker * piece_;
    const size_t begin = first[static_cast<size_t>(piece)], end = first[static_cast<size_t>(piece) + 1];
    const auto source = [&](size_t p) {
      return static_cast<const std::byte*>(copies[parts[p].copy].from) + parts[p].begin;
    };
    for (size_t p = begin; p < end; ++p) io::read_ahead(source(p), parts[p].bytes);
    for (size_t p = begin; p < end; ++p) {
      const Copy& copy = copies[parts[p].copy];
      std::memcpy(buffer, source(p), static_cast<size_t>(parts[p].bytes));
      queue.copy(static_cast<std::byte*>(copy.to) + parts[p].begin, buffer, parts[p].bytes);
      buffer += parts[p].bytes;
    }
    queue.wait();
  });
}

bool Sm90Stage::has_nan(const Tensor& codes) {
  if (codes.elements() == 0) return false;
  const DeviceGuard guard(index());
  Tensor found = make(DType::i32, {1});
  int32_t result = 0;
  ctx_.queue.zero(found.address(), found.bytes());
  launch_find_nan({static_cast<const uint8_t*>(codes.address()), codes.bytes(), static_cast<int32_t*>(found.address())},
                  stream());
  ctx_.queue.copy(&result, found.address(), found.bytes());
  ctx_.queue.wait();
  return result != 0;
}

QuantTensor Sm90Stage::quantize(format::Format format, const QuantTensor& w) {
  if (format == w.format) return w;
  check(w.format == format::Format::bf16 && w.codes.device() == ctx_.device().id(),
        "weights on {} in {} cannot be quantised there; accepted: bf16 on {}", to_string(w.codes.device()),
        format::info(w.format).name, to_string(ctx_.device().id()));
  const DeviceGuard guard(index());
  QuantTensor out = weights::make_quant_tensor(format, w.experts, w.rows, w.cols,
                                               [&](DType d, Shape s) { return make(d, std::move(s)); });
  const format::FormatInfo f = info(format);
  const bool whole = format == format::Format::fp8_tensor;
  Tensor scales = make(out.scales.dtype(), out.scales.shape()), global = make(DType::f32, {w.experts}),
         amax = make(DType::i32, {w.experts});
  ctx_.queue.zero(amax.address(), amax.bytes());
  QuantizeWeightsArgs args{};
  args.format = format;
  args.w = static_cast<const bf16_t*>(w.codes.address());
  args.experts = w.experts;
  args.rows = w.rows;
  args.cols = w.cols;
  args.codes = static_cast<uint8_t*>(out.codes.address());
  args.scales = scales.address();
  args.global = static_cast<float*>(global.address());
  args.amax = static_cast<uint32_t*>(amax.address());
  launch_quantize_weights(args, stream());
  if (f.global_scale) ctx_.queue.copy(out.global.data(), global.address(), global.bytes());
  if (whole) ctx_.queue.copy(out.scales.data(), scales.address(), scales.bytes());
  if (f.global_scale || whole) ctx_.queue.wait();
  if (!whole) out.scales = scales;
  return out;
}

}  // namespace sluice::ops::sm90
