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

int64_t prefill_chunk_of(const Context& ctx, const Generator::Config& config) {
  check(config.prefill_chunk >= 0, "the prefill chunk is {} tokens; accepted: 1 or more, or 0 for the device's default",
        config.prefill_chunk);
  return config.prefill_chunk > 0 ? config.prefill_chunk : default_prefill_chunk(ctx.device().id());
}

RunnerConfig runner_config(const ModelInfo& info, const Generator::Config& config, int64_t prefill_chunk) {
  const int64_t max_tokens = config.max_tokens;
  const int steps = config.speculative_steps;
  check(max_tokens > 0 && max_tokens <= info.max_positions,
        "{} tokens, prompt and new ones; {} allows 1 to {} (max_position_embeddings)", max_tokens, info.architecture,
        info.max_positions);
  check(steps >= 0 && steps <= 64, "speculative steps is {}; accepted: 0 to 64", steps);
  if (steps > 0 && info.has_draft && !info.row_invariant)
    fail(ErrorCode::unsupported,
         "speculative steps is {}, but this model's experts add in an order that depends on the batch, so drafts would "
         "change the text; accepted: 0, or the model loaded with deterministic",
         steps);
  RunnerConfig c;
  c.cache.block_size = kBlockSize;
  c.cache.blocks = ceil_div(max_tokens, kBlockSize);
  c.cache.draft_rows = steps > 0 ? steps + 1 : 0;
  c.rows = std::max<int64_t>(std::min(prefill_chunk, max_tokens), steps + 1);
  c.sequence_tokens = max_tokens;
  c.drafts = steps;
  c.recording = config.recording;
  return c;
}
}  // namespace

Generator::Generator(Context& ctx, const Model& model, const Config& config)
    : max_tokens_(config.max_tokens),
      prefill_chunk_(prefill_chunk_of(ctx, config)),
      steps_(config.speculative_steps),
      overlap_(config.overlap.value_or(!ctx.device().id().is_host())),
      runner_(ctx, model, runner_config(model.info(), config, prefill_chunk_)),
      blocks_(static_cast<size_t>(ceil_div(config.max_tokens, kBlockSize))) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

// The token at `position`, from one row of logits.
int32_t Generator::choose(const sampling::Sampler& sampler, int64_t row, int64_t position) {
  edits_.clear();
  rows_.assign(1, sampler.row(static_cast<int32_t>(row), position, {}, {}, edits_));
  sampled_.resize(1);
  runner_.sample({rows_, edits_}, sampled_);
  return sampling::checked_token(sampled_[0], position);
}

void Generator::begin_choice(const sampling::Sampler& sampler, int64_t position) {
  edits_.clear();
  rows_.assign(1, sampler.row(0, position, {}, {}, edits_));
  runner_.begin_sample({rows_, edits_});
}

int32_t Generator::end_choice(int64_t position) {
  sampled_.resize(1);
  runner_.end_sample(sampled_);
  return sampling::checked_token(sampled_[0], position);
}

// The head pairs the hidden state of each row of the last step with the token after it.
void Generator::advance_draft_head(std::span<const int32_t> next_tokens, int64_t context, bool decoding) {
  const Accepted accepted{0, context, next_tokens, blocks_, 0, decoding};
  if (steps_ > 0) runner_.advance_draft_head({&accepted, 1});
}

Generated Generator::run(std::span<const int32_t> prompt, const GenerateOptions& options,
                         const std::function<bool(int32_t)>& on_token) {
  check(!prompt.empty(), "the prompt has no tokens; at least one is needed");
  check(options.max_new_tokens >= 0, "max_new_tokens is {}; it must be 0 or more", options.max_new_tokens);
  check(static_cast<int64_t>(prompt.size()) + options.max_new_tokens <= max_tokens_,
        "a prompt of {} tokens and {} new ones are more than the {} that memory was reserved for", prompt.size(),
        options.max_new_tokens, max_tokens_);
  const int steps = std::min(options.speculative_steps, steps_);
  sampling::Sampler sampler(options.sampling);
  sampler.see_prompt(prompt);
  Generated out;
  out.ids.reserve(static_cast<size_t>(options.max_new_tokens));
  if (options.max_new_tokens == 0) return out;

  // Passes one id to the caller; false when the text ends with it.
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
    runner_.clear();
    runner_.add(
        {0, prompt.subspan(static_cast<size_t>(context), static_cast<size_t>(n)), context, blocks_, last ? 1 : 0});
    runner_.run();
    if (last) next = choose(sampler, 0, length);
    next_.assign(prompt.begin() + context + 1, prompt.begin() + std::min(length, context + n + 1));
    if (last) next_.push_back(next);
    advance_draft_head(next_, context, last);
    context += n;
  }
  out.prefill_seconds = seconds_since(start);

  const auto decode_start = std::chrono::steady_clock::now();
  // Penalties look at the token before the one that is chosen.
  if (overlap_ && steps == 0 && !sampler.needs_history())
    decode_ahead(sampler, options.max_new_tokens, next, context, out, emit);
  else
    decode(sampler, options, next, context, out, emit);
  out.decode_seconds = seconds_since(decode_start);
  return out;
}

void Generator::decode(const sampling::Sampler& sampler, const GenerateOptions& options, int32_t next, int64_t context,
                       Generated& out, const Emit& emit) {
  const int steps = std::min(options.speculative_steps, steps_);
  for (bool more = emit(next); more;) {
    const int64_t left = options.max_new_tokens - static_cast<int64_t>(out.ids.size());
    verify_.assign(1, next);
    if (const int64_t count = std::min<int64_t>(steps, left - 1); count > 0) {
      const DraftRequest request{0, context, blocks_, count};
      runner_.make_drafts({&request, 1});
      const auto drafts = runner_.drafts(0).first(static_cast<size_t>(count));
      verify_.insert(verify_.end(), drafts.begin(), drafts.end());
    }
    const auto rows = static_cast<int64_t>(verify_.size());
    runner_.clear();
    runner_.add({0, verify_, context, blocks_, rows, rows > 1});
    runner_.run();
    ++out.forwards;
    out.drafted += rows - 1;
    // Row r chooses the token after verify_[r]; the next row counts only if its draft is that token.
    next_.clear();
    for (int64_t r = 0; r < rows && more; ++r) {
      next = choose(sampler, r, context + r + 1);
      next_.push_back(next);
      more = emit(next);
      const bool right = r + 1 < rows && next == verify_[static_cast<size_t>(r) + 1];
      out.accepted += right ? 1 : 0;
      if (!right) break;
    }
    const auto kept = static_cast<int64_t>(next_.size());
    if (rows > 1) runner_.commit(0, kept);
    if (more) advance_draft_head(next_, context, true);
    context += kept;
  }
}

// The step after next is enqueued while the GPU is at the next one, whose token goes from step to step without the
// host. The host learns it afterwards, and that the text has ended one step too late: that step is surplus.
void Generator::decode_ahead(const sampling::Sampler& sampler, int64_t max_new_tokens, int32_t next, int64_t context,
                             Generated& out, const Emit& emit) {
  constexpr int64_t kAhead = 2;
  struct Begun {
    Generator& of;
    int64_t choices = 0;
    // Of an error or of a text that has ended: nobody wants them.
    ~Begun() {
      for (; choices > 0; --choices) try {
          of.runner_.end_sample({});
        } catch (...) {  // what went wrong on the device is thrown again by the next call there
        }
    }
  } begun{*this};
  for (bool more = emit(next); more;) {
    const int64_t left = max_new_tokens - static_cast<int64_t>(out.ids.size());
    for (; begun.choices < std::min(kAhead, left); ++begun.choices) {
      const int64_t at = context + begun.choices;
      runner_.clear();
      runner_.add({.slot = 0,
                   .tokens = {&next, 1},
                   .context = at,
                   .blocks = blocks_,
                   .logit_rows = 1,
                   .sampled = begun.choices > 0 ? 0 : -1});
      runner_.run();
      begin_choice(sampler, at + 1);
    }
    --begun.choices;
    next = end_choice(++context);
    ++out.forwards;
    more = emit(next);
  }
}

}  // namespace sluice::model
