// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/grouped_gemm.h"

#include <algorithm>

#include "base/math.h"

namespace sluice::kernels::cpu {

namespace {
constexpr int64_t kTileFloats = int64_t{kMaxUnits} * kUnitOut;
constexpr int64_t kLookAheadBytes = 16384;  // about how far the kernels prefetch (micro/tile.h)

// A group's rows in blocks of at most kMaxRows: a row block by a run of units is a task.
struct RowBlock {
  int64_t group, row, m;
};

// Tasks long enough to hide their start (0.1 us), short enough that the last one ends soon after the others and that a
// thread which loses its core holds up little: 128 KiB of weights, or 4 million multiply-adds.
int64_t units_per_task(const weights::PanelStack& w, int64_t blocks, int64_t total_rows, int workers) {
  const int64_t rows = ceil_div(total_rows, blocks);
  const int64_t work = std::max(w.unit_bytes() * 32, rows * weights::kUnitRows * w.padded_cols());
  const int64_t by_size = std::max<int64_t>(1, (int64_t{4} << 20) / std::max<int64_t>(work, 1));
  const int64_t by_share = std::max<int64_t>(1, blocks * w.units() / (8 * workers));
  return std::min({by_size, by_share, w.units()});
}

// Units of the call that starts at `u`: as many as the kernel takes, several only where all are full.
int64_t units_per_call(const weights::PanelStack& w, const GemmChoice& choice, int64_t group, int64_t u, int64_t last) {
  const int64_t n = std::min<int64_t>(choice.units, last - u);
  return n == 1 || w.unit(group, u + n - 1).panels == weights::kUnitPanels ? n : std::max<int64_t>(n - 1, 1);
}
}  // namespace

GemmMemory carve_gemm_memory(Carver& carver, int workers, int64_t groups, int64_t rows) {
  GemmMemory m;
  m.tiles = carver.take<float>(int64_t{workers} * kTileFloats);
  m.scratch = carver.take<uint8_t>(int64_t{workers} * kScratchBytes);
  m.blocks = carver.take<int64_t>(3 * (std::min(groups, rows) + rows / kMaxRows));
  return m;
}

void grouped_gemm(Context& ctx, const Operand& x, const weights::PanelStack& w, const GroupedRows& rows,
                  const GemmMemory& memory, TileSink sink) {
  RowBlock* blocks = reinterpret_cast<RowBlock*>(memory.blocks);
  int64_t count = 0;
  for (int64_t g = 0; g < rows.groups; ++g) {
    const int64_t begin = rows.offsets[g], n = rows.offsets[g + 1] - begin;
    const int64_t parts = ceil_div<int64_t>(n, kMaxRows);
    for (int64_t p = 0; p < parts; ++p)
      blocks[count++] = {g, begin + n * p / parts, n * (p + 1) / parts - n * p / parts};
  }
  if (count == 0) return;
  const int64_t total_rows = rows.offsets[rows.groups] - rows.offsets[0];
  const int64_t run =
      std::min(round_up<int64_t>(units_per_task(w, count, total_rows, ctx.pool.size()), x.choice.units), w.units());
  const int64_t runs = ceil_div(w.units(), run);
  ctx.pool.parallel_for(count * runs, [&](int64_t task, int worker) {
    const RowBlock& b = blocks[task / runs];
    GemmArgs a;
    a.k = w.padded_cols();
    a.x = x.data;
    a.x_stride = x.stride;
    a.x_scale = x.row_scale;
    a.x_group = x.group_scale;
    a.x_group_stride = x.group_stride;
    if (rows.rows != nullptr) {
      a.x_rows = rows.rows + b.row;
    } else {
      a.x += b.row * x.stride;
      a.x_scale += b.row;
      if (a.x_group != nullptr) a.x_group += b.row * x.group_stride;
    }
    a.m = static_cast<int>(b.m);
    a.out = memory.tiles + int64_t{worker} * kTileFloats;
    a.scratch = memory.scratch + int64_t{worker} * kScratchBytes;
    const int64_t first = task % runs * run, last = std::min(first + run, w.units());
    a.stream.end = last < w.units() ? w.unit(b.group, last).codes : w.unit(b.group + 1, 0).codes;
    // Tasks go out one by one, so this thread's next one is most likely as many further as there are threads. After
    // the last one: lines that have just been read.
    const int64_t next = task + ctx.pool.size();
    const weights::UnitView after =
        next < count * runs ? w.unit(blocks[next / runs].group, next % runs * run) : w.unit(b.group, first);
    a.stream.jump = next < count * runs ? after.codes - a.stream.end : -4 * kLookAheadBytes;
    for (int64_t u = first; u < last; u += a.units) {
      const weights::UnitView unit = w.unit(b.group, u);
      a.units = static_cast<int>(units_per_call(w, x.choice, b.group, u, last));
      a.codes = unit.codes;
      a.scales = unit.scales;
      a.row_scale = unit.row_scale;
      a.panels = unit.panels;
      if (a.units > 1) {
        a.unit_codes = w.unit(b.group, u + 1).codes - unit.codes;
        a.unit_scales = w.unit(b.group, u + 1).scales - unit.scales;
      }
      a.first = u == first;
      a.last = u + a.units == last;
      const weights::UnitView following = a.last ? after : w.unit(b.group, u + a.units);
      a.next_codes = following.codes;
      a.next_scales = following.scales;
      x.choice.gemm(a);
      for (int i = 0; i < a.units; ++i)
        sink(TileOut{b.group, u + i, b.row, a.m, a.panels, a.out + int64_t{i} * kUnitOut, worker});
    }
  });
}

}  // namespace sluice::kernels::cpu
