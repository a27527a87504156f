// SPDX-License-Identifier: Apache-2.0
// Packs bytes of 16 weight rows into the 64-byte blocks of a panel (packed_weights.h describes the blocks).
#pragma once

#include <cstdint>

namespace sluice::kernels::cpu {

// Where the four bytes that a row has in a block are stored.
enum class CodeOrder : uint8_t {
  dword,      // unchanged in dword r: bf16
  nibbles,    // in dword r, as nibbles 0 2 4 6, then 1 3 5 7: 4-bit codes
  f16,        // bytes 0 and 2 in word r, 1 and 3 in word 16 + r: Fp8Order::f16
  bf16_pairs  // in each 16 bytes, bytes 0 and 1 of four rows, then their bytes 2 and 3: Fp8Order::bf16_pairs
};

// rows: 16 pointers to row_bytes each; null is a row of zeros. Rows are padded with zeros to padded_bytes, a multiple
// of
// 16. Block b is written to out + b * stride (bytes); the bytes between blocks are not touched.
void pack_codes(CodeOrder order, const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out,
                int64_t stride);

// The same for single bytes, which are block scales: byte g of row r is written to out[g * stride + r]. Any
// padded_bytes.
void pack_bytes(const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out, int64_t stride);

}  // namespace sluice::kernels::cpu
