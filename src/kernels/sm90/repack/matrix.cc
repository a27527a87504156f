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

// In parts that bound the staged copy of host weights; a layer has two of them at once.
MatrixStaging RepackedMatrix::stage(const weights::QuantTensor& up, const weights::QuantTensor* gate) const {
  constexpr int64_t kStagedBytes = int64_t{128} << 20;
  const Tensor* const from[6] = {&up.codes,
                                 &up.scales,
                                 &up.global,
                                 gate != nullptr ? &gate->codes : nullptr,
                                 gate != nullptr ? &gate->scales : nullptr,
                                 gate != nullptr ? &gate->global : nullptr};
  constexpr const char* kNames[3] = {"the weights' codes", "the weights' scales", "the weights' global scales"};
  const int device = current_device();
  MatrixStaging s{up.format, {}, {}, {}, shape.experts};
  int64_t host_bytes = 0;
  bool staged[6] = {};
  for (int i = 0; i < 6; ++i) {
    if (from[i] == nullptr || from[i]->empty()) continue;
    s.from[i] = from[i]->address();
    s.each[i] = from[i]->bytes() / shape.experts;
    staged[i] = !read_in_place(place_of(s.from[i]), device, kNames[i % 3]);
    check(staged[i] || reinterpret_cast<uintptr_t>(s.from[i]) % 16 == 0, "{} are not aligned to 16 bytes",
          kNames[i % 3]);
    if (staged[i]) host_bytes += s.each[i];
  }
  if (host_bytes > 0) s.step = std::clamp<int64_t>(kStagedBytes / host_bytes, 1, shape.experts);
  for (int i = 0; i < 6; ++i)
    if (staged[i]) s.room[i] = DeviceBuffer(s.each[i] * s.step);
  return s;
}

void RepackedMatrix::fill(const MatrixStaging& s, Stream stream, bool follows) {
  const int64_t experts = shape.experts;
  const bool copies =
      std::any_of(std::begin(s.room), std::end(s.room), [](const DeviceBuffer& b) { return b.bytes() > 0; });
  for (int64_t first = 0; first < experts; first += s.step) {
    RepackArgs args{};
    args.format = s.format;
    args.shape = shape;
    args.shape.experts = std::min(s.step, experts - first);
    const void* at[6] = {};
    for (int i = 0; i < 6; ++i) {
      if (s.from[i] == nullptr) continue;
      at[i] = static_cast<const char*>(s.from[i]) + first * s.each[i];
      if (s.room[i].bytes() == 0) continue;
      copy_to_device(s.room[i].data(), at[i], s.each[i] * args.shape.experts, stream);
      at[i] = s.room[i].data();
    }
    args.up = {at[0], at[1], static_cast<const float*>(at[2])};
    args.gate = {at[3], at[4], static_cast<const float*>(at[5])};
    const int64_t tiles = first * shape.m_tiles();
    args.weights = weights.as<uint8_t>() + tiles * shape.k_blocks() * k_block_bytes(shape.operand);
    if (row_scale.bytes() > 0) args.row_scale = row_scale.as<float>() + tiles * kMTileRows;
    if (block_scale.bytes() > 0)
      args.block_scale = block_scale.as<float>() + tiles * scale_runs(shape.operand, shape.k_blocks()) * 4;
    launch_repack(args, stream, follows && !copies);
  }
  if (copies) synchronize(stream);  // the staged copies go away
}

}  // namespace sluice::sm90
