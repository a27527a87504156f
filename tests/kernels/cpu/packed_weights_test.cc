// SPDX-License-Identifier: Apache-2.0
// Packing many experts by several threads, from a stack and from matrices that lie apart, against every expert packed
// alone by one thread. What the layout holds is tested by the products (grouped_gemm_test.cc).
#include "kernels/cpu/packed_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/random.h"
#include "weights/region.h"

namespace sluice::kernels::cpu {
namespace {

using format::Format;
using weights::QuantTensor;

void fill(std::mt19937_64& rng, Tensor& t) {
  auto* bytes = static_cast<uint8_t*>(t.data());
  for (int64_t i = 0; i < (t.empty() ? 0 : t.bytes()); ++i) bytes[i] = static_cast<uint8_t>(rng() % 0x70);  // no NaN
}

QuantTensor random_codes(std::mt19937_64& rng, Format f, int64_t experts, int64_t n, int64_t k) {
  QuantTensor w = weights::make_quant_tensor(f, experts, n, k);
  fill(rng, w.codes), fill(rng, w.scales), fill(rng, w.global);
  return w;
}

// The same matrices in tensors of their own, at addresses that are aligned to no more than an element.
QuantTensor apart(const QuantTensor& w) {
  QuantTensor out = w;
  out.codes = {};
  const int64_t bytes = w.rows * w.row_bytes(), skip = bytes_of(w.codes.dtype());
  for (int64_t e = 0; e < w.experts; ++e) {
    auto memory = std::make_shared<Tensor>(DType::u8, Shape{bytes + skip});
    std::byte* at = static_cast<std::byte*>(memory->data()) + skip;
    std::memcpy(at, w.code_row(e, 0), static_cast<size_t>(bytes));
    out.apart.emplace_back(w.codes.dtype(), Shape{w.codes.dim(1), w.codes.dim(2)}, at, memory);
  }
  return out;
}

void expect_same(const PackedWeights& got, int64_t e, const PackedWeights& one, const std::string& what) {
  const auto same = [](const void* a, const void* b, const void* end_of_b) {
    return std::memcmp(a, b, static_cast<size_t>(static_cast<const char*>(end_of_b) - static_cast<const char*>(b))) ==
           0;
  };
  const NTileView a = got.n_tile(e, 0), b = one.n_tile(0, 0), end = one.n_tile(1, 0);
  EXPECT_TRUE(same(a.codes, b.codes, end.codes)) << what;
  EXPECT_TRUE(same(a.row_scale, b.row_scale, end.row_scale)) << what;
  for (int64_t t = 0; t < one.n_tiles() && b.scales != nullptr; ++t) {
    const int64_t codes = kNTile * got.padded_k() * format::info(got.format()).bits / 8;  // of an N-tile of two panels
    const int64_t bytes = (got.n_tile_bytes() - codes) * got.n_tile(e, t).panels / kNTilePanels;
    EXPECT_EQ(std::memcmp(got.n_tile(e, t).scales, one.n_tile(0, t).scales, static_cast<size_t>(bytes)), 0) << what;
  }
}

TEST(PackedWeights, RunsOfTilesAndMatricesThatLieApart) {
  ThreadPool one_thread(1), pool(3);
  Context alone{one_thread}, ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  // 63 N-tiles for three threads: runs of five, which end within the seven of an expert; a last N-tile of one panel;
  // one expert; fewer tiles than threads.
  for (const auto& [experts, n] : {std::pair{9, 200}, {4, 40}, {1, 330}, {2, 16}})
    for (const auto& [format, name] : format::kFormats)
      for (const bool gated : {false, true}) {
        const int64_t k = 160;
        const QuantTensor a = random_codes(rng, format, experts, n, k), b = random_codes(rng, format, experts, n, k);
        const QuantTensor a_apart = apart(a), b_apart = apart(b);
        const PackedWeights stack(ctx, a, gated ? &b : nullptr, Fp8Order::f16);
        PackedWeights there(ctx, b_apart, gated ? &a_apart : nullptr, Fp8Order::f16);
        there.refit(ctx, a_apart, gated ? &b_apart : nullptr);
        for (int64_t e = 0; e < experts; ++e) {
          const weights::Range only{e, e + 1}, rows{0, n}, cols{0, k};
          const QuantTensor one_a = weights::cut(a, only, rows, cols), one_b = weights::cut(b, only, rows, cols);
          const PackedWeights one(alone, one_a, gated ? &one_b : nullptr, Fp8Order::f16);
          const std::string what = fmt::format("{} of {}, {} rows of {}, gated {}", e, experts, n, name, gated);
          expect_same(stack, e, one, what + ", a stack");
          expect_same(there, e, one, what + ", apart");
        }
      }
}

}  // namespace
}  // namespace sluice::kernels::cpu
