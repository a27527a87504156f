// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/prepare/matrix.h"

#include <algorithm>

#include "kernels/sm90/prepare/prepare.h"

namespace sluice::sm90 {

void PreparedMatrix::allocate() {
  weights = DeviceBuffer(shape.bytes());
  if (has_row_scale(shape.operand)) row_scale = DeviceBuffer(shape.row_scales() * 4);
  block_scale = DeviceBuffer(shape.block_scales() * 4);
}

// The experts of one matrix, in parts that bound the staged copy of host weights.
void PreparedMatrix::fill(const weights::QuantTensor& up, const weights::QuantTensor* gate, Stream stream,
                          bool follows) {
  constexpr int64_t kStagedBytes = int64_t{256} << 20;
  const int64_t experts = shape.experts;
  const Tensor* const from[6] = {&up.codes,
                                 &up.scales,
                                 &up.global,
                                 gate != nullptr ? &gate->codes : nullptr,
                                 gate != nullptr ? &gate->scales : nullptr,
                                 gate != nullptr ? &gate->global : nullptr};
  int64_t each[6] = {}, host_bytes = 0;  // bytes an expert
  bool staged[6] = {};
  for (int i = 0; i < 6; ++i) {
    if (from[i] == nullptr || from[i]->empty()) continue;
    each[i] = from[i]->bytes() / experts;
    staged[i] = !in_device_memory(from[i]->data());
    if (staged[i]) host_bytes += each[i];
  }
  const int64_t step = host_bytes == 0 ? experts : std::clamp<int64_t>(kStagedBytes / host_bytes, 1, experts);
  DeviceBuffer room[6];
  for (int i = 0; i < 6; ++i)
    if (staged[i]) room[i] = DeviceBuffer(each[i] * step);
  for (int64_t first = 0; first < experts; first += step) {
    PrepareArgs args{};
    args.format = up.format;
    args.shape = shape;
    args.shape.experts = std::min(step, experts - first);
    const void* at[6] = {};
    for (int i = 0; i < 6; ++i) {
      if (each[i] == 0) continue;
      at[i] = static_cast<const char*>(from[i]->data()) + first * each[i];
      if (!staged[i]) continue;
      copy_to_device(room[i].data(), at[i], each[i] * args.shape.experts, stream);
      at[i] = room[i].data();
    }
    args.up = {at[0], at[1], static_cast<const float*>(at[2])};
    args.gate = {at[3], at[4], static_cast<const float*>(at[5])};
    const int64_t tiles = first * shape.row_tiles();
    args.weights = weights.as<uint8_t>() + tiles * shape.slabs() * slab_bytes(shape.operand);
    if (row_scale.bytes() > 0) args.row_scale = row_scale.as<float>() + tiles * kTileRows;
    if (block_scale.bytes() > 0)
      args.block_scale = block_scale.as<float>() + tiles * scale_runs(shape.operand, shape.slabs()) * 4;
    launch_prepare(args, stream, follows && host_bytes == 0);
  }
  if (host_bytes > 0) synchronize(stream);  // the staged copies go away
}

}  // namespace sluice::sm90
