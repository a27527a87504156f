// SPDX-License-Identifier: Apache-2.0
// The rows and tables of a GEMM with one weight matrix: row t is token t, tiles follow each other.
#pragma once

#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/quantize/tensor.h"

namespace sluice::sm90 {

struct DenseRowsArgs {
  RowsArgs rows;   // source `tokens`, rounding and destination; its tables are unused. If `out.data` is null the GEMM
                   // reads the rows where they are, and only the tables are made
  int64_t stride;  // elements from one of rows.tokens to the next
  // Or rows that are quantised already (rows.tokens null): QuantizeArgs' codes, scales and row_scales. row_scales may
  // be null where the input scale is calibrated.
  Coding coding;
  const uint8_t* codes;
  const void* scales;
  format::ScaleLayout layout;
  const float* row_scales;

  int max_n, step_n, m_groups;  // of the tile
  Header* header;               // written, as the tables of route.h
  RowTile* tiles;
  int32_t *row_pair, *arrivals;  // arrivals may be null
};

void launch_dense_rows(const DenseRowsArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
