// SPDX-License-Identifier: Apache-2.0
// A long text through a model in consecutive windows, each a new sequence, in pieces small enough for their logits.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "base/math.h"
#include "model/model.h"

namespace sluice::model {

// A piece of a window: `ids` are its tokens at positions `context` ...; logits [ids.size(), vocab], or null.
struct WindowPiece {
  std::span<const int32_t> ids;
  int64_t begin = 0;    // of ids in the whole text
  int64_t context = 0;  // position of the first in its window
  const float* logits = nullptr;
};

// Calls `use` after each piece. Long vocabularies make the pieces smaller: their logits stay below 64 MiB.
void run_windows(Context& ctx, const Model& model, std::span<const int32_t> ids, int64_t window, bool want_logits,
                 Observer* observer, std::string_view what, const std::function<void(const WindowPiece&)>& use);

}  // namespace sluice::model
