// SPDX-License-Identifier: Apache-2.0
// A long text through a model in consecutive windows, each a new sequence, in pieces small enough for their logits.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "model/runner.h"

namespace sluice::model {

// A piece of a window: `ids` are its tokens, at positions from `context` on. `runner` holds a row of logits for each.
struct WindowPiece {
  std::span<const int32_t> ids;
  int64_t begin = 0;    // of ids in the whole text
  int64_t context = 0;  // position of the first in its window
  Runner& runner;
};

// Calls `use` after each piece. Large vocabularies make the pieces smaller: their logits stay below 64 MiB.
void run_windows(Context& ctx, const Model& model, std::span<const int32_t> ids, int64_t window, bool want_logits,
                 Observer* observer, std::string_view what, const std::function<void(const WindowPiece&)>& use);

}  // namespace sluice::model
