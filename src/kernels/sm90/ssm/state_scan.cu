// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/ssm/softplus.cuh"
#include "kernels/sm90/ssm/ssm.h"
#include "kernels/sm90/ssm/vector.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kScanThreads = 256, kScanRows = 8;

// Whether this kernel has nothing to do for a sequence of `count` rows: it has none, or the chunked kernels compute it.
__device__ __forceinline__ bool skips_sequence(const StateScanArgs& a, int count) {
  return count == 0 || (a.chunked_rows > 0 && count >= a.chunked_rows);
}

// A block computes one head of one sequence and holds its state in registers: thread (part, p) has the values part,
// part + parts, ... of column p. The recurrence is the same for prompts and for single tokens, so that a row's bits do
// not depend on how its prompt is cut. Rows are staged eight at a time: with one at a time, each would wait for memory.
template <int kHeld, class X, class D>
__global__ void __launch_bounds__(kScanThreads) state_scan_kernel(const __grid_constant__ StateScanArgs a) {
  extern __shared__ float scan_smem[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const StateRows& b = a.batch;
  const int h = static_cast<int>(blockIdx.x), s = static_cast<int>(blockIdx.y), dim = a.head_dim, n = a.state;
  const int begin = b.row_begin[s], end = b.row_begin[s + 1];
  if (skips_sequence(a, end - begin)) return;
  const int parts = kScanThreads / dim, part = static_cast<int>(threadIdx.x) / dim;
  const int p = static_cast<int>(threadIdx.x) % dim;
  const bool works = part < parts;
  float* rows = scan_smem;                          // [8][dim + 2n]: x, B, C
  float* steps = rows + kScanRows * (dim + 2 * n);  // [8][2]: dt and decay
  float* sums = steps + 2 * kScanRows;              // [2][parts][dim]
  const int64_t size = static_cast<int64_t>(n) * dim, head_at = h * size;

  float held[kHeld];
  const float* from = b.state_in[s] < 0 ? nullptr : b.states + b.state_in[s] * b.state_floats + head_at;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = part + i * parts;
    held[i] = works && at < n && from != nullptr ? from[static_cast<int64_t>(at) * dim + p] : 0.0f;
  }
  const int inner = a.heads * dim, b_at = inner + h / (a.heads / a.groups) * n, c_at = b_at + a.groups * n;
  const float a_h = a.a[h], bias = a.dt_bias[h], skip = a.skip[h];
  for (int first = begin; first < end; first += kScanRows) {
    const int count = min(kScanRows, end - first);
    __syncthreads();
    for (int i = threadIdx.x; i < count * (dim + 2 * n); i += kScanThreads) {
      const int r = i / (dim + 2 * n), c = i % (dim + 2 * n);
      const X* row = static_cast<const X*>(a.xbc.data) + (first + r) * a.xbc.stride;
      rows[i] = to_float(c < dim ? row[h * dim + c] : c < dim + n ? row[b_at + c - dim] : row[c_at + c - dim - n]);
    }
    if (static_cast<int>(threadIdx.x) < count) {
      const float raw = to_float(static_cast<const D*>(a.dt.data)[(first + threadIdx.x) * a.dt.stride + h]) + bias;
      const float dt = softplus(raw);
      steps[2 * threadIdx.x] = dt;
      steps[2 * threadIdx.x + 1] = expf(dt * a_h);
    }
    __syncthreads();
    for (int r = 0; r < count; ++r) {
      const float *x = rows + r * (dim + 2 * n), *row_b = x + dim, *row_c = row_b + n;
      const float dt = steps[2 * r], decay = steps[2 * r + 1];
      float* partial = sums + (r & 1) * parts * dim;  // two buffers: one barrier per row
      if (works) {
        const float mine = x[p];
        float y = 0.0f;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          const int at = part + i * parts;
          if (at >= n) break;
          held[i] = fmaf(held[i], decay, dt * row_b[at] * mine);
          y = fmaf(row_c[at], held[i], y);
        }
        partial[part * dim + p] = y;
      }
      __syncthreads();
      if (works && part == 0) {
        float y = partial[p];
        for (int g = 1; g < parts; ++g) y += partial[g * dim + p];
        static_cast<float*>(a.y.data)[(first + r) * a.y.stride + h * dim + p] = fmaf(skip, x[p], y);
      }
      const int place = b.state_out[first + r];
      if (place >= 0 && works) {
        float* to = b.states + place * b.state_floats + head_at;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          const int at = part + i * parts;
          if (at < n) to[static_cast<int64_t>(at) * dim + p] = held[i];
        }
      }
    }
  }
}

// The same for heads of 64 with states of 128. Thread (g, p) holds the values 8 g to 8 g + 7 of columns 4 p to 4 p + 3,
// in reads of 16 bytes; rows are summed up eight at a time, so that eight of them share three barriers.
template <class X, class D>
__global__ void __launch_bounds__(kScanThreads, 3) state_scan_vector_kernel(const __grid_constant__ StateScanArgs a) {
  constexpr int kColumns = kScanDim / 4, kHeld = kScanState / (kScanThreads / kColumns);
  constexpr int kWidth = kScanDim + 2 * kScanState, kWarps = kScanThreads / 32;
  static_assert(kHeld == 8 && kColumns == 16);
  __shared__ __align__(16) float rows[kScanRows][kWidth];  // x, B, C
  __shared__ __align__(16) float sums[kScanRows][kWarps][kScanDim];
  __shared__ float2 steps[kScanRows];  // dt and decay
  __shared__ int places[kScanRows];
  ptx::griddepcontrol_launch_dependents();
  const StateRows& b = a.batch;
  const int h = static_cast<int>(blockIdx.x), s = static_cast<int>(blockIdx.y), t = static_cast<int>(threadIdx.x);
  const int64_t head_at = static_cast<int64_t>(h) * kScanState * kScanDim;
  {
    // What this finds may be stale; it only moves lines towards the L2 cache while the kernel before runs.
    const int place = b.state_in[s];
    const float* line = b.states + place * b.state_floats + head_at + t * 32;
    if (place >= 0) asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line));
  }
  const float a_h = a.a[h], bias = a.dt_bias[h], skip = a.skip[h];
  ptx::griddepcontrol_wait();
  const int begin = b.row_begin[s], end = b.row_begin[s + 1], from = b.state_in[s];
  if (skips_sequence(a, end - begin)) return;
  const int group = t / kColumns, column = 4 * (t % kColumns), warp = t / 32, lane = t % 32;
  const int64_t mine = head_at + static_cast<int64_t>(group * kHeld) * kScanDim + column;

  float4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    held[i] = from < 0 ? float4{0.0f, 0.0f, 0.0f, 0.0f} : load4(b.states + from * b.state_floats + mine + i * kScanDim);
  const int b_at = a.heads * kScanDim + h / (a.heads / a.groups) * kScanState, c_at = b_at + a.groups * kScanState;
  for (int first = begin; first < end; first += kScanRows) {
    const int count = min(kScanRows, end - first);
    if (first > begin) __syncthreads();
    for (int i = t; i < count * (kWidth / 4); i += kScanThreads) {
      const int r = i / (kWidth / 4), c = 4 * (i % (kWidth / 4));
      const int at = c < kScanDim                ? h * kScanDim + c
                     : c < kScanDim + kScanState ? b_at + c - kScanDim
                                                 : c_at + c - kScanDim - kScanState;
      store4(&rows[r][c], load4(static_cast<const X*>(a.xbc.data) + (first + r) * a.xbc.stride + at));
    }
    if (t < count) {
      const float dt = softplus(to_float(static_cast<const D*>(a.dt.data)[(first + t) * a.dt.stride + h]) + bias);
      steps[t] = {dt, expf(dt * a_h)};
      places[t] = b.state_out[first + t];
    }
    __syncthreads();
    for (int r = 0; r < count; ++r) {
      const float2 step = steps[r];
      const float4 x = load4(&rows[r][column]);
      float row_b[kHeld], row_c[kHeld];
      load_elements<kHeld>(&rows[r][kScanDim + group * kHeld], row_b);
      load_elements<kHeld>(&rows[r][kScanDim + kScanState + group * kHeld], row_c);
      float4 y{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const float scaled = step.x * row_b[i];
        float4& v = held[i];
        v = {fmaf(v.x, step.y, scaled * x.x), fmaf(v.y, step.y, scaled * x.y), fmaf(v.z, step.y, scaled * x.z),
             fmaf(v.w, step.y, scaled * x.w)};
        y = {fmaf(row_c[i], v.x, y.x), fmaf(row_c[i], v.y, y.y), fmaf(row_c[i], v.z, y.z), fmaf(row_c[i], v.w, y.w)};
      }
      y.x += __shfl_xor_sync(0xffffffffu, y.x, 16);
      y.y += __shfl_xor_sync(0xffffffffu, y.y, 16);
      y.z += __shfl_xor_sync(0xffffffffu, y.z, 16);
      y.w += __shfl_xor_sync(0xffffffffu, y.w, 16);
      if (lane < kColumns) store4(&sums[r][warp][column], y);
      const int place = places[r];
      if (place < 0) continue;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) store4(b.states + place * b.state_floats + mine + i * kScanDim, held[i]);
    }
    __syncthreads();
    for (int i = t; i < count * kScanDim; i += kScanThreads) {
      const int r = i / kScanDim, p = i % kScanDim;
      float y = sums[r][0][p];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) y += sums[r][w][p];
      static_cast<float*>(a.y.data)[(first + r) * a.y.stride + h * kScanDim + p] = fmaf(skip, rows[r][p], y);
    }
  }
}

// Depends on the shape and on addresses alone, never on the batch: the two kernels add in different orders.
bool vectors_fit(const StateScanArgs& a) {
  return a.head_dim == kScanDim && a.state == kScanState && rows_aligned(a.xbc) &&
         reinterpret_cast<uintptr_t>(a.batch.states) % 16 == 0 && a.batch.state_floats % 4 == 0;
}

template <class X, class D>
void launch_scan(const StateScanArgs& a, Stream stream, bool pdl) {
  const dim3 blocks(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch.sequences));
  if (vectors_fit(a)) return launch(state_scan_vector_kernel<X, D>, blocks, kScanThreads, 0, stream, pdl, a);
  const int parts = kScanThreads / a.head_dim;
  const int smem = 4 * (kScanRows * (a.head_dim + 2 * a.state) + 2 * kScanRows + 2 * parts * a.head_dim);
  const bool few = ceil_div(a.state, parts) <= 32;
  launch(few ? state_scan_kernel<32, X, D> : state_scan_kernel<64, X, D>, blocks, kScanThreads, smem, stream, pdl, a);
}

}  // namespace

void launch_state_scan(const StateScanArgs& a, Stream stream, bool pdl) {
  if (a.batch.rows == 0) return;
  if (a.dt.f32)
    launch_scan<float, float>(a, stream, pdl);
  else if (a.xbc.f32)
    launch_scan<float, bf16_t>(a, stream, pdl);
  else
    launch_scan<bf16_t, bf16_t>(a, stream, pdl);
}

}  // namespace sluice::sm90
