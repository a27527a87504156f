// SPDX-License-Identifier: Apache-2.0
// Rows of tokens put together for one pass of the model; the memory is reused.
#pragma once

#include <vector>

#include "model/batch.h"

namespace sluice::engine {

class BatchBuilder {
 public:
  void clear();
  // One sequence's rows, at positions context, context + 1, ...; logits of its last `logit_rows` rows are wanted.
  // `blocks` must stay until the pass is over. Returns the index of its first logit row.
  int64_t add(int slot, std::span<const int32_t> tokens, int64_t context, std::span<const int32_t> blocks,
              int64_t logit_rows, bool tentative = false);
  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }
  bool empty() const { return tokens_.empty(); }
  model::Batch batch() const { return {tokens_, positions_, sequences_, logit_rows_}; }

 private:
  std::vector<int32_t> tokens_, positions_, logit_rows_;
  std::vector<model::Sequence> sequences_;
};

}  // namespace sluice::engine
