// SPDX-License-Identifier: Apache-2.0
// Groups of input rows by stacks of packed weights: y = x[row] * W[group]^T for the rows of every group, in tasks that
// any thread may take. docs/kernels/cpu_grouped_gemm.md.
#pragma once

#include "base/context.h"
#include "kernels/cpu/operand.h"
#include "weights/panel.h"

namespace sluice::kernels::cpu {

// A finished tile: `m` rows by the columns of one unit, for the caller to store as it wants.
struct TileOut {
  int64_t group = 0, unit = 0;
  int64_t row = 0;  // of the first one, counted over all groups
  int m = 0, panels = 0;
  float* values = nullptr;  // [m][kTileCols], may be overwritten
  int worker = 0;
};

class TileSink {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TileSink>)
      TileSink(F&& f)  // NOLINT: implicit, so that callers pass a lambda
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, const TileOut& t) { (*static_cast<std::remove_reference_t<F>*>(object))(t); }) {}
  void operator()(const TileOut& t) const { call_(object_, t); }

 private:
  void* object_;
  void (*call_)(void*, const TileOut&);
};

// Rows of group g: [offsets[g], offsets[g+1]). Row r reads operand row rows[r], or r when rows is null.
struct GroupedRows {
  int64_t groups = 0;
  const int32_t* offsets = nullptr;  // [groups + 1]
  const int32_t* rows = nullptr;
};

// Working memory of a call: for each worker the tiles of a kernel's call and decoded weights, and the list of tasks.
struct GemmMemory {
  float* tiles = nullptr;      // [workers][kMaxUnits][kUnitOut]
  uint8_t* scratch = nullptr;  // [workers][kScratchBytes]
  int64_t* blocks = nullptr;   // [3 * max_blocks + 1]
};
GemmMemory carve_gemm_memory(Carver& carver, int workers, int64_t groups, int64_t rows);

void grouped_gemm(Context& ctx, const Operand& x, const weights::PanelStack& w, const GroupedRows& rows,
                  const GemmMemory& memory, TileSink sink);

}  // namespace sluice::kernels::cpu
