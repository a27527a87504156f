// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/repack/matrix.h"

#include <algorithm>

#include "kernels/sm90/repack/repack.h"

namespace sluice::sm90 {

void RepackedMatrix::place(const WeightShape& of, const DeviceBuffer& memory, const MatrixMemory& at) {
  shape = of;
  const auto part = [&](Span span) { return span.bytes == 0 ? DeviceBuffer() : DeviceBuffer(memory, span); };
  weights = part(at.weights);
  row_scale = part(at.row_scale);
  block_scale = part(at.block_scale);
}

// The experts of one matrix, in parts that bound the staged copy of host weights.
void RepackedMatrix::fill(const weights::QuantTensor& up, const weights::QuantTensor* gate, Stream stream,
                          bool follows) {
  constexpr int64_t kStagedBytes = int64_t{256} << 20;
  const int64_t experts = shape.experts;
  const Tensor* const from[6] = {&up.codes,
                                 &up.scales,
                                 &up.global,
                                 gate != nullptr ? &gate->codes : nullptr,
                                 gate != nullptr ? &gate->scales : nullptr,
                                 gate != nullptr ? &gate->global : nullptr};
  constexpr const char* kNames[3] = {"the weights' codes", "the weights' scales", "the weights' global scales"};
  const int device = current_device();
  int64_t each[6] = {}, host_bytes = 0;  // bytes per expert
  bool staged[6] = {};
  for (int i = 0; i < 6; ++i) {
    if (from[i] == nullptr || from[i]->empty()) continue;
    each[i] = from[i]->bytes() / experts;
    staged[i] = !read_in_place(place_of(from[i]->address()), device, kNames[i % 3]);
    if (staged[i]) host_bytes += each[i];
  }
  const int64_t step = host_bytes == 0 ? experts : std::clamp<int64_t>(kStagedBytes / host_bytes, 1, experts);
  DeviceBuffer room[6];
  for (int i = 0; i < 6; ++i)
    if (staged[i]) room[i] = DeviceBuffer(each[i] * step);
  for (int64_t first = 0; first < experts; first += step) {
    RepackArgs args{};
    args.format = up.format;
    args.shape = shape;
    args.shape.experts = std::min(step, experts - first);
    const void* at[6] = {};
    for (int i = 0; i < 6; ++i) {
      if (each[i] == 0) continue;
      at[i] = static_cast<const char*>(from[i]->address()) + first * each[i];
      if (!staged[i]) continue;
      copy_to_device(room[i].data(), at[i], each[i] * args.shape.experts, stream);
      at[i] = room[i].data();
    }
    args.up = {at[0], at[1], static_cast<const float*>(at[2])};
    args.gate = {at[3], at[4], static_cast<const float*>(at[5])};
    const int64_t tiles = first * shape.m_tiles();
    args.weights = weights.as<uint8_t>() + tiles * shape.k_blocks() * k_block_bytes(shape.operand);
    if (row_scale.bytes() > 0) args.row_scale = row_scale.as<float>() + tiles * kMTileRows;
    if (block_scale.bytes() > 0)
      args.block_scale = block_scale.as<float>() + tiles * scale_runs(shape.operand, shape.k_blocks()) * 4;
    launch_repack(args, stream, follows && host_bytes == 0);
  }
  if (host_bytes > 0) synchronize(stream);  // the staged copies go away
}

}  // namespace sluice::sm90
