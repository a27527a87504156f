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
// A block of four warps computes one head of one sequence. A warp holds the transposed state of 16 columns of the head,
// whose registers are the operand of S C: the state never leaves them. Only the scores pass through shared memory.
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_rows.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/ssm/chunk.cuh"

namespace sluice::sm90 {

namespace {

// --- products of warps ------------------------------------------------------------------------------------------
// Fragments of columns [16 k, 16 k + 16) of a panel. As A, of 16 rows; as B^T, of two tiles of 8 rows (r[0], r[1] the
// first); transposed, the A of the transposed panel or the B of two tiles of 8 columns.
__device__ __forceinline__ void load_a(uint32_t (&r)[4], uint32_t panel, int row, int k) {
  const int lane = threadIdx.x & 31;
  ptx::ldmatrix_x4(r, piece_at(panel, row + (lane & 15), 2 * k + lane / 16));
}
__device__ __forceinline__ void load_b(uint32_t (&r)[4], uint32_t panel, int row, int k) {
  const int lane = threadIdx.x & 31;
  ptx::ldmatrix_x4(r, piece_at(panel, row + lane / 16 * 8 + (lane & 7), 2 * k + (lane / 8 & 1)));
}
__device__ __forceinline__ void load_transposed_a(uint32_t (&r)[4], uint32_t panel, int k, int column) {
  const int lane = threadIdx.x & 31;
  ptx::ldmatrix_x4_trans(r, piece_at(panel, 16 * k + lane / 16 * 8 + (lane & 7), column / 8 + (lane / 8 & 1)));
}
__device__ __forceinline__ void load_transposed_b(uint32_t (&r)[4], uint32_t panel, int k, int column) {
  const int lane = threadIdx.x & 31;
  ptx::ldmatrix_x4_trans(r, piece_at(panel, 16 * k + (lane & 15), column / 8 + lane / 16));
}

__device__ __forceinline__ void load_x(uint32_t (&x)[kScanChunk / 16][4], uint32_t stage, int column) {
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) load_transposed_a(x[k], stage + kPanelX, k, column);
}

// tiles[first..] += (high + low) b, from one tile to the next so that no product waits for the one before it.
template <int kFirst, int kCount, int kTiles>
__device__ __forceinline__ void multiply(float (&tiles)[kTiles][4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[kCount / 2][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
    ptx::mma_m16n8k16_bf16(tiles[kFirst + n], a, b[n / 2][2 * (n % 2)], b[n / 2][2 * (n % 2) + 1]);
}

// g = C B^T of rows [row, row + 16), up to the diagonal.
__device__ __forceinline__ void multiply_keys(uint32_t stage, int row, float (&g)[kRowTiles][4]) {
  const int pairs = row / 16 + 1;
#pragma unroll
  for (int k = 0; k < kScanState / 16; ++k) {
    const uint32_t panel = stage + k / 4 * kPanel;
    uint32_t c[4];
    load_a(c, panel + kPanelC, row, k % 4);
#pragma unroll
    for (int j = 0; j < kRowTiles / 2; ++j) {
      if (j >= pairs) continue;
      uint32_t b[4];
      load_b(b, panel + kPanelB, 16 * j, k % 4);
      ptx::mma_m16n8k16_bf16(g[2 * j], c, b[0], b[1]);
      ptx::mma_m16n8k16_bf16(g[2 * j + 1], c, b[2], b[3]);
    }
  }
}

// y = exp(L) S C of all rows.
__device__ __forceinline__ void multiply_state(const float (&state)[kStateTiles][4], uint32_t stage,
                                               const ChunkSteps& steps, float (&y)[kRowTiles][4]) {
#pragma unroll
  for (int k = 0; k < kScanState / 16; ++k) {
    uint32_t high[4], low[4], c[kRowTiles / 2][4];
#pragma unroll
    for (int n = 0; n < kRowTiles / 2; ++n) load_b(c[n], stage + kPanelC + k / 4 * kPanel, 16 * n, k % 4);
    split_state(state, k, high, low);
    multiply<0, kRowTiles>(y, high, c);
    multiply<0, kRowTiles>(y, low, c);
  }
  scale_rows(steps, y);
}

// y += x^T scores^T.
template <int kFirst>
__device__ __forceinline__ void multiply_scores(const uint32_t (&x)[kScanChunk / 16][4], uint32_t smem,
                                                float (&y)[kRowTiles][4]) {
  constexpr int kCount = kRowTiles - kFirst;  // rows before 8 kFirst do not see these columns
#pragma unroll
  for (const int part : {kScoresHigh, kScoresLow}) {
    uint32_t scores[kCount / 2][4];
#pragma unroll
    for (int n = 0; n < kCount / 2; ++n) load_b(scores[n], smem + part, 8 * kFirst + 16 * n, kFirst / 2);
    multiply<kFirst, kCount>(y, x[kFirst / 2], scores);
  }
}

// state = exp(L_last) state + (weight x)^T B.
__device__ __forceinline__ void update_state(const uint32_t (&x)[kScanChunk / 16][4], uint32_t stage,
                                             const ChunkSteps& steps, float (&state)[kStateTiles][4]) {
  scale_state(steps, state);
#pragma unroll
  for (int k = 0; k < kScanChunk / 16; ++k) {
    uint32_t high[4], low[4];
    split_weighted(x[k], steps, k, high, low);
    uint32_t b[4][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) load_transposed_b(b[n], stage + kPanelB, k, 16 * n);
    multiply<0, 8>(state, high, b);
    multiply<0, 8>(state, low, b);
#pragma unroll
    for (int n = 0; n < 4; ++n) load_transposed_b(b[n], stage + kPanelB + kPanel, k, 16 * n);
    multiply<8, 8>(state, high, b);
    multiply<8, 8>(state, low, b);
  }
}

// --- products of the warpgroup ----------------------------------------------------------------------------------
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

// Grid: heads x sequences.
template <bool kWarpgroup>
__global__ void __launch_bounds__(kScanWarpgroup, 2) chunked_scan_kernel(const __grid_constant__ StateScanArgs a) {
  extern __shared__ __align__(1024) uint8_t chunk_smem[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const StateRows& b = a.batch;
  const int h = static_cast<int>(blockIdx.x), s = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int begin = b.row_begin[s], end = b.row_begin[s + 1];
  if (end - begin < a.chunked_rows) return;
  const uint32_t smem = ptx::smem_address(chunk_smem);
  auto* steps = reinterpret_cast<ChunkSteps*>(chunk_smem + kSteps);
  const float a_h = a.a[h], bias = a.dt_bias[h], skip = a.skip[h];
  // Heads alternate, or the last rows' scores, the most, would all be of one quarter of the multiprocessor.
  const int score_tile = kWarpgroup || h % 2 == 0 ? warp : 3 - warp;
  const bool steps_warp = score_tile == 0;  // it has the fewest scores

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
  if constexpr (kWarpgroup)  // tiles above the diagonal stay zeros
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kPanel / 16; i += kScanWarpgroup)
      *reinterpret_cast<uint4*>(chunk_smem + kScoresHigh + 16 * i) = {0, 0, 0, 0};
  int places[2];
  float raw[2]{};
  read_places(begin, places);
  Chunk next = chunk_at(begin, end, places);
  load_chunk(a, smem, next, h);
  ptx::cp_async_commit();
  read_places(next.first + next.count, places);
  if (steps_warp) {
    read_steps(next, raw);
    write_steps(steps[0], next, raw, a_h);
  }

  // This lane's values of the state: [4 columns apart of the state][of the head], transposed.
  const int column = 16 * warp + lane / 4;
  const auto state_at = [&](int place, int n, int i) {
    const int at = (8 * n + 2 * (lane % 4) + i % 2) * kScanDim + column + 8 * (i / 2);
    return b.states + place * b.state_floats + static_cast<int64_t>(h) * kScanState * kScanDim + at;
  };
  float state[kStateTiles][4];
  const int from = b.state_in[s];
#pragma unroll
  for (int n = 0; n < kStateTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) state[n][i] = from >= 0 ? *state_at(from, n, i) : 0.0f;

  for (int index = 0; next.count > 0; ++index) {
    const Chunk chunk = next;
    const int now = index % kStages, then = (index + 1) % kStages;
    const uint32_t stage = smem + now * kStageBytes;
    next = chunk_at(chunk.first + chunk.count, end, places);
    ptx::cp_async_wait<0>();
    if constexpr (kWarpgroup) ptx::fence_proxy_async();
    __syncthreads();  // this stage is filled, and nobody reads the other or the scores
    if (next.count > 0) load_chunk(a, smem + then * kStageBytes, next, h);
    ptx::cp_async_commit();
    read_places(next.first + next.count, places);
    if (steps_warp) read_steps(next, raw);

    float g[kRowTiles][4]{}, y[kRowTiles][4]{};
    uint32_t x[kScanChunk / 16][4];
    if constexpr (kWarpgroup) {
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
    } else {
      multiply_keys(stage, 16 * score_tile, g);
      write_scores(chunk_smem, g, steps[now], 16 * score_tile);
      if (steps_warp) write_steps(steps[then], next, raw, a_h);
      if (index > 0 || from >= 0) multiply_state(state, stage, steps[now], y);
      load_x(x, stage, 16 * warp);
      __syncthreads();  // the scores are there
      multiply_scores<0>(x, smem, y);
      multiply_scores<2>(x, smem, y);
      multiply_scores<4>(x, smem, y);
      multiply_scores<6>(x, smem, y);
      store_rows(a, chunk, h * kScanDim + column, skip, x, y);
      update_state(x, stage, steps[now], state);
    }
    if (!chunk.stores) continue;
    const int place = b.state_out[chunk.first + chunk.count - 1];
#pragma unroll
    for (int n = 0; n < kStateTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) *state_at(place, n, i) = state[n][i];
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
  const dim3 blocks(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.batch.sequences));
  launch(a.warpgroups ? chunked_scan_kernel<true> : chunked_scan_kernel<false>, blocks, kScanWarpgroup, kBytes, stream,
         pdl, a);
}

}  // namespace sluice::sm90
