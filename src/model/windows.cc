// SPDX-License-Identifier: Apache-2.0
#include "model/windows.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/math.h"

namespace sluice::model {

namespace {
constexpr int64_t kBlockSize = 64, kLogits = int64_t{1} << 24, kMaxRows = 512;
}

void run_windows(Context& ctx, const Model& model, std::span<const int32_t> ids, int64_t window, bool want_logits,
                 Observer* observer, std::string_view what, const std::function<void(const WindowPiece&)>& use) {
  const ModelInfo& info = model.info();
  check(window >= 1 && window <= info.max_positions, "window is {} tokens; {} allows 1 to {} (max_position_embeddings)",
        window, info.architecture, info.max_positions);
  const int64_t most =
      std::min(window, want_logits ? std::clamp<int64_t>(kLogits / info.vocab, 16, kMaxRows) : kMaxRows);
  RunnerConfig config;
  config.cache.block_size = kBlockSize;
  config.cache.blocks = ceil_div(window, kBlockSize);
  config.rows = most;
  config.sequence_tokens = window;
  Runner runner(ctx, model, config);
  std::vector<int32_t> blocks(static_cast<size_t>(config.cache.blocks));
  std::iota(blocks.begin(), blocks.end(), 0);

  const auto total = static_cast<int64_t>(ids.size());
  for (int64_t begin = 0; begin < total;) {
    const int64_t context = begin % window;
    const int64_t n = std::min({most, window - context, total - begin});
    const std::span<const int32_t> tokens = ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    runner.clear();
    runner.add({0, tokens, context, blocks, want_logits ? n : 0});
    runner.run(observer);
    use({tokens, begin, context, runner});
    begin += n;
    ctx.progress({what, begin, total, "tokens"});
  }
}

}  // namespace sluice::model
