// SPDX-License-Identifier: Apache-2.0
#include "model/windows.h"

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
  std::vector<float> logits(want_logits ? static_cast<size_t>(most * info.vocab) : 0);
  std::vector<int32_t> blocks(static_cast<size_t>(ceil_div(window, kBlockSize)));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int32_t> positions(static_cast<size_t>(window)), rows(static_cast<size_t>(most));
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  CacheConfig config;
  config.blocks = static_cast<int64_t>(blocks.size());
  config.block_size = kBlockSize;
  const auto cache = model.make_cache(config);
  ops::Workspace workspace;

  const auto total = static_cast<int64_t>(ids.size());
  for (int64_t begin = 0; begin < total;) {
    const int64_t context = begin % window;
    const int64_t n = std::min({most, window - context, total - begin});
    const auto count = static_cast<size_t>(n);
    const std::span<const int32_t> tokens = ids.subspan(static_cast<size_t>(begin), count);
    const Sequence sequence{0, 0, n, context, blocks, false};
    const Batch batch{
        tokens, {positions.data() + context, count}, {&sequence, 1}, {rows.data(), want_logits ? count : 0}};
    model.forward(ctx, batch, *cache, workspace, {want_logits ? logits.data() : nullptr, nullptr, observer});
    use({tokens, begin, context, want_logits ? logits.data() : nullptr});
    begin += n;
    ctx.progress({what, begin, total, "tokens"});
  }
}

}  // namespace sluice::model
