// SPDX-License-Identifier: Apache-2.0
// The kernels of one operand and their host functions; compiled in a generated file (sources.cmake).
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/sm90/batch_rows/chain.cuh"
#include "kernels/sm90/batch_rows/kernel.cuh"
#include "kernels/sm90/batch_rows/launch.h"

namespace sluice::sm90 {

// f(the tile) for those of the operand.
template <WeightOperand op, class F>
void visit_batch_tiles(F&& f) {
  const auto visit = [&]<size_t... i>(std::index_sequence<i...>) {
    const auto one = [&]<BatchTileSize t>() {
      if constexpr (has_batch_tile(op, t)) f(BatchTile<op, t.rows, t.blocks>{});
    };
    (one.template operator()<kBatchTiles[i]>(), ...);
  };
  visit(std::make_index_sequence<std::size(kBatchTiles)>{});
}

// f(the tile) for each tile of a chain; none of an operand that has no chains.
template <WeightOperand op, class F>
void visit_chain_tiles(F&& f) {
  if constexpr (cuts_m_tiles(op)) {
    const auto visit = [&]<size_t... i>(std::index_sequence<i...>) { (f(ChainTile<op, kChainTiles[i]>{}), ...); };
    visit(std::make_index_sequence<std::size(kChainTiles)>{});
  }
}

template <WeightOperand op>
void allow_batch_rows_of() {
  visit_batch_tiles<op>([]<class T>(T) { allow_shared_memory(batch_rows<T>, T::smem_bytes); });
  visit_chain_tiles<op>([]<class T>(T) { allow_shared_memory(chain_rows<T>, kMostChainSmem); });
}

// False: no tile is the choice's.
template <WeightOperand op>
bool launch_batch_rows_of(const BatchRowsArgs& args, const BatchRowsChoice& choice, int multiprocessors, Stream stream,
                          bool pdl) {
  bool found = false;
  const int tasks = args.m_tiles * args.m_parts * args.row_tiles;
  if (choice.chain) {
    visit_chain_tiles<op>([&]<class T>(T) {
      if (T::rows != choice.tile) return;
      found = true;
      const ChainRing ring = ring_of(op, choice);
      BatchRowsArgs chain = args;
      chain.stages = ring.stages;
      chain.w_share = ring.w_share;
      chain.beyond = ring.beyond;
      launch(chain_rows<T>, static_cast<unsigned>(std::min(tasks, multiprocessors)), T::threads, ring.smem_bytes(),
             stream, pdl, chain);
    });
    return found;
  }
  visit_batch_tiles<op>([&]<class T>(T) {
    if (T::rows != choice.tile || T::blocks_per_sm != choice.blocks) return;
    found = true;
    // Without parts of K a block takes several tasks in turn, so that the streams never stop.
    const int clusters = args.parts > 1 ? tasks : std::min(tasks, multiprocessors * T::blocks_per_sm);
    launch_clusters(batch_rows<T>, args.parts, static_cast<unsigned>(clusters * args.parts), T::threads, T::smem_bytes,
                    stream, pdl, args);
  });
  return found;
}

// How many clusters of a kernel the current device runs at the same time: a cluster lies in one part of it.
template <class... Params>
int clusters_at_once(void (*kernel)(Params...), int cluster, int threads, int smem) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem);
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim.x = static_cast<unsigned>(cluster);
  size.val.clusterDim.y = size.val.clusterDim.z = 1;
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
  return clusters;
}

// Clusters of `size` blocks that the current device runs at the same time.
template <WeightOperand op>
int batch_clusters_of(int blocks_per_sm, int size) {
  int clusters = 0;
  visit_batch_tiles<op>([&]<class T>(T) {
    if (T::rows > 64 || T::blocks_per_sm != blocks_per_sm) return;  // the widest of up to 64 rows
    clusters = clusters_at_once(batch_rows<T>, size, T::threads, T::smem_bytes);
  });
  return clusters;
}

}  // namespace sluice::sm90
