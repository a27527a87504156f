// SPDX-License-Identifier: Apache-2.0
// The grouped GEMM of the CPU: for every group g, Y = X[rows of g] * W[g]^T. Any thread may take any of its tasks.
// docs/kernels/cpu_grouped_gemm.md explains how it works.
#pragma once

#include "device/context.h"
#include "kernels/cpu/packed_rows.h"
#include "kernels/cpu/packed_weights.h"

namespace sluice::kernels::cpu {

// A finished tile of Y: m output rows by the outputs of one N-tile. Panels are those of PackedWeights: with gate and
// up, panel 0 of a row is gate and panel 1 is up.
struct OutputTile {
  int64_t group = 0;
  int64_t n_tile = 0;
  int64_t row = 0;  // the first output row, counted over all groups as in GroupedRows::offsets
  int m = 0;
  int panels = 0;           // columns from panels * kPanelN on are undefined; so are those from N on
  float* values = nullptr;  // [m][kNTile]; the epilogue may overwrite them
  int worker = 0;           // the calling thread, as in ThreadPool::parallel_for
};

// What becomes of a finished tile: bias, activation, rounding, storing. A reference to a function object, which must
// outlive the call. Several threads call it at once, with different tiles.
class Epilogue {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Epilogue>)
      Epilogue(F&& f)  // NOLINT: implicit, so that callers pass a lambda
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, const OutputTile& t) { (*static_cast<std::remove_reference_t<F>*>(object))(t); }) {}
  void operator()(const OutputTile& t) const { call_(object_, t); }

 private:
  void* object_;
  void (*call_)(void*, const OutputTile&);
};

// The output rows of group g are [offsets[g], offsets[g + 1]).
struct GroupedRows {
  int64_t groups = 0;                   // as many as PackedWeights::experts()
  const int32_t* offsets = nullptr;     // [groups + 1], ascending
  const int32_t* input_rows = nullptr;  // [offsets[groups]] the packed row of each output row; null: the same number
};

// Up to kMaxM output rows of one group.
struct RowBlock {
  int64_t group, row, m;
};

struct GemmWorkspace {
  float* out = nullptr;            // [workers][kMaxNTiles][kNTileOutStride]: tiles of one kernel call
  uint8_t* scratch = nullptr;      // [workers][kScratchBytes]: decoded weights
  RowBlock* row_blocks = nullptr;  // enough for any distribution of `rows` over `groups`
};
// Takes the memory for calls of up to `groups` groups and `rows` output rows with `workers` threads.
GemmWorkspace allocate_gemm_workspace(BumpAllocator& allocator, int workers, int64_t groups, int64_t rows);

// Calls `epilogue` once for each finished tile. An output depends on its row of X and on W alone, bit for bit, whatever
// the other rows, the groups and the number of threads. Throws invalid_argument if x and w are not packed for the same
// kernel and K, if `rows` has another number of groups than w or more rows than x, or if it gives input_rows to a
// kernel with contiguous_rows. Throws what `epilogue` throws.
void grouped_gemm(Context& ctx, const PackedRows& x, const PackedWeights& w, const GroupedRows& rows,
                  const GemmWorkspace& workspace, Epilogue epilogue);

}  // namespace sluice::kernels::cpu
