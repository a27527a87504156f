// SPDX-License-Identifier: Apache-2.0
// Puts rows of x into the stages: rounded as the format of the products asks, in 128-byte swizzled k-blocks.
#pragma once

#include <type_traits>

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/sm90/few_rows/load.cuh"
#include "kernels/sm90/few_rows/shared.cuh"
#include "kernels/sm90/quantize/round.cuh"

namespace sluice::sm90 {

// Whether the kernel ever rounds an operand's rows so (format::fits): that of BF16 weights has no rounding code, and
// rows of packed weights that have a scale of their own come rounded (rounds_rows_first).
template <WeightOperand op>
__device__ constexpr bool rounds_to(Round r) {
  switch (r) {
    case Round::plain:
      return !is_fp8(op) && !block_scaled(op);
    case Round::fp8_static:
      return op == WeightOperand::fp8 || op == WeightOperand::fp8_f32;
    case Round::fp8_token:
      return op == WeightOperand::fp8;
    case Round::fp8_group:
      return block_scaled(op);
    case Round::mxfp8:
      return op == WeightOperand::mxfp8 || op == WeightOperand::mxfp4;
    case Round::nvfp4:
      return op == WeightOperand::nvfp4;
    default:
      return false;
  }
}
// Formats whose rows have a scale of their own.
template <WeightOperand op>
__device__ constexpr bool scales_few_rows(Round r) {
  return rounds_to<op>(Round::fp8_token) && r == Round::fp8_token;
}

// Where a lane's eight values of a piece of a stage lie.
template <class T>
struct Place {
  static constexpr int columns = T::k_blocks * k_block_columns(T::op);
  static constexpr int row_lanes = columns / 8, rows_at_once = rows_per_piece<T>(), pieces = row_pieces<T>(T::max_n);
  static_assert(row_lanes * rows_at_once == 32 && T::max_n % rows_at_once == 0);
  int row, column;  // within the stage, of piece 0
  __device__ Place() {
    const int lane = threadIdx.x & 31;
    row = lane / row_lanes;
    column = lane % row_lanes * 8;
  }
};

// Bytes from the beginning of a stage's rows to eight BF16 values: k-blocks of 64 columns, swizzled.
template <class T>
__device__ __forceinline__ int place_in_stage(int row, int column) {
  return (column >> 6) * (T::max_n * 128) + swizzled(row, (column & 63) >> 3);
}

template <class T, class X>
__device__ __forceinline__ void store_eight(const FewRowsArgs& a, const FewShared<T>& smem, const InputScale& scale,
                                            int stage, int row, int column, const Eight<X>& values, bool real) {
  uint8_t* x = smem.x(stage);
  constexpr bool kPlain = rounds_to<T::op>(Round::plain), kGroups = T::block_scaled;
  uint4* bf16 = reinterpret_cast<uint4*>(x + place_in_stage<T>(row, column));
  float v[8];
  widen(values, v);
  if constexpr (kPlain)
    if (T::op == WeightOperand::bf16 || a.round == Round::plain) {
      if (real) *bf16 = sizeof(X) == 2 ? values.words[0] : rounded_bf16(Round::plain, v, 0, {}, 1.0f, 1.0f);
      return;
    }
  if constexpr (T::op != WeightOperand::bf16) {
    // An operand is rounded to one format besides plain; only FP8 has a second one.
    constexpr Round kOnly = kGroups                           ? Round::fp8_group
                            : T::op == WeightOperand::nvfp4   ? Round::nvfp4
                            : T::op == WeightOperand::fp8_f32 ? Round::fp8_static
                                                              : Round::mxfp8;
    const Round round = T::op == WeightOperand::fp8 ? a.round : kOnly;
    float divisor = scale.inverse;
    if (scales_few_rows<T::op>(round)) divisor = smem.warp_divisors()[row];
    constexpr int kGroup = T::op == WeightOperand::fp8 ? 0 : group_columns(kOnly);
    const uint32_t amax = kGroup == 0 ? 0 : amax_lanes(amax8(v), kGroup / 8);
    if constexpr (is_fp8(T::op)) {
      if constexpr (kGroups) divisor = format::fp8_scale(format::amax_value(amax));
      const uint2 codes = rounded_e4m3(round, v, divisor);
      if (real) *reinterpret_cast<uint2*>(x + swizzled(row, column >> 4) + (column & 8)) = codes;
    } else {
      if constexpr (kGroups) divisor = group_scale(amax);
      const uint4 packed = rounded_bf16(round, v, amax, scale.global, scale.inverse, divisor);
      if (real) *bf16 = packed;
    }
    if constexpr (kGroups) {
      // By the lane that arrives on the stage. What other lanes write before a __syncwarp it passes on as well, but
      // racecheck takes that for a race now and then.
      const uint32_t real_lanes = __ballot_sync(0xffffffffu, real);
#pragma unroll
      for (int i = 0; i < Place<T>::rows_at_once; ++i) {
        const float of_row = __shfl_sync(0xffffffffu, divisor, i * Place<T>::row_lanes);
        if ((threadIdx.x & 31) == 0 && (real_lanes >> i * Place<T>::row_lanes & 1) != 0)
          smem.x_scale(stage)[row + i] = of_row;
      }
    }
  }
}

// The pieces of all stages in turn, each by the next warp. The next piece's load is under way while one is rounded.
template <class T, class X, bool kWide>
__device__ __forceinline__ void stream_few_rows_of(const FewRowsArgs& a, const FewShared<T>& smem, const Part& part,
                                                   int rows) {
  using P = Place<T>;
  const P place;
  const int lane = threadIdx.x & 31, pieces = row_pieces<T>(a.rows);
  const int steps = ceil_div(part.end - part.begin, T::k_blocks);
  const int total = steps * part.tasks;
  const int columns = min(a.k, part.end * k_block_columns(T::op));
  const X* x = static_cast<const X*>(a.x) + place.row * a.x_stride;
  const InputScale scale = *a.scale;
  // No more warps than the ring has pieces: one that was a whole ring ahead would take a stage for free that is not, as
  // a barrier tells only two uses of a stage apart.
  const int warps = min(T::x_warps, T::stages * pieces), warp = (static_cast<int>(threadIdx.x) >> 5) - 9;
  if (warp >= warps) return;
  struct Piece {
    int stage, step, piece;  // of all stages; of those of a task
    __device__ void next(int by, int pieces, int steps) {
      for (piece += by; piece >= pieces; piece -= pieces) {
        ++stage;
        if (++step == steps) step = 0;
      }
    }
  };
  const auto load = [&](const Piece& at) {
    const int first = at.piece * P::rows_at_once;
    const int column = part.begin * k_block_columns(T::op) + at.step * P::columns + place.column;
    return load_eight<kWide>(x + first * a.x_stride, column, columns, at.stage < total && first + place.row < rows);
  };
  Piece at{0, 0, 0};
  at.next(warp, pieces, steps);
  Eight<X> ahead = load(at);
  while (at.stage < total) {
    const Piece now = at;
    const Eight<X> v = ahead;
    at.next(warps, pieces, steps);
    ahead = load(at);
    const int stage = now.stage % T::stages, row = now.piece * P::rows_at_once + place.row;
    ptx::mbarrier_wait(smem.empty + stage, (now.stage / T::stages & 1) ^ 1);
    store_eight<T, X>(a, smem, scale, stage, row, place.column, v, row < rows);
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.full + stage);
  }
}

// BF16 rows that are not rounded are copied past the registers. A warp's next stage is under way, if there is room for
// it, while it waits for this one.
template <class T>
__device__ __forceinline__ void copy_few_rows(const FewRowsArgs& a, const FewShared<T>& smem, const Part& part,
                                              int rows) {
  using P = Place<T>;
  static_assert(!is_fp8(T::op));
  const P place;
  const int lane = threadIdx.x & 31, steps = ceil_div(part.end - part.begin, T::k_blocks);
  const int total = steps * part.tasks, first = part.begin * k_block_columns(T::op) + place.column;
  const auto* x = static_cast<const bf16_t*>(a.x) + place.row * a.x_stride + first;
  const int columns = a.k - first;                                         // from this lane's on
  constexpr int kWarps = T::x_warps < T::stages ? T::x_warps : T::stages;  // see above
  int i = (static_cast<int>(threadIdx.x) >> 5) - 9;
  if (i >= kWarps) return;
  const auto empty_phase = [](int i) { return static_cast<uint32_t>(i / T::stages & 1) ^ 1u; };
  const auto issue = [&](int i) {
    const int stage = i % T::stages, column = i % steps * P::columns;
    ptx::mbarrier_wait(smem.empty + stage, empty_phase(i));
    const uint32_t to = ptx::smem_address(smem.x(stage));
    const bf16_t* from = x + column;
#pragma unroll
    for (int piece = 0; piece < P::pieces; ++piece) {
      if (piece * P::rows_at_once >= rows) break;  // the whole warp
      const int row = place.row + piece * P::rows_at_once;
      const bool valid = row < rows && column < columns;
      ptx::cp_async_16(to + place_in_stage<T>(row, place.column),
                       valid ? static_cast<const void*>(from + piece * P::rows_at_once * a.x_stride) : a.x, valid);
    }
    ptx::cp_async_commit();
  };
  if (i < total) issue(i);
  for (; i < total; i += kWarps) {
    const int next = i + kWarps;
    const bool room = next < total && ptx::mbarrier_complete(smem.empty + next % T::stages, empty_phase(next));
    const bool ahead = __all_sync(0xffffffffu, room);
    if (ahead) {
      issue(next);
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane < row_pieces<T>(a.rows)) ptx::mbarrier_arrive(smem.full + i % T::stages);
    if (!ahead && next < total) issue(next);
  }
}

// What row n is divided by, and its decode factor.
template <class T>
__device__ __forceinline__ float row_scale(const FewRowsArgs& a, const FewShared<T>& smem, int n) {
  return format::fp8_scale(n < a.rows ? row_maximum(smem, a.splits, n) : 0.0f);
}

// Sends the largest magnitude of every row over this block's part of K to all blocks of the cluster. Run by warps 0
// to 7.
template <class T, class X>
__device__ __forceinline__ void send_maxima(const FewRowsArgs& a, const FewShared<T>& smem, const Part& part,
                                            int rows) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int first = part.begin * k_block_columns(T::op), end = min(a.k, part.end * k_block_columns(T::op));
  for (int row = warp; row < a.rows; row += 8) {
    uint32_t bits = 0;
    if (row < rows) {
      const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
      for (int column = first + 8 * lane; column < end; column += 256) {
        float v[8];
        widen(a.k % 8 == 0 ? load_eight<true>(x, column, end, true) : load_eight<false>(x, column, end, true), v);
        const uint32_t b = amax8(v);
        bits = b > bits ? b : bits;
      }
    }
    const float amax = format::amax_value(amax_lanes(bits, 32));
    if (a.splits == 1) {  // a launch without clusters has no st.async
      if (lane == 0) smem.maxima[row] = amax;
    } else if (lane < a.splits) {
      ptx::st_async_f32(ptx::mapa(ptx::smem_address(smem.maxima + part.rank * T::max_n + row), lane), amax,
                        ptx::mapa(ptx::smem_address(smem.maxima_full), lane));
    }
  }
  if (a.splits == 1 && lane == 0) ptx::mbarrier_arrive(smem.maxima_full);
}

template <class T, class X>
__device__ __forceinline__ void stream_few_rows(const FewRowsArgs& a, const FewShared<T>& smem, const Part& part) {
  const int rows = static_cast<int>(real_tokens(a.num_rows, a.rows));
  if (scales_few_rows<T::op>(a.round)) {
    // Each warp makes its own copy of all rows' scales: no barrier is needed between these warps.
    ptx::mbarrier_wait_cluster(smem.maxima_full, 0);
    float* divisors = smem.warp_divisors();
    for (int row = threadIdx.x & 31; row < T::max_n; row += 32) divisors[row] = row_scale<T>(a, smem, row);
    __syncwarp();
  }
  if constexpr (rounds_to<T::op>(Round::plain) && sizeof(X) == 2) {
    if (a.k % 8 == 0 && a.round == Round::plain) return copy_few_rows<T>(a, smem, part, rows);
    if (T::op == WeightOperand::bf16) return stream_few_rows_of<T, X, false>(a, smem, part, rows);
  }
  if (a.k % 8 == 0)
    stream_few_rows_of<T, X, true>(a, smem, part, rows);
  else
    stream_few_rows_of<T, X, false>(a, smem, part, rows);
}

}  // namespace sluice::sm90
