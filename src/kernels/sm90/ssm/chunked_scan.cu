// SPDX-License-Identifier: Apache-2.0
// The recurrence as matrix products (state-space duality), 64 rows at once. With L_i the sum of the log-decays of the
// chunk's rows up to i, S the state before it and G = C B^T:
//   y_i = exp(L_i) S C_i + sum_{j <= i} G_ij exp(L_i - L_j) dt_j x_j + skip x_i
//   S'  = exp(L_last) S + sum_j exp(L_last - L_j) dt_j x_j outer B_j.
//
// x, B and C are bfloat16 and are multiplied as they are. What is float32 - the state, the scores with their decays,
// the weighted x - is multiplied as two bfloat16 values, high and low part, which keeps 17 bits of it. Log-decays are
// summed in double and kept as two floats: a difference of two large ones is as good as the sum of the rows between.
//
// A block of four warps computes one head of one sequence, or of a segment of its rows. A warp holds the transposed
// state of 16 columns of the head, whose registers are the operand of S C: the state never leaves them. Only the scores
// pass through shared memory.
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_rows.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/ssm/chunk.cuh"

namespace sluice::sm90 {

namespace {

// The A operand of the transposed panel: columns [column, column + 16), rows [16 k, 16 k + 16).
__device__ __forceinline__ void load_transposed_a(uint32_t (&r)[4], uint32_t panel, int k, int column) {
  const int lane = threadIdx.x & 31;
  ptx::ldmatrix_x4_trans(r, piece_at(panel, 16 * k + lane / 16 * 8 + (lane & 7), column / 8 + (lane / 8 & 1)));
}

__device__ __forceinline__ void load_x(uint32_t (&x)[kScanChunk / 16][4], uint32_t stage, int column) {
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) load_transposed_a(x[k], stage + kPanelX, k, column);
}

// A step of 16 columns over two panels.
__device__ __forceinline__ uint64_t columns_desc(uint32_t panels, int k) {
  return ptx::swizzled_desc(ptx::swizzled_desc_low(panels) + k / 4 * (kPanel >> 4) + 2 * (k % 4));
}

template <int kCount>
__device__ __forceinline__ void pin_all(float (&tiles)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::pin(tiles[n][i]);
}

// Begins g = C B^T.
__device__ __forceinline__ void begin_keys(uint32_t stage, float (&g)[kRowTiles][4]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kScanState / 16; ++k)
    ptx::Wgmma<64>::bf16_ss(&g[0][0], columns_desc(stage + kPanelC, k), columns_desc(stage + kPanelB, k), k > 0);
  ptx::wgmma_commit();
}

// Half of the operand of S C: that of all would not leave enough registers.
struct HalfState {
  static constexpr int kSteps = kScanState / 32;
  uint32_t high[kSteps][4], low[kSteps][4];

  template <int kHalf>
  __device__ __forceinline__ void split(const float (&state)[kStateTiles][4]) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) split_state(state, kHalf * kSteps + k, high[k], low[k]);
  }
  // Begins y (+)= S C of it.
  template <int kHalf>
  __device__ __forceinline__ void begin(uint32_t stage, float (&y)[kRowTiles][4]) const {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint64_t c = columns_desc(stage + kPanelC, kHalf * kSteps + k);
      ptx::Wgmma<64>::bf16_rs(&y[0][0], high[k], c, kHalf + k > 0);
      ptx::Wgmma<64>::bf16_rs(&y[0][0], low[k], c, 1);
    }
    ptx::wgmma_commit();
  }
};

// Begins y += x^T scores^T. All rows take part: their scores of later rows are zeros. (Products with
// fewer rows would have to wait for each other.)
__device__ __forceinline__ void begin_scores(const uint32_t (&x)[kScanChunk / 16][4], uint32_t smem,
                                             float (&y)[kRowTiles][4]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) {
    ptx::Wgmma<64>::bf16_rs(&y[0][0], x[k], columns_desc(smem + kScoresHigh, k), 1);
    ptx::Wgmma<64>::bf16_rs(&y[0][0], x[k], columns_desc(smem + kScoresLow, k), 1);
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void begin_update(const uint32_t (&x)[kScanChunk / 16][4], uint32_t stage,
                                             const ChunkSteps& steps, float (&state)[kStateTiles][4]) {
  uint32_t high[kScanChunk / 16][4], low[kScanChunk / 16][4];
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) split_weighted(x[k], steps, k, high[k], low[k]);
  scale_state(steps, state);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t desc = ptx::swizzled_desc(ptx::rows_desc_low(stage + kPanelB + half * kPanel) + k * 128);
      ptx::wgmma_m64n64k16_bf16_rows(&state[8 * half][0], high[k], desc);
      ptx::wgmma_m64n64k16_bf16_rows(&state[8 * half][0], low[k], desc);
    }
  ptx::wgmma_commit();
}

// A part of a sequence's rows that blocks of their own compute: rows [begin, end) of the batch.
struct Segment {
  int begin, end;
  bool first, last;
};
__device__ __forceinline__ Segment segment_of(const StateScanArgs& a, int begin, int end) {
  const int rows = round_up(ceil_div(end - begin, a.segments), kScanChunk),
            at = begin + static_cast<int>(blockIdx.z) * rows;
  return {at, min(end, at + rows), blockIdx.z == 0, at + rows >= end};
}

// This lane's values of a state, [4 columns apart of the state][of the head], as they lie in `carried`: lanes side by
// side.
__device__ __forceinline__ float* carried_state(const StateScanArgs& a, int segment) {
  const int64_t at = (int64_t{blockIdx.y} * a.segments + segment) * a.heads + blockIdx.x;
  return a.carried + at * (kScanState * kScanDim) + threadIdx.x;
}
__device__ __forceinline__ float* carried_decay(const StateScanArgs& a, int segment) {
  return a.decays + (int64_t{blockIdx.y} * a.segments + segment) * a.heads + blockIdx.x;
}

// Grid: heads x sequences x segments. kStates: what the segments before the last add to the state, for a launch that
// computes the rows of all segments at once. carried[0] is the sequence's state before its first row (whose place the
// state after its last row may take), carried[i + 1] what segment i would leave of no state at all; decays[i + 1] is
// what it leaves of the state before it.
template <bool kStates>
__global__ void __launch_bounds__(kScanWarpgroup, 2) chunked_scan_kernel(const __grid_constant__ StateScanArgs a) {
  extern __shared__ __align__(1024) uint8_t chunk_smem[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const StateRows& b = a.batch;
  const int h = static_cast<int>(blockIdx.x), s = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int rows = b.row_begin[s + 1] - b.row_begin[s];
  const Segment segment = segment_of(a, b.row_begin[s], b.row_begin[s + 1]);
  const int begin = segment.begin, end = segment.end;
  if (rows < a.chunked_rows || begin >= end) return;
  const uint32_t smem = ptx::smem_address(chunk_smem);
  auto* steps = reinterpret_cast<ChunkSteps*>(chunk_smem + kSteps);
  const float a_h = a.a[h], bias = a.dt_bias[h], skip = a.skip[h];
  const bool steps_warp = warp == 0;

  // This lane's values of the state: [4 columns apart of the state][of the head], transposed.
  const int column = 16 * warp + lane / 4;
  const auto state_at = [&](int place, int n, int i) {
    const int at = (8 * n + 2 * (lane % 4) + i % 2) * kScanDim + column + 8 * (i / 2);
    return b.states + place * b.state_floats + static_cast<int64_t>(h) * kScanState * kScanDim + at;
  };
  float state[kStateTiles][4];
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int n = 0; n < kStateTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(n, i, (4 * n + i) * kScanWarpgroup);
  };
  if (a.segments == 1 || (kStates && segment.first)) {
    const int from = b.state_in[s];
    each([&](int n, int i, int) { state[n][i] = from >= 0 ? *state_at(from, n, i) : 0.0f; });
  }
  if constexpr (kStates) {
    if (segment.first) {
      float* to = carried_state(a, 0);
      each([&](int n, int i, int at) { to[at] = state[n][i]; });
    }
    if (segment.last) return;
    each([&](int n, int i, int) { state[n][i] = 0.0f; });
  } else if (a.segments > 1) {
    const float* from = carried_state(a, 0);
    each([&](int n, int i, int at) { state[n][i] = from[at]; });
    for (int before = 1; before <= static_cast<int>(blockIdx.z); ++before) {
      const float decay = *carried_decay(a, before);
      from = carried_state(a, before);
      each([&](int n, int i, int at) { state[n][i] = fmaf(decay, state[n][i], from[at]); });
    }
  }

  const auto read_places = [&](int first, int(&places)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) places[i] = first + lane + 32 * i < end ? b.state_out[first + lane + 32 * i] : -1;
  };
  const auto read_steps = [&](const Chunk& chunk, float(&raw)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (2 * lane + i < chunk.count)
        raw[i] = to_float(static_cast<const bf16_t*>(a.dt.data)[(chunk.first + 2 * lane + i) * a.dt.stride + h]) + bias;
  };
  if constexpr (!kStates)  // tiles above the diagonal stay zeros
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kPanel / 16; i += kScanWarpgroup)
      *reinterpret_cast<uint4*>(chunk_smem + kScoresHigh + 16 * i) = {0, 0, 0, 0};
  int places[2];
  float raw[2]{};
  read_places(begin, places);
  Chunk next = chunk_at(begin, end, places);
  load_chunk<kStates>(a, smem, next, h);
  ptx::cp_async_commit();
  read_places(next.first + next.count, places);
  if (steps_warp) {
    read_steps(next, raw);
    write_steps(steps[0], next, raw, a_h);
  }

  float decay = 1.0f;
  for (int index = 0; next.count > 0; ++index) {
    const Chunk chunk = next;
    const int now = index % kStages, then = (index + 1) % kStages;
    const uint32_t stage = smem + now * kStageBytes;
    next = chunk_at(chunk.first + chunk.count, end, places);
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    __syncthreads();  // this stage is filled, and nobody reads the other or the scores
    if (next.count > 0) load_chunk<kStates>(a, smem + then * kStageBytes, next, h);
    ptx::cp_async_commit();
    read_places(next.first + next.count, places);
    if (steps_warp) read_steps(next, raw);

    uint32_t x[kScanChunk / 16][4];
    if constexpr (kStates) {
      load_x(x, stage, 16 * warp);
      begin_update(x, stage, steps[now], state);
      if (steps_warp) write_steps(steps[then], next, raw, a_h);
      decay *= steps[now].whole;
      ptx::wgmma_wait<0>();
      pin_all(state);
      continue;
    }
    float g[kRowTiles][4]{}, y[kRowTiles][4]{};
    HalfState half;
    half.split<0>(state);  // before the first product, or the compiler would wait for that one
    begin_keys(stage, g);
    half.begin<0>(stage, y);
    ptx::wgmma_wait<1>();
    pin_all(g);
    write_scores(chunk_smem, g, steps[now], 16 * warp);
    ptx::fence_proxy_async();
    ptx::wgmma_wait<0>();
    pin_all(y);
    half.split<1>(state);
    half.begin<1>(stage, y);
    load_x(x, stage, 16 * warp);
    __syncthreads();  // the scores are there
    ptx::wgmma_wait<0>();
    pin_all(y);
    scale_rows(steps[now], y);
    begin_scores(x, smem, y);
    begin_update(x, stage, steps[now], state);
    if (steps_warp) write_steps(steps[then], next, raw, a_h);
    ptx::wgmma_wait<1>();
    pin_all(y);
    store_rows(a, chunk, h * kScanDim + column, skip, x, y);
    ptx::wgmma_wait<0>();
    pin_all(state);
    if (!chunk.stores) continue;
    const int place = b.state_out[chunk.first + chunk.count - 1];
    each([&](int n, int i, int) { *state_at(place, n, i) = state[n][i]; });
  }
  if constexpr (kStates) {
    const int after = static_cast<int>(blockIdx.z) + 1;
    float* to = carried_state(a, after);
    each([&](int n, int i, int at) { to[at] = state[n][i]; });
    if (threadIdx.x == 0) *carried_decay(a, after) = decay;
  }
}

}  // namespace

bool chunked_scan_fits(const StateScanArgs& a) {
  return a.head_dim == kScanDim && a.state == kScanState && !a.xbc.f32 && !a.dt.f32 && rows_aligned(a.xbc);
}

void allow_chunked_scan() {
  allow_shared_memory(chunked_scan_kernel<false>, kBytes);
  allow_shared_memory(chunked_scan_kernel<true>, kBytes);
}

void launch_chunked_scan(const StateScanArgs& a, Stream stream, bool pdl) {
  if (a.batch.rows == 0) return;
  const dim3 blocks(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch.sequences),
                    static_cast<unsigned>(a.segments));
  if (a.segments > 1) launch(chunked_scan_kernel<true>, blocks, kScanWarpgroup, kBytes, stream, pdl, a);
  launch(chunked_scan_kernel<false>, blocks, kScanWarpgroup, kBytes, stream, pdl, a);
}

}  // namespace sluice::sm90
