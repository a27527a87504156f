// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/grouped_gemm.h"

#include <algorithm>

#include "base/math.h"

namespace sluice::kernels::cpu {

namespace {
constexpr int64_t kOutFloats = int64_t{kMaxNTiles} * kNTileOutStride;
constexpr int64_t kPrefetchDistance = 16384;  // bytes; about how far ahead kernels prefetch (micro/prefetch.h)

void check_operands(const PackedRows& x, const PackedWeights& w, const GroupedRows& rows) {
  const CpuKernel& kernel = x.kernel;
  check(w.format() == kernel.weight_format && (info(w.format()).bits != 8 || w.fp8_order() == kernel.fp8_order),
        "the weights are {} packed for another kernel; the input rows are packed for kernel {} of {} weights",
        info(w.format()).name, kernel.name, info(kernel.weight_format).name);
  check(x.padded_k == w.padded_k(), "the input rows have {} columns with padding; the weights have {}", x.padded_k,
        w.padded_k());
  check(rows.groups == w.experts(), "there are {} groups of rows; the weights are {} matrices", rows.groups,
        w.experts());
  check(rows.input_rows != nullptr || rows.offsets[rows.groups] <= x.rows, "the groups have {} rows; {} are packed",
        rows.offsets[rows.groups], x.rows);
  check(rows.input_rows == nullptr || !kernel.contiguous_rows,
        "input_rows is given, but kernel {} reads contiguous rows; copy them into order", kernel.name);
}

// The contracts that micro/gemm_args.h states, for the first call of a task; later calls differ in the N-tiles only.
void check_gemm_args(const GemmArgs& a, const CpuKernel& kernel) {
  const bool has_block_scales = info(kernel.weight_format).group_k > 1;
  const bool weights = a.w.codes != nullptr && (a.w.scales != nullptr) == has_block_scales &&
                       a.w.row_scale != nullptr && a.w.k > 0 && a.w.k % kPackedKAlign == 0 && a.w.panels >= 1 &&
                       a.w.panels <= kNTilePanels && a.w.n_tiles >= 1 && a.w.n_tiles <= kernel.max_n_tiles &&
                       (a.w.n_tiles == 1 || a.w.panels == kNTilePanels);
  const bool input = a.x.data != nullptr && a.x.row_scale != nullptr &&
                     (a.x.indices == nullptr || !kernel.contiguous_rows) &&
                     (a.x.group_scale != nullptr) == kernel.input_group_scales && a.x.m >= 1 && a.x.m <= kMaxM;
  const bool output = a.out != nullptr && a.scratch != nullptr && reinterpret_cast<uintptr_t>(a.scratch) % 64 == 0;
  if (!weights || !input || !output)
    fail(ErrorCode::internal, "GEMM kernel {} got {} that break the contract of micro/gemm_args.h", kernel.name,
         !weights ? "weights"
         : !input ? "input rows"
                  : "output buffers");
}

// Splits each group's rows into blocks of nearly equal size, at most kMaxM. Returns the number of blocks.
int64_t list_row_blocks(const GroupedRows& rows, RowBlock* blocks) {
  int64_t count = 0;
  for (int64_t g = 0; g < rows.groups; ++g) {
    const int64_t begin = rows.offsets[g], n = rows.offsets[g + 1] - begin;
    const int64_t parts = ceil_div<int64_t>(n, kMaxM);
    for (int64_t p = 0; p < parts; ++p)
      blocks[count++] = {g, begin + n * p / parts, n * (p + 1) / parts - n * p / parts};
  }
  return count;
}

// A task is a row block by a run of N-tiles. It is long enough to hide its start (0.1 us). It is short enough that the
// last task ends soon after the others, and that a thread which loses its core delays little: 128 KiB of weights, or 4
// million multiply-adds. Tasks are whole calls of the kernel, unless these are too few for the workers: a router of 128
// outputs is one call, which one thread would read alone (0.5 MB, 70 us).
int64_t n_tiles_per_task(const PackedWeights& w, int64_t blocks, int64_t total_rows, int workers, int max_n_tiles) {
  const int64_t rows = ceil_div(total_rows, blocks);
  const int64_t work = std::max(w.n_tile_bytes() * 32, rows * kNTile * w.padded_k());
  const int64_t by_size = std::max<int64_t>(1, (int64_t{4} << 20) / std::max<int64_t>(work, 1));
  const int64_t by_share = std::max<int64_t>(1, blocks * w.n_tiles() / (8 * workers));
  const int64_t run = round_up<int64_t>(std::min({by_size, by_share, w.n_tiles()}), max_n_tiles);
  const int64_t calls = blocks * ceil_div(w.n_tiles(), run);
  return std::min(calls < workers ? ceil_div(blocks * w.n_tiles(), int64_t{workers}) : run, w.n_tiles());
}

// N-tiles of the call that starts at `t`: as many as the kernel takes, several only if all have two panels.
int64_t n_tiles_per_call(const PackedWeights& w, const CpuKernel& kernel, int64_t group, int64_t t, int64_t last) {
  const int64_t n = std::min<int64_t>(kernel.max_n_tiles, last - t);
  return n == 1 || w.n_tile(group, t + n - 1).panels == kNTilePanels ? n : std::max<int64_t>(n - 1, 1);
}

InputRows input_rows_of(const PackedRows& x, const GroupedRows& rows, const RowBlock& block) {
  InputRows in;
  in.data = x.data;
  in.stride = x.stride;
  in.row_scale = x.row_scale;
  in.group_scale = x.group_scale;
  in.group_stride = x.group_stride;
  if (rows.input_rows != nullptr) {
    in.indices = rows.input_rows + block.row;
  } else {
    in.data += block.row * x.stride;
    in.row_scale += block.row;
    if (in.group_scale != nullptr) in.group_scale += block.row * x.group_stride;
  }
  in.m = static_cast<int>(block.m);
  return in;
}
}  // namespace

GemmWorkspace allocate_gemm_workspace(BumpAllocator& allocator, int workers, int64_t groups, int64_t rows) {
  GemmWorkspace m;
  m.out = allocator.allocate<float>(int64_t{workers} * kOutFloats);
  m.scratch = allocator.allocate<uint8_t>(int64_t{workers} * kScratchBytes);
  // A group of n rows has at most 1 + n / kMaxM blocks, and none if n is 0.
  m.row_blocks = allocator.allocate<RowBlock>(std::min(groups, rows) + rows / kMaxM);
  return m;
}

void grouped_gemm(Context& ctx, const PackedRows& x, const PackedWeights& w, const GroupedRows& rows,
                  const GemmWorkspace& workspace, Epilogue epilogue) {
  check_operands(x, w, rows);
  const CpuKernel& kernel = x.kernel;
  const RowBlock* blocks = workspace.row_blocks;
  const int64_t count = list_row_blocks(rows, workspace.row_blocks);
  if (count == 0) return;
  const int64_t total_rows = rows.offsets[rows.groups] - rows.offsets[0];
  const int64_t run = n_tiles_per_task(w, count, total_rows, ctx.pool.size(), kernel.max_n_tiles);
  const int64_t runs = ceil_div(w.n_tiles(), run);
  ctx.pool.parallel_for(count * runs, [&](int64_t task, int worker) {
    const RowBlock& block = blocks[task / runs];
    GemmArgs a;
    a.w.k = w.padded_k();
    a.x = input_rows_of(x, rows, block);
    a.out = workspace.out + int64_t{worker} * kOutFloats;
    a.scratch = workspace.scratch + int64_t{worker} * kScratchBytes;
    const int64_t first = task % runs * run, last = std::min(first + run, w.n_tiles());
    a.task.stream.end = last < w.n_tiles() ? w.n_tile(block.group, last).codes : w.n_tile(block.group + 1, 0).codes;
    // Tasks are handed out one by one, so this thread's next task is most likely as many tasks ahead as there are
    // threads. After the last task, prefetches fall on lines that have just been read.
    const int64_t next = task + ctx.pool.size();
    const bool has_next = next < count * runs;
    const NTileView after =
        has_next ? w.n_tile(blocks[next / runs].group, next % runs * run) : w.n_tile(block.group, first);
    a.task.stream.jump = has_next ? after.codes - a.task.stream.end : -4 * kPrefetchDistance;
    for (int64_t t = first; t < last; t += a.w.n_tiles) {
      const NTileView n_tile = w.n_tile(block.group, t);
      a.w.n_tiles = static_cast<int>(n_tiles_per_call(w, kernel, block.group, t, last));
      a.w.codes = n_tile.codes;
      a.w.scales = n_tile.scales;
      a.w.row_scale = n_tile.row_scale;
      a.w.panels = n_tile.panels;
      if (a.w.n_tiles > 1) {
        a.w.codes_stride = w.n_tile(block.group, t + 1).codes - n_tile.codes;
        a.w.scales_stride = w.n_tile(block.group, t + 1).scales - n_tile.scales;
      }
      a.task.first_call = t == first;
      a.task.last_call = t + a.w.n_tiles == last;
      const NTileView following = a.task.last_call ? after : w.n_tile(block.group, t + a.w.n_tiles);
      a.task.next_codes = following.codes;
      a.task.next_scales = following.scales;
      if (a.task.first_call) check_gemm_args(a, kernel);
      kernel.gemm(a);
      for (int i = 0; i < a.w.n_tiles; ++i)
        epilogue(
            OutputTile{block.group, t + i, block.row, a.x.m, a.w.panels, a.out + int64_t{i} * kNTileOutStride, worker});
    }
  });
}

}  // namespace sluice::kernels::cpu
