// SPDX-License-Identifier: Apache-2.0
// A dense GEMM in the kernels' terms: whether they run it, what one call runs, where its workspace lies. Host
// arithmetic that needs no device.
#pragma once

#include "base/support.h"
#include "format/formats.h"
#include "kernels/sm90/grouped_gemm/workspace_bound.h"
#include "tensor/dtype.h"

namespace sluice::sm90 {

struct DenseSpec {
  int64_t rows = 0, cols = 0;  // N, K
  format::Format weights = format::Format::bf16;
  format::InputFormat inputs = format::InputFormat::plain;
  DType dtype = DType::bf16;   // of x and y
  bool fp8_f32_sums = false;   // FP8 weights are decoded and summed in float32, as in MoeSpec
  bool deterministic = false;  // one order of sums, whatever the number of tokens
};
// Whether these kernels run it, or a sentence on what they cannot do. Says nothing about the device.
Support supports_dense(const DenseSpec& spec);

WeightShape dense_shape(const DenseSpec& spec);

// With a null workspace only what lies before the pieces means anything.
struct DensePlan {
  GemmChoice choice;
  int m_groups;  // M-tile groups: the tasks of a tile of rows, per split of K
  int64_t rows, tiles;
  int64_t bytes = 0;  // of a call of exactly these tokens
  Header* header;
  RowTile* tiles_at;               // [tiles]
  int32_t *row_pair, *arrivals;    // [rows]; [tiles * m_groups] or null
  float* partial;                  // [rows * m_groups * rows of a task * splits], or null
  float *row_scale, *block_scale;  // [rows], [rows * scale runs], or null
  uint8_t* x;                      // [rows * k-blocks * 128]
};
// row_scales: whether rows come with a factor per row, or get one.
DensePlan plan_dense(const DenseSpec& spec, int multiprocessors, int64_t tokens, const GemmForce& force,
                     void* workspace, bool row_scales);

// What any call of up to a number of tokens needs.
WorkspaceBound dense_workspace(const DenseSpec& spec, int multiprocessors);

// Where a repacked matrix lies in one block of device memory, aligned to 256 bytes.
struct DenseMemory {
  MatrixMemory matrix;
  Span bias;          // [N] float32, given or not
  Span input_scales;  // InputScale: the calibrated one, and ones
  int64_t bytes;
};
DenseMemory dense_memory(const DenseSpec& spec);

}  // namespace sluice::sm90
