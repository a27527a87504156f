// SPDX-License-Identifier: Apache-2.0
// How ops use the pool: no allocation per call (std::function keeps a reference_wrapper in place; a lambda with many
// captures it would copy to the heap), and no wake-up for work that one thread finishes sooner.
#pragma once

#include <algorithm>
#include <functional>

#include "device/context.h"

namespace sluice::ops::cpu {

// Waking a sleeping thread costs some microseconds; below about this many elementary steps one thread is quicker.
inline constexpr int64_t kWorthSharing = 1 << 16;

// body(task, worker) for each task in [0, tasks); `work`: elementary float steps of all tasks together.
template <class Body>
void parallel(Context& ctx, int64_t tasks, int64_t work, Body&& body) {
  if (tasks <= 1 || work < kWorthSharing || ctx.pool.size() == 1) {
    for (int64_t t = 0; t < tasks; ++t) body(t, 0);
    return;
  }
  ctx.pool.parallel_for(tasks, std::ref(body));
}

// body(begin, end) over [0, rows) in runs of rows, a few for each thread.
template <class Body>
void parallel_rows(Context& ctx, int64_t rows, int64_t work_per_row, Body&& body) {
  const int64_t pieces = std::min<int64_t>(rows, 4 * ctx.pool.size());
  parallel(ctx, pieces, rows * work_per_row, [&](int64_t t, int) { body(rows * t / pieces, rows * (t + 1) / pieces); });
}

}  // namespace sluice::ops::cpu
