// SPDX-License-Identifier: Apache-2.0
// GEMM1's bf16 rows to NVFP4 with a global scale of each row, in place in the rows layout, where the grouped GEMM does
// not do it itself (completes_token_rows()).
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

struct TokenRowsArgs {
  // Rows layout of k_blocks k-blocks of 64 columns: activations on entry, codes times block scales on return.
  uint8_t* rows;
  int k_blocks;
  float* row_scale;  // [rows]: decode factors
  const RowTile* tiles;
  const Header* header;
};

// max_tiles, max_n: the most tiles, and the most rows of a tile.
void launch_token_rows(const TokenRowsArgs& args, int64_t max_tiles, int max_n, Stream stream, bool pdl);

}  // namespace sluice::sm90
