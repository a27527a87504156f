// SPDX-License-Identifier: Apache-2.0
// Bytes of 16 rows side by side to 64-byte blocks of a panel (weights/panel.h describes them).
#pragma once

#include <cstdint>

namespace sluice::weights {

// What becomes of the four bytes that a row has in a block.
enum class Place : uint8_t {
  dword,    // stay a dword: bf16
  nibbles,  // a dword: nibbles 0 2 4 6, then 1 3 5 7: 4-bit codes
  halves,   // bytes 0 and 2 in word r, 1 and 3 in word 16 + r: Fp8Order::halves
  pairs     // in each 16 bytes the first two bytes of four rows, then their last two: Fp8Order::pairs
};

// rows[16] of row_bytes, null for rows of zeros, padded with zeros to padded_bytes, a multiple of 16. Block b goes to
// out + b * stride.
void pack_codes(Place place, const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out,
                int64_t stride);

// Single bytes: byte g of row r goes to out[g * stride + r].
void pack_bytes(const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out, int64_t stride);

}  // namespace sluice::weights
