// SPDX-License-Identifier: Apache-2.0
#include "model/generate.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/math.h"

namespace sluice::model {

namespace {
constexpr int64_t kBlockSize = 64;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int32_t largest(const std::vector<float>& logits, int64_t vocab) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.begin() + vocab) - logits.begin());
}
}  // namespace

Generator::Generator(const Model& model, int64_t max_tokens, int speculative_steps, int64_t prefill_chunk)
    : model_(model), max_tokens_(max_tokens), prefill_chunk_(prefill_chunk), steps_(speculative_steps) {
  const ModelInfo& info = model.info();
  check(max_tokens > 0 && max_tokens <= info.max_positions,
        "{} tokens, prompt and new ones; {} allows 1 to {} (max_position_embeddings)", max_tokens, info.architecture,
        info.max_positions);
  check(speculative_steps >= 0 && speculative_steps <= 64, "speculative steps is {}; accepted: 0 to 64",
        speculative_steps);
  check(prefill_chunk > 0, "the prefill chunk is {} tokens; it must be positive", prefill_chunk);
  if (speculative_steps > 0 && !info.has_draft)
    fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info.architecture);
  CacheConfig config;
  config.block_size = kBlockSize;
  config.blocks = ceil_div(max_tokens, kBlockSize);
  config.tentative_rows = steps_ > 0 ? steps_ + 1 : 0;
  cache_ = model.make_cache(config);
  blocks_.resize(static_cast<size_t>(config.blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  const auto rows = static_cast<size_t>(std::max<int64_t>(std::min(prefill_chunk, max_tokens), steps_ + 1));
  positions_.resize(rows);
  rows_.resize(rows);
  logits_.resize(static_cast<size_t>((steps_ + 1) * info.vocab));
  if (steps_ == 0) return;
  draft_logits_.resize(static_cast<size_t>(info.vocab));
  hidden_.resize(rows * static_cast<size_t>(info.hidden * bytes_of(info.dtype)));
  draft_hidden_.resize(hidden_.size());
  extend_.reserve(rows);
  drafts_.reserve(static_cast<size_t>(steps_));
  verify_.reserve(static_cast<size_t>(steps_) + 1);
}

void Generator::batch(std::span<const int32_t> tokens, int64_t context, bool tentative, int64_t logit_rows) {
  const size_t n = tokens.size();
  std::iota(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(n), static_cast<int32_t>(context));
  const auto wanted = static_cast<size_t>(logit_rows);
  std::iota(rows_.begin(), rows_.begin() + logit_rows, static_cast<int32_t>(n - wanted));  // the last ones
  sequence_ = {0, 0, static_cast<int64_t>(n), context, blocks_, tentative};
  batch_ = {tokens, {positions_.data(), n}, {&sequence_, 1}, {rows_.data(), wanted}};
}

void Generator::forward(Context& ctx, std::span<const int32_t> tokens, int64_t context, bool tentative,
                        int64_t logit_rows, bool want_hidden) {
  batch(tokens, context, tentative, logit_rows);
  model_.forward(ctx, batch_, *cache_, workspace_, {logits_.data(), want_hidden ? hidden_.data() : nullptr});
}

void Generator::draft(Context& ctx, std::span<const int32_t> tokens, int64_t context, const std::byte* hidden) {
  batch(tokens, context, false, 1);
  model_.draft(ctx, batch_, hidden, *cache_, workspace_, {draft_logits_.data(), draft_hidden_.data()});
}

// The first draft is there, from extending the head's cache; each further one continues from the head's own hidden
// state and its last draft. `context`: positions that the head's cache holds.
void Generator::make_drafts(Context& ctx, int64_t count, int64_t context) {
  const ModelInfo& info = model_.info();
  const auto row_bytes = info.hidden * bytes_of(info.dtype);
  drafts_.clear();
  if (count == 0) return;
  drafts_.push_back(largest(draft_logits_, info.vocab));
  int64_t last_row = static_cast<int64_t>(extend_.size()) - 1;
  while (static_cast<int64_t>(drafts_.size()) < count) {
    // The input of the next step is the output of this one: it moves out of the way first.
    std::copy_n(draft_hidden_.begin() + last_row * row_bytes, row_bytes, hidden_.begin());
    const int32_t token = drafts_.back();
    draft(ctx, {&token, 1}, context++, hidden_.data());
    last_row = 0;
    drafts_.push_back(largest(draft_logits_, info.vocab));
  }
}

Generated Generator::run(Context& ctx, std::span<const int32_t> prompt, const GenerateOptions& options,
                         const std::function<bool(int32_t)>& on_token) {
  const ModelInfo& info = model_.info();
  check(!prompt.empty(), "the prompt has no tokens; at least one is needed");
  check(options.max_new_tokens >= 0, "max_new_tokens is {}; it must be 0 or more", options.max_new_tokens);
  check(static_cast<int64_t>(prompt.size()) + options.max_new_tokens <= max_tokens_,
        "a prompt of {} tokens and {} new ones are more than the {} that memory was reserved for", prompt.size(),
        options.max_new_tokens, max_tokens_);
  const int steps = std::min(options.speculative_steps, steps_);
  sampling::Sampler sampler(options.sampling);
  sampler.see_prompt(prompt);
  const auto choose = [&](int64_t row, int64_t position) {
    const auto vocab = static_cast<size_t>(info.vocab);
    return sampler.sample({logits_.data() + static_cast<size_t>(row) * vocab, vocab}, position);
  };
  Generated out;
  out.ids.reserve(static_cast<size_t>(options.max_new_tokens));
  if (options.max_new_tokens == 0) return out;

  // Gives one id out; false when the text ends with it.
  const auto emit = [&](int32_t id) {
    out.ids.push_back(id);
    sampler.see(id);
    const bool wanted = !on_token || on_token(id);
    const auto& stop = options.stop_tokens;
    if (std::find(stop.begin(), stop.end(), id) != stop.end()) return out.reason = FinishReason::stop, false;
    if (!wanted) return out.reason = FinishReason::cancelled, false;
    return static_cast<int64_t>(out.ids.size()) < options.max_new_tokens;
  };

  const auto start = std::chrono::steady_clock::now();
  int64_t context = 0;  // tokens in the model's cache
  int32_t next = 0;     // chosen, not yet in the cache
  for (const auto length = static_cast<int64_t>(prompt.size()); context < length;) {
    const int64_t n = std::min(prefill_chunk_, length - context);
    const bool last = context + n == length;
    forward(ctx, prompt.subspan(static_cast<size_t>(context), static_cast<size_t>(n)), context, false, last ? 1 : 0,
            steps > 0);
    if (last) next = choose(0, length);
    if (steps > 0) {
      // The head pairs each hidden state with the token after it.
      extend_.assign(prompt.begin() + context + 1, prompt.begin() + std::min(length, context + n + 1));
      if (last) extend_.push_back(next);
      draft(ctx, extend_, context, hidden_.data());
    }
    context += n;
  }
  out.prefill_seconds = seconds_since(start);

  const auto decode_start = std::chrono::steady_clock::now();
  for (bool more = emit(next); more;) {
    const int64_t left = options.max_new_tokens - static_cast<int64_t>(out.ids.size());
    const int64_t count = std::min<int64_t>(steps, left - 1);
    make_drafts(ctx, steps > 0 ? count : 0, context);
    verify_.assign(1, next);
    verify_.insert(verify_.end(), drafts_.begin(), drafts_.end());
    const auto rows = static_cast<int64_t>(verify_.size());
    forward(ctx, verify_, context, rows > 1, rows, steps > 0);
    ++out.forwards;
    out.drafted += rows - 1;
    // Row r chooses the token after verify_[r]; the next row counts only if its draft is that token.
    extend_.clear();
    int64_t accepted = 0;
    for (int64_t r = 0; r < rows && more; ++r) {
      next = choose(r, context + r + 1);
      extend_.push_back(next);
      more = emit(next);
      const bool right = r + 1 < rows && next == drafts_[static_cast<size_t>(r)];
      accepted += right ? 1 : 0;
      if (!right) break;
    }
    out.accepted += accepted;
    const auto kept = static_cast<int64_t>(extend_.size());
    if (rows > 1) cache_->commit(0, kept);
    if (more && steps > 0) draft(ctx, extend_, context, hidden_.data());
    context += kept;
  }
  out.decode_seconds = seconds_since(decode_start);
  return out;
}

}  // namespace sluice::model
