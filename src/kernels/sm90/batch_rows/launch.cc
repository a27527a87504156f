// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/batch_rows/launch.h"

#include "base/error.h"
#include "kernels/sm90/grouped_gemm/heuristic.h"
#include "kernels/sm90/visit_operand.h"

namespace sluice::sm90 {

// Compiled by the generated files (sources.cmake).
template <WeightOperand op>
void allow_batch_rows_of();
template <WeightOperand op>
bool launch_batch_rows_of(const BatchRowsArgs& args, const BatchRowsChoice& choice, int multiprocessors, Stream stream,
                          bool pdl);

template <WeightOperand op>
int batch_clusters_of(int blocks_per_sm, int size);

void allow_batch_rows(WeightOperand operand) {
  visit_operand(operand, []<WeightOperand op>() { allow_batch_rows_of<op>(); });
}

BatchRoom device_batch_room(WeightOperand operand, int multiprocessors) {
  BatchRoom room;
  room.multiprocessors = multiprocessors;
  visit_operand(operand, [&]<WeightOperand op>() {
    for (int blocks = 1; blocks <= 2; ++blocks)
      for (int size = 1; size <= kMaxBatchCluster; ++size)
        room.clusters[blocks - 1][size - 1] = batch_clusters_of<op>(blocks, size);
  });
  return room;
}

void launch_batch_rows(const BatchRowsArgs& args, WeightOperand operand, const BatchRowsChoice& choice,
                       int multiprocessors, Stream stream, bool pdl) {
  check(args.rows > 0, "rows is {}; it must be positive", args.rows);
  bool launched = false;
  visit_operand(operand, [&]<WeightOperand op>() {
    launched = launch_batch_rows_of<op>(args, choice, multiprocessors, stream, pdl);
  });
  if (!launched)
    fail(ErrorCode::internal,
         "no product of a batch of rows is compiled for {}, tiles of {} rows, {} blocks per multiprocessor{}",
         name_of(operand), choice.tile, choice.blocks, choice.chain ? " in chains" : "");
}

}  // namespace sluice::sm90
