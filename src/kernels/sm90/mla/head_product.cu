// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/head_product.cuh"

#include <algorithm>
#include <type_traits>

#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

// Weights [k, n]: short sums and wide results (DeepSeek-V3: 128 and 512).
template <HeadTile kTile>
struct ByK;
template <>
struct ByK<HeadTile::to_16> : HeadTileOf<16, 128, 1, 4, 3, false> {};
template <>
struct ByK<HeadTile::to_32> : HeadTileOf<32, 128, 1, 4, 3, false> {};
template <>
struct ByK<HeadTile::to_64> : HeadTileOf<32, 128, 1, 4, 3, true> {};
template <>
struct ByK<HeadTile::to_128> : HeadTileOf<64, 128, 2, 4, 3, true> {};
template <>
struct ByK<HeadTile::above> : HeadTileOf<64, 128, 2, 4, 3, true> {};
// Weights [n, k]: long sums and narrow results (512 and 128). Few rows: narrow tiles, so that there are several blocks
// for each multiprocessor.
template <HeadTile kTile>
struct ByN;
template <>
struct ByN<HeadTile::to_16> : HeadTileOf<16, 64, 1, 4, 6, false> {};
template <>
struct ByN<HeadTile::to_32> : HeadTileOf<32, 64, 2, 2, 5, false> {};
template <>
struct ByN<HeadTile::to_64> : HeadTileOf<64, 64, 2, 2, 4, false> {};
template <>
struct ByN<HeadTile::to_128> : HeadTileOf<64, 128, 2, 4, 4, false> {};
template <>
struct ByN<HeadTile::above> : HeadTileOf<128, 128, 4, 2, 3, false> {};

// use(kernel, tile) for what computes such a call.
template <HeadTile kTile, class Use>
void use_tile(bool weight_by_k, Use&& use) {
  if (weight_by_k)
    use(head_product_kernel<ByK<kTile>, true>, ByK<kTile>{});
  else
    use(head_product_kernel<ByN<kTile>, false>, ByN<kTile>{});
}
template <class Use>
void with_tile(HeadTile tile, bool weight_by_k, Use&& use) {
  switch (tile) {
    case HeadTile::to_16:
      return use_tile<HeadTile::to_16>(weight_by_k, use);
    case HeadTile::to_32:
      return use_tile<HeadTile::to_32>(weight_by_k, use);
    case HeadTile::to_64:
      return use_tile<HeadTile::to_64>(weight_by_k, use);
    case HeadTile::to_128:
      return use_tile<HeadTile::to_128>(weight_by_k, use);
    case HeadTile::above:
      return use_tile<HeadTile::above>(weight_by_k, use);
  }
}

constexpr int64_t kMostBlocks = 65535;  // of a grid's third dimension

}  // namespace

HeadTile choose_head_tile(int64_t rows) {
  return rows <= 16    ? HeadTile::to_16
         : rows <= 32  ? HeadTile::to_32
         : rows <= 64  ? HeadTile::to_64
         : rows <= 128 ? HeadTile::to_128
                       : HeadTile::above;
}

void launch_head_product(const HeadProductArgs& a, HeadTile tile, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  with_tile(tile, a.weight_by_k, [&](auto* kernel, auto of) {
    using Tile = decltype(of);
    const dim3 blocks(static_cast<unsigned>(ceil_div(a.n, Tile::kColumns)), static_cast<unsigned>(a.heads),
                      static_cast<unsigned>(std::min(ceil_div<int64_t>(a.rows, Tile::kRows), kMostBlocks)));
    launch(kernel, blocks, Tile::kThreads, Tile::shared_bytes(a.k), stream, pdl, a);
  });
}

void allow_head_product() {
  for (const HeadTile tile : kHeadTiles)
    for (const bool weight_by_k : {false, true})
      with_tile(tile, weight_by_k, [](auto* kernel, auto of) {
        using Tile = decltype(of);
        allow_shared_memory(kernel, Tile::shared_bytes(kMaxHeadSum));
      });
}

}  // namespace sluice::sm90
