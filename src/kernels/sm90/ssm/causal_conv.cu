// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/ssm/ssm.h"
#include "kernels/sm90/ssm/vector.cuh"

namespace sluice::sm90 {

namespace {

// Groups of 32 rows: 2^20 rows, the most of a step, are 32,768 of the 65,535 that a grid can have.
constexpr int kConvThreads = 128, kConvRows = 32;

// Grid: channels x groups of rows x sequences. A thread computes one channel of the rows of its group. The block of
// a sequence's first rows stores all of its states: it alone reads the state before them, which may lie in the same
// place.
template <class D, class O>
__global__ void __launch_bounds__(kConvThreads) causal_conv_kernel(const __grid_constant__ CausalConvArgs a) {
  // Inputs before the sequence, the newest last; a thread reads its own column.
  __shared__ float history[kMaxConvTaps - 1][kConvThreads];
  static_assert(kConvRows >= kMaxConvTaps - 1);  // only a sequence's first rows reach back to them
  ptx::griddepcontrol_launch_dependents();
  const int channel = static_cast<int>(blockIdx.x) * kConvThreads + threadIdx.x, taps = a.taps;
  ptx::griddepcontrol_wait();
  if (channel >= a.channels) return;
  const StateRows& b = a.batch;
  const int s = static_cast<int>(blockIdx.z), begin = b.row_begin[s], count = b.row_begin[s + 1] - begin;
  const int first = static_cast<int>(blockIdx.y) * kConvRows, last = min(first + kConvRows, count);
  if (first >= count) return;
  const D* x = static_cast<const D*>(a.xbc.data) + begin * a.xbc.stride + channel;
  const float* before = b.state_in[s] < 0 ? nullptr : b.states + b.state_in[s] * b.state_floats + channel;

  if (first == 0)
    for (int t = 0; t + 1 < taps; ++t)
      history[t][threadIdx.x] = before != nullptr ? before[static_cast<int64_t>(t) * a.channels] : 0.0f;
  // Input of row r of the sequence, of r = -1 and less from the state.
  const auto input = [&](int r) { return r >= 0 ? to_float(x[r * a.xbc.stride]) : history[taps - 1 + r][threadIdx.x]; };
  const float bias = a.bias != nullptr ? a.bias[channel] : 0.0f;
  O* out = static_cast<O*>(a.out.data) + begin * a.out.stride + channel;
  for (int r = first; r < last; ++r) {
    float sum = bias;
    for (int t = 0; t < taps; ++t)
      sum = fmaf(a.weight[static_cast<int64_t>(t) * a.channels + channel], input(r - taps + 1 + t), sum);
    out[r * a.out.stride] = from_float<O>(rounded<D>(silu<D>(rounded<D>(sum))));
  }
  if (first != 0) return;
  for (int r = 0; r < count; ++r) {
    const int place = b.state_out[begin + r];
    if (place < 0) continue;
    float* state = b.states + place * b.state_floats + channel;
    for (int t = 0; t + 1 < taps; ++t) state[static_cast<int64_t>(t) * a.channels] = input(r - taps + 2 + t);
  }
}

// Four taps, four channels per thread; rows in steps of four, whose reads are in flight together. The same sums as
// above in the same order.
constexpr int kTaps = 4, kVectorRows = 32, kStep = 4;
static_assert(kVectorRows >= kTaps);

__device__ __forceinline__ float4 fma4(float4 a, float4 b, float4 c) {
  return {fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w)};
}
template <class D>
__device__ __forceinline__ float4 activated(float4 v) {
  return {rounded<D>(silu<D>(rounded<D>(v.x))), rounded<D>(silu<D>(rounded<D>(v.y))),
          rounded<D>(silu<D>(rounded<D>(v.z))), rounded<D>(silu<D>(rounded<D>(v.w)))};
}

// Grid: channels x groups of 32 rows x sequences. A block stores the states of its own rows, but that of the sequence's
// last row, which may lie where the state before the first row does: the block that reads that one stores it.
template <class D, class O>
__global__ void __launch_bounds__(kConvThreads) causal_conv_vector_kernel(const __grid_constant__ CausalConvArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int channel = 4 * (static_cast<int>(blockIdx.x) * kConvThreads + threadIdx.x);
  if (channel >= a.channels) return;
  float4 weight[kTaps];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) weight[t] = load4(a.weight + static_cast<int64_t>(t) * a.channels + channel);
  const float4 zeros{0.0f, 0.0f, 0.0f, 0.0f}, bias = a.bias != nullptr ? load4(a.bias + channel) : zeros;
  ptx::griddepcontrol_wait();
  const StateRows& b = a.batch;
  const int s = static_cast<int>(blockIdx.z), begin = b.row_begin[s], count = b.row_begin[s + 1] - begin;
  const int first = static_cast<int>(blockIdx.y) * kVectorRows, last = min(first + kVectorRows, count);
  if (first >= count) return;
  const D* x = static_cast<const D*>(a.xbc.data) + begin * a.xbc.stride + channel;
  O* out = static_cast<O*>(a.out.data) + begin * a.out.stride + channel;
  const auto state_at = [&](int place, int t) {
    return b.states + place * b.state_floats + static_cast<int64_t>(t) * a.channels + channel;
  };

  float4 v[kTaps - 1 + kStep];  // the rows before, then those of the step
#pragma unroll
  for (int t = 0; t + 1 < kTaps; ++t) {
    if (first > 0)
      v[t] = load4(x + (first - kTaps + 1 + t) * a.xbc.stride);
    else
      v[t] = b.state_in[s] < 0 ? zeros : load4(state_at(b.state_in[s], t));
  }
  for (int r = first; r < last; r += kStep) {
    int place[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const bool here = r + i < last;
      v[kTaps - 1 + i] = here ? load4(x + (r + i) * a.xbc.stride) : zeros;
      place[i] = here && (first == 0 || r + i + 1 < count) ? b.state_out[begin + r + i] : -1;
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (r + i >= last) break;
      float4 sum = bias;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sum = fma4(weight[t], v[i + t], sum);
      store4(out + (r + i) * a.out.stride, activated<D>(sum));
      if (place[i] < 0) continue;
#pragma unroll
      for (int t = 0; t + 1 < kTaps; ++t) store4(state_at(place[i], t), v[i + 1 + t]);
    }
#pragma unroll
    for (int t = 0; t + 1 < kTaps; ++t) v[t] = v[kStep + t];
  }
  if (first > 0 || last == count) return;
  const int place = b.state_out[begin + count - 1];
  if (place < 0) return;
#pragma unroll
  for (int t = 0; t + 1 < kTaps; ++t) store4(state_at(place, t), load4(x + (count - kTaps + 1 + t) * a.xbc.stride));
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool vectors_fit(const CausalConvArgs& a) {
  return a.taps == kTaps && a.channels % 4 == 0 && rows_aligned(a.xbc) && rows_aligned(a.out) && aligned(a.weight) &&
         aligned(a.bias) && aligned(a.batch.states) && a.batch.state_floats % 4 == 0;
}

template <class D, class O>
void launch_conv(const CausalConvArgs& a, Stream stream, bool pdl) {
  const bool vectors = vectors_fit(a);
  const int channels = kConvThreads * (vectors ? 4 : 1), rows = vectors ? kVectorRows : kConvRows;
  const dim3 blocks(static_cast<unsigned>(ceil_div(a.channels, channels)),
                    static_cast<unsigned>(ceil_div<int64_t>(a.batch.longest_rows, rows)),
                    static_cast<unsigned>(a.batch.sequences));
  launch(vectors ? causal_conv_vector_kernel<D, O> : causal_conv_kernel<D, O>, blocks, kConvThreads, 0, stream, pdl, a);
}

}  // namespace

void launch_causal_conv(const CausalConvArgs& a, Stream stream, bool pdl) {
  if (a.batch.rows == 0) return;
  if (a.xbc.f32)
    launch_conv<float, float>(a, stream, pdl);
  else if (a.out.f32)
    launch_conv<bf16_t, float>(a, stream, pdl);
  else
    launch_conv<bf16_t, bf16_t>(a, stream, pdl);
}

}  // namespace sluice::sm90
