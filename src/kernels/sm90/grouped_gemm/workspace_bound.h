// SPDX-License-Identifier: Apache-2.0
// The workspace of any call of up to T tokens. The need of exactly T tokens is not monotone: up to tuning::kSplitTokens
// their partial sums lie in the workspace, and narrow tiles pad more rows (BF16 [2048, 768] on 132 multiprocessors: 48
// tokens need 2.1 MB, 128 need 0.3).
#pragma once

#include <functional>
#include <vector>

#include "kernels/sm90/grouped_gemm/heuristic.h"

namespace sluice::sm90 {

class WorkspaceBound {
 public:
  using Bytes = std::function<int64_t(int64_t tokens)>;
  using Choice = std::function<GemmChoice(int64_t tokens)>;
  // exact: the bytes of a call of exactly that many tokens, at least 1; does not fall while the choice stays the same.
  // choice: what that call runs. Above tuning::kSplitTokens K is not split, and a tile that was left does not come
  // back.
  WorkspaceBound(Bytes exact, const Choice& choice);
  // The most that any call of up to `tokens` tokens needs: one table look-up and one call of `exact`.
  int64_t bytes(int64_t tokens) const;

 private:
  struct Bound {
    int64_t tokens, bytes;  // what calls of up to `tokens` need
  };
  Bytes exact_;
  std::vector<Bound>
      bounds_;  // ascending: every number of tokens up to tuning::kSplitTokens, then the last of each tile
};

}  // namespace sluice::sm90
