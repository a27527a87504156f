// SPDX-License-Identifier: Apache-2.0
// The arguments of one call of a GEMM kernel: up to kMaxM input rows by up to kMaxNTiles N-tiles of packed weights.
// Each struct states its contract; check_gemm_args() in kernels/cpu/grouped_gemm.cc checks them.
#pragma once

#include "kernels/cpu/micro/packed_layout.h"

namespace sluice::kernels::cpu {

inline constexpr int kMaxM = 128;     // input rows per call
inline constexpr int kMaxNTiles = 4;  // N-tiles per call
// Floats from one N-tile's outputs to the next one's. The 512 floats keep two N-tiles from being whole pages apart: a
// load waits for earlier stores whose addresses have the same low 12 bits.
inline constexpr int kNTileOutStride = kMaxM * kNTile + 512;
inline constexpr int kScratchBytes = 40960;  // decoded weights of one chunk of k

// Weights [n_tiles * 32, K'] in the layout of kernels/cpu/packed_weights.h.
//   codes, row_scale   never null
//   scales             null exactly if the format has no block scales
//   panels             1 or 2, the same for every N-tile of the call
//   n_tiles            1 to CpuKernel::max_n_tiles; more than 1 only if panels is 2
//   *_stride           bytes from one N-tile to the next; read only if n_tiles > 1
struct NTileWeights {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const float* row_scale = nullptr;  // [n_tiles][panels][16]: multiplies the finished sum
  int panels = 0;
  int n_tiles = 1;
  int64_t k = 0;  // K', a positive multiple of 32
  int64_t codes_stride = 0, scales_stride = 0;
};

// Input rows [m, K'] in the form CpuKernel::input_type.
//   data, row_scale    never null
//   indices            [m] which packed rows; null means rows 0 to m-1. Always null if CpuKernel::contiguous_rows
//   group_scale        null exactly if not CpuKernel::input_group_scales (only fp8_block weights have them)
//   m                  1 to kMaxM
struct InputRows {
  const uint8_t* data = nullptr;
  int64_t stride = 0;  // bytes
  const int32_t* indices = nullptr;
  const float* row_scale = nullptr;    // [packed row]
  const float* group_scale = nullptr;  // [packed row][K'/128]
  int64_t group_stride = 0;            // floats
  int m = 0;
};

// The codes that a task reads front to back, for prefetching (micro/prefetch.h). Neither is dereferenced.
struct PrefetchStream {
  const uint8_t* end = nullptr;  // of the codes of this task
  int64_t jump = 0;              // bytes from `end` to the codes that the thread reads next
};

// Which part of its task a call does. A task is a run of N-tiles of one group, in one or more calls by one thread.
//   first_call, last_call   a kernel may set up state in the first call (AMX tile shapes) and release it in the last
//   next_*                  what the thread reads after this call; only prefetched. next_scales is null like `scales`
struct TaskPosition {
  bool first_call = true, last_call = true;
  PrefetchStream stream;
  const uint8_t* next_codes = nullptr;
  const uint8_t* next_scales = nullptr;
};

// out[t][i][n] = (sum over k of x[i][k] * w[t][n][k]) * w.row_scale[t][n] * x.row_scale[i], for each N-tile t and i <
// m. Columns of an absent second panel are not written.
struct GemmArgs {
  NTileWeights w;
  InputRows x;
  TaskPosition task;
  float* out = nullptr;        // [n_tiles], kNTileOutStride apart, each [m][kNTile]
  uint8_t* scratch = nullptr;  // kScratchBytes of the calling thread, 64-byte aligned
};
using GemmFn = void (*)(const GemmArgs&);

}  // namespace sluice::kernels::cpu
