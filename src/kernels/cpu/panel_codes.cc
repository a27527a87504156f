// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/panel_codes.h"

#include <algorithm>
#include <cstring>

namespace sluice::kernels::cpu {

namespace {
// Vectors of the base architecture, 16 bytes. Each shuffle below is one instruction of SSE2.
typedef uint32_t Dwords __attribute__((vector_size(16)));
typedef uint64_t Qwords __attribute__((vector_size(16)));
typedef uint16_t Words __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

constexpr int kRows = 16, kStepBytes = 16;

template <class V>
V load(const uint8_t* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
void store(uint8_t* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Exchanges the bits of `mask` with the bits `shift` positions above them.
Dwords swap_bits(Dwords d, uint32_t mask, int shift) {
  const Dwords t = (d ^ d >> shift) & mask;
  return d ^ t ^ t << shift;
}
Dwords swap_middle_bytes(Dwords d) { return swap_bits(d, 0x0000ff00u, 8); }

// d: dwords of rows 0-3, 4-7, 8-11, 12-15 of a block.
template <CodeOrder kOrder>
void store_block(const Dwords (&d)[4], uint8_t* out) {
  if constexpr (kOrder == CodeOrder::f16) {
    for (int i = 0; i < 2; ++i) {
      const Words a = Words(swap_middle_bytes(d[2 * i])), b = Words(swap_middle_bytes(d[2 * i + 1]));
      store(out + 16 * i, __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14));
      store(out + 32 + 16 * i, __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15));
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      Dwords v = d[i];
      if constexpr (kOrder == CodeOrder::nibbles) v = swap_middle_bytes(swap_bits(v, 0x00f000f0u, 4));
      if constexpr (kOrder == CodeOrder::bf16_pairs) {
        const Words low = __builtin_shufflevector(Words(v), Words(v), 0, 2, 1, 3, 4, 5, 6, 7);
        const Dwords both = Dwords(__builtin_shufflevector(low, low, 0, 1, 2, 3, 4, 6, 5, 7));
        v = __builtin_shufflevector(both, both, 0, 2, 1, 3);
      }
      store(out + 16 * i, v);
    }
  }
}

// 16 bytes of each row make four blocks. 4 x 4 dwords are transposed, four rows at a time.
template <CodeOrder kOrder>
void pack_step(const uint8_t* const (&rows)[kRows], uint8_t* out, int64_t stride) {
  Dwords blocks[4][4];
  for (int i = 0; i < 4; ++i) {
    const auto a = load<Dwords>(rows[4 * i]), b = load<Dwords>(rows[4 * i + 1]);
    const auto c = load<Dwords>(rows[4 * i + 2]), d = load<Dwords>(rows[4 * i + 3]);
    const Qwords ab_low = Qwords(__builtin_shufflevector(a, b, 0, 4, 1, 5));
    const Qwords ab_high = Qwords(__builtin_shufflevector(a, b, 2, 6, 3, 7));
    const Qwords cd_low = Qwords(__builtin_shufflevector(c, d, 0, 4, 1, 5));
    const Qwords cd_high = Qwords(__builtin_shufflevector(c, d, 2, 6, 3, 7));
    blocks[0][i] = Dwords(__builtin_shufflevector(ab_low, cd_low, 0, 2));
    blocks[1][i] = Dwords(__builtin_shufflevector(ab_low, cd_low, 1, 3));
    blocks[2][i] = Dwords(__builtin_shufflevector(ab_high, cd_high, 0, 2));
    blocks[3][i] = Dwords(__builtin_shufflevector(ab_high, cd_high, 1, 3));
  }
  for (int j = 0; j < 4; ++j) store_block<kOrder>(blocks[j], out + j * stride);
}

// Transposes 16 x 16 bytes by interleaving v[i] with v[i + 8] four times.
void transpose_bytes(const uint8_t* const (&rows)[kRows], uint8_t* out, int64_t stride) {
  Bytes v[kRows], w[kRows];
  for (int r = 0; r < kRows; ++r) v[r] = load<Bytes>(rows[r]);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      const Bytes a = v[i], b = v[i + 8];
      w[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      w[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::copy_n(w, kRows, v);
  }
  for (int i = 0; i < kRows; ++i) store(out + i * stride, v[i]);
}

// Calls step(at, o) for each 16 bytes of the padded rows. at[r] points to bytes [o, o + 16) of row r.
template <class Step>
void for_each_step(const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, Step step) {
  alignas(16) uint8_t ends[kRows][kStepBytes] = {};
  alignas(16) static constexpr uint8_t kZeros[kStepBytes] = {};
  const uint8_t* at[kRows];
  const int64_t whole = row_bytes / kStepBytes * kStepBytes;
  for (int64_t o = 0; o < whole; o += kStepBytes) {
    for (int r = 0; r < kRows; ++r) at[r] = rows[r] != nullptr ? rows[r] + o : kZeros;
    step(at, o);
  }
  for (int64_t o = whole; o < padded_bytes; o += kStepBytes) {
    for (int r = 0; r < kRows; ++r) {
      std::memset(ends[r], 0, kStepBytes);
      if (rows[r] != nullptr && o < row_bytes)
        std::memcpy(ends[r], rows[r] + o, static_cast<size_t>(std::min<int64_t>(kStepBytes, row_bytes - o)));
      at[r] = ends[r];
    }
    step(at, o);
  }
}

template <CodeOrder kOrder>
void pack(const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out, int64_t stride) {
  for_each_step(rows, row_bytes, padded_bytes, [&](const uint8_t* const(&at)[kRows], int64_t o) {
    pack_step<kOrder>(at, out + o / 4 * stride, stride);
  });
}
}  // namespace

void pack_codes(CodeOrder order, const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out,
                int64_t stride) {
  switch (order) {
    case CodeOrder::dword:
      return pack<CodeOrder::dword>(rows, row_bytes, padded_bytes, out, stride);
    case CodeOrder::nibbles:
      return pack<CodeOrder::nibbles>(rows, row_bytes, padded_bytes, out, stride);
    case CodeOrder::f16:
      return pack<CodeOrder::f16>(rows, row_bytes, padded_bytes, out, stride);
    case CodeOrder::bf16_pairs:
      return pack<CodeOrder::bf16_pairs>(rows, row_bytes, padded_bytes, out, stride);
  }
}

void pack_bytes(const uint8_t* const* rows, int64_t row_bytes, int64_t padded_bytes, uint8_t* out, int64_t stride) {
  for_each_step(rows, row_bytes, padded_bytes, [&](const uint8_t* const(&at)[kRows], int64_t o) {
    if (o + kStepBytes <= padded_bytes) return transpose_bytes(at, out + o * stride, stride);
    for (int64_t g = o; g < padded_bytes; ++g)
      for (int r = 0; r < kRows; ++r) out[g * stride + r] = at[r][g - o];
  });
}

}  // namespace sluice::kernels::cpu
