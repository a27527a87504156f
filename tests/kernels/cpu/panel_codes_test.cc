// SPDX-License-Identifier: Apache-2.0
// The position of every code in a panel's blocks, by its definition in kernels/cpu/packed_weights.h, one code at a
// time.
#include "kernels/cpu/panel_codes.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/random.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int kRows = 16;

struct Rows {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<const uint8_t*> at;
  Rows(std::mt19937_64& rng, int64_t n) : bytes(kRows), at(kRows, nullptr) {
    for (size_t r = 0; r < kRows; ++r) {
      bytes[r].resize(static_cast<size_t>(n));
      for (uint8_t& b : bytes[r]) b = static_cast<uint8_t>(rng());
      if (rng() % 4 != 0) at[r] = bytes[r].data();  // exactly n bytes: ASan reports any read beyond
    }
  }
  int byte(int r, int64_t i) const {
    const auto row = static_cast<size_t>(r);
    return at[row] != nullptr && i < static_cast<int64_t>(bytes[row].size()) ? bytes[row][static_cast<size_t>(i)] : 0;
  }
  int nibble(int r, int64_t i) const { return byte(r, i / 2) >> (i % 2 * 4) & 15; }
};

TEST(PanelCodes, AreWhereTheLayoutSays) {
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const CodeOrder order : {CodeOrder::dword, CodeOrder::nibbles, CodeOrder::f16, CodeOrder::bf16_pairs})
    for (const int64_t n : {1, 2, 15, 16, 17, 31, 48, 61, 64, 130})
      for (const int64_t stride : {64, 128}) {
        SCOPED_TRACE(static_cast<int>(order));
        SCOPED_TRACE(n);
        const Rows rows(rng, n);
        const int64_t padded = (n + 15) / 16 * 16 + (rng() % 2 == 0 ? 0 : 32), blocks = padded / 4;
        std::vector<uint8_t> out(static_cast<size_t>((blocks - 1) * stride + 64), 0xa5);
        pack_codes(order, rows.at.data(), n, padded, out.data(), stride);
        for (int64_t b = 0; b < blocks; ++b) {
          const uint8_t* block = out.data() + b * stride;
          for (int r = 0; r < kRows; ++r)
            for (int i = 0; i < 4; ++i) {
              const int byte = rows.byte(r, 4 * b + i);
              if (order == CodeOrder::nibbles) {
                for (int k = 2 * i; k < 2 * i + 2; ++k) {
                  const int word = block[4 * r + k % 2 * 2] | block[4 * r + k % 2 * 2 + 1] << 8;
                  ASSERT_EQ(word >> (4 * (k / 2)) & 15, rows.nibble(r, 8 * b + k));
                }
              } else {
                const int where = order == CodeOrder::dword ? 4 * r + i
                                  : order == CodeOrder::f16 ? i % 2 * 32 + 2 * r + i / 2
                                                            : r / 4 * 16 + i / 2 * 8 + r % 4 * 2 + i % 2;
                ASSERT_EQ(block[where], byte);
              }
            }
          for (int64_t i = 64; i < stride && b + 1 < blocks; ++i) ASSERT_EQ(block[i], 0xa5) << "between blocks";
        }
      }
}

TEST(PanelCodes, BytesAreTransposed) {
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const int64_t n : {1, 3, 16, 23, 48, 101})
    for (const int64_t stride : {16, 32}) {
      const Rows rows(rng, n);
      const int64_t padded = n + static_cast<int64_t>(rng() % 3);
      std::vector<uint8_t> out(static_cast<size_t>((padded - 1) * stride + 16), 0xa5);
      pack_bytes(rows.at.data(), n, padded, out.data(), stride);
      for (int64_t g = 0; g < padded; ++g) {
        for (int r = 0; r < kRows; ++r) ASSERT_EQ(out[static_cast<size_t>(g * stride + r)], rows.byte(r, g)) << g;
        for (int64_t i = 16; i < stride && g + 1 < padded; ++i)
          ASSERT_EQ(out[static_cast<size_t>(g * stride + i)], 0xa5) << "between";
      }
    }
}

}  // namespace
}  // namespace sluice::kernels::cpu
