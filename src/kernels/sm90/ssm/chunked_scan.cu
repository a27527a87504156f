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
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/ssm/chunk_products.cuh"
#include "kernels/sm90/ssm/scan_segment.cuh"

namespace sluice::sm90 {

namespace {

// The chunks of a segment in their order. While one is computed, the next one is copied to the other stage of shared
// memory; its steps, and which of the rows after it store states, are read to registers. kStates: without C.
template <bool kStates>
struct ChunkReader {
  const StateScanArgs& a;
  const ScanSegment& segment;
  const ScanHead& head;
  uint8_t* memory;
  Chunk next;
  int places[2];   // state_out of the rows that follow `next`
  float raw[2]{};  // the first warp: dt of two rows of `next`, before softplus

  __device__ __forceinline__ uint32_t stage(int index) const {
    return ptx::smem_address(memory) + index % kStages * kStageBytes;
  }
  __device__ __forceinline__ ChunkSteps& steps(int index) const {
    return reinterpret_cast<ChunkSteps*>(memory + kSteps)[index % kStages];
  }
  __device__ __forceinline__ static bool steps_warp() { return threadIdx.x / 32 == 0; }

  __device__ __forceinline__ void read_places(int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      places[i] = first + lane + 32 * i < segment.end ? a.batch.state_out[first + lane + 32 * i] : -1;
  }
  __device__ __forceinline__ void read_steps() {
    const int lane = threadIdx.x % 32;
    const auto* dt = static_cast<const bf16_t*>(a.dt.data);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (2 * lane + i < next.count)
        raw[i] = to_float(dt[(next.first + 2 * lane + i) * a.dt.stride + head.index]) + head.dt_bias;
  }
  __device__ __forceinline__ void read_ahead() {
    ptx::cp_async_commit();
    read_places(next.first + next.count);
    if (steps_warp()) read_steps();
  }
  // Writes the steps of `next`, chunk `index`, to shared memory.
  __device__ __forceinline__ void finish_steps(int index) {
    if (steps_warp()) write_steps(steps(index), next, raw, head.a);
  }

  // The first chunk becomes `next`.
  __device__ __forceinline__ void begin() {
    read_places(segment.begin);
    next = chunk_at(segment.begin, segment.end, places);
    load_chunk<kStates>(a, stage(0), next, head.index);
    read_ahead();
    finish_steps(0);
  }
  // Returns `next`, chunk `index`, once it is in shared memory. The chunk after it becomes `next`.
  __device__ __forceinline__ Chunk take(int index) {
    const Chunk chunk = next;
    next = chunk_at(chunk.first + chunk.count, segment.end, places);
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    __syncthreads();  // this stage is filled, and nobody reads the other or the scores
    if (next.count > 0) load_chunk<kStates>(a, stage(index + 1), next, head.index);
    read_ahead();
    return chunk;
  }
};

// Tiles of scores above the diagonal stay zeros.
__device__ __forceinline__ void clear_scores(uint8_t* memory) {
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kPanel / 16; i += kScanWarpgroup)
    *reinterpret_cast<uint4*>(memory + kScoresHigh + 16 * i) = {0, 0, 0, 0};
}

// Begins y = S C and writes the scores of the chunk meanwhile. The product's second half still runs, and reads `half`,
// when this returns.
__device__ __forceinline__ void begin_rows(uint8_t* memory, uint32_t stage, const ChunkSteps& steps,
                                           const float (&state)[kStateTiles][4], HalfState& half,
                                           float (&y)[kRowTiles][4]) {
  float g[kRowTiles][4]{};
  half.split<0>(state);  // before the first product, or the compiler would wait for that one
  begin_keys(stage, g);
  half.begin<0>(stage, y);
  ptx::wgmma_wait<1>();
  pin_all(g);
  write_scores(memory, g, steps, warp_column());
  ptx::fence_proxy_async();
  ptx::wgmma_wait<0>();
  pin_all(y);
  half.split<1>(state);
  half.begin<1>(stage, y);
}

// Computes and stores the rows of chunk `index`, and makes `state` that after it.
__device__ __forceinline__ void compute_rows(ChunkReader<false>& reader, const Chunk& chunk, int index,
                                             float (&state)[kStateTiles][4]) {
  const uint32_t stage = reader.stage(index);
  const ChunkSteps& steps = reader.steps(index);
  uint32_t x[kScanChunk / 16][4];
  float y[kRowTiles][4]{};
  HalfState half;
  begin_rows(reader.memory, stage, steps, state, half, y);
  load_x(x, stage, warp_column());
  __syncthreads();  // the scores are there
  ptx::wgmma_wait<0>();
  pin_all(y);
  scale_rows(steps, y);
  begin_scores(x, ptx::smem_address(reader.memory), y);
  begin_update(x, stage, steps, state);
  reader.finish_steps(index + 1);
  ptx::wgmma_wait<1>();
  pin_all(y);
  store_rows(reader.a, chunk, reader.head.index * kScanDim + lane_column(), reader.head.skip, x, y);
  ptx::wgmma_wait<0>();
  pin_all(state);
}

// Makes `state` that after chunk `index`, without its rows, and `decay` what is left of the state before the segment.
__device__ __forceinline__ void compute_state(ChunkReader<true>& reader, int index, float (&state)[kStateTiles][4],
                                              float& decay) {
  const uint32_t stage = reader.stage(index);
  uint32_t x[kScanChunk / 16][4];
  load_x(x, stage, warp_column());
  begin_update(x, stage, reader.steps(index), state);
  reader.finish_steps(index + 1);
  decay *= reader.steps(index).whole;
  ptx::wgmma_wait<0>();
  pin_all(state);
}

// Computes the rows of a segment and stores the states that they name. `state`: before its first row.
__device__ __forceinline__ void scan_rows(ChunkReader<false> reader, float (&state)[kStateTiles][4]) {
  clear_scores(reader.memory);
  reader.begin();
  for (int index = 0; reader.next.count > 0; ++index) {
    const Chunk chunk = reader.take(index);
    compute_rows(reader, chunk, index, state);
    if (chunk.stores) store_state(reader.a, chunk.first + chunk.count - 1, state);
  }
}

// Stores what a segment adds to the state and what it leaves of the state before it.
__device__ __forceinline__ void scan_states(ChunkReader<true> reader) {
  float state[kStateTiles][4], decay = 1.0f;
  clear_state(state);
  reader.begin();
  for (int index = 0; reader.next.count > 0; ++index) {
    reader.take(index);
    compute_state(reader, index, state, decay);
  }
  const int after = static_cast<int>(blockIdx.z) + 1;
  store_carried(reader.a, after, state);
  if (threadIdx.x == 0) *carried_decay(reader.a, after) = decay;
}

// Grid: heads x sequences x segments. kStates: what the segments before the last add to the state, for a launch that
// computes the rows of all segments at once.
template <bool kStates>
__global__ void __launch_bounds__(kScanWarpgroup, 2) chunked_scan_kernel(const __grid_constant__ StateScanArgs a) {
  extern __shared__ __align__(1024) uint8_t chunk_smem[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const ScanSegment segment = scan_segment(a);
  if (segment.rows < a.chunked_rows || segment.begin >= segment.end) return;
  const ScanHead head = scan_head(a);
  float state[kStateTiles][4];
  if constexpr (kStates) {
    if (segment.first) {
      read_state(a, segment, state);
      store_carried(a, 0, state);
    }
    if (!segment.last) scan_states({a, segment, head, chunk_smem});
  } else {
    a.segments == 1 ? read_state(a, segment, state) : fold_carried(a, state);
    scan_rows({a, segment, head, chunk_smem}, state);
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
