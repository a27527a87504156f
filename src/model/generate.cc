// SPDX-License-Identifier: Apache-2.0
#include "model/generate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/math.h"

namespace sluice::model {

namespace {
constexpr int64_t kBlockSize = 64;

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

int64_t prefill_chunk_of(const Context& ctx, const Generator::Config& config) {
  check(config.prefill_chunk >= 0, "the prefill chunk is {} tokens; accepted: 1 or more, or 0 for the device's default",
        config.prefill_chunk);
  return config.prefill_chunk > 0 ? config.prefill_chunk : ops::traits_of(ctx.device().id()).prompt_rows;
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
      overlap_(config.overlap.value_or(ctx.device().id().asynchronous())),
      depth_(config.adaptive_drafts && steps_ > 0 ? std::make_optional<DraftDepth>(steps_) : std::nullopt),
      runner_(ctx, model, runner_config(model.info(), config, prefill_chunk_)),
      blocks_(static_cast<size_t>(ceil_div(config.max_tokens, kBlockSize))) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

// A text that is being made.
struct Generator::Text {
  const sampling::Sampler& sampler;
  int64_t max_new_tokens;
  const Emit& emit;
  Generated& out;
  int32_t next;     // chosen, not yet in the cache
  int64_t context;  // tokens in the cache

  int64_t left() const { return max_new_tokens - static_cast<int64_t>(out.ids.size()); }
};

// The token at `position`, from one row of logits.
int32_t Generator::choose(const sampling::Sampler& sampler, int64_t row, int64_t position) {
  edits_.clear();
  rows_.assign(1, sampler.row(static_cast<int32_t>(row), position, {}, {}, edits_));
  sampled_.resize(1);
  runner_.sample({rows_, edits_}, sampled_);
  return sampling::checked_token(sampled_[0], position);
}

// The head pairs the hidden state of each row of the last step with the token after it.
void Generator::advance_draft_head(std::span<const int32_t> next_tokens, int64_t context, bool decoding) {
  const Accepted accepted{0, context, next_tokens, blocks_, 0, decoding};
  runner_.advance_draft_head({&accepted, 1});
}

// Since the step before.
double Generator::period() {
  const auto now = Clock::now();
  return seconds(now - std::exchange(last_end_, now));
}

// From a step of `drafts` drafts that has just ended.
void Generator::learn(int64_t drafts, int64_t tokens) {
  if (!depth_) return;
  if (drafts == depth_->choose(1))
    depth_->took(period(), tokens);
  else
    depth_->took_otherwise(period(), 0);
}

Generated Generator::run(std::span<const int32_t> prompt, const GenerateOptions& options,
                         const std::function<bool(int32_t)>& on_token) {
  check(!prompt.empty(), "the prompt has no tokens; at least one is needed");
  check(options.max_new_tokens >= 0, "max_new_tokens is {}; it must be 0 or more", options.max_new_tokens);
  check(options.max_new_tokens <= max_tokens_ - static_cast<int64_t>(prompt.size()),
        "a prompt of {} tokens and {} new ones are more than the {} that memory was reserved for", prompt.size(),
        options.max_new_tokens, max_tokens_);
  sampling::Sampler sampler(options.sampling);
  sampler.see_prompt(prompt);
  Generated out;
  out.ids.reserve(static_cast<size_t>(options.max_new_tokens));
  if (options.max_new_tokens == 0) return out;

  // What the caller's function takes is the same for every number of drafts, so steps are compared without it.
  const auto wanted = [&](int32_t id) {
    if (!on_token) return true;
    const auto start = Clock::now();
    const bool more = on_token(id);
    last_end_ += Clock::now() - start;
    return more;
  };
  // Passes one id to the caller; false when the text ends with it.
  const Emit emit = [&](int32_t id) {
    out.ids.push_back(id);
    sampler.see(id);
    const bool more = wanted(id);
    const auto& stop = options.stop_tokens;
    if (std::find(stop.begin(), stop.end(), id) != stop.end()) return out.reason = FinishReason::stop, false;
    if (!more) return out.reason = FinishReason::cancelled, false;
    return static_cast<int64_t>(out.ids.size()) < options.max_new_tokens;
  };

  const auto start = last_end_ = Clock::now();
  Text text{sampler, options.max_new_tokens, emit, out, prefill(prompt, sampler), static_cast<int64_t>(prompt.size())};
  out.prefill_seconds = seconds(Clock::now() - start);
  const auto decode_start = Clock::now();
  decode(text);
  out.decode_seconds = seconds(Clock::now() - decode_start);
  return out;
}

// Returns the first new token.
int32_t Generator::prefill(std::span<const int32_t> prompt, const sampling::Sampler& sampler) {
  int32_t next = 0;
  const auto length = static_cast<int64_t>(prompt.size());
  for (int64_t context = 0; context < length;) {
    const int64_t n = std::min(prefill_chunk_, length - context);
    const bool last = context + n == length;
    runner_.clear();
    runner_.add(
        {0, prompt.subspan(static_cast<size_t>(context), static_cast<size_t>(n)), context, blocks_, last ? 1 : 0});
    runner_.run();
    if (last) next = choose(sampler, 0, length);
    double following = 0;
    if (steps_ > 0 && (!depth_ || depth_->follows())) {
      const auto start = Clock::now();
      next_.assign(prompt.begin() + context + 1, prompt.begin() + std::min(length, context + n + 1));
      if (last) next_.push_back(next);
      advance_draft_head(next_, context, last);
      following = seconds(Clock::now() - start);
    }
    if (depth_) depth_->took_otherwise(period(), following);
    context += n;
  }
  return next;
}

void Generator::decode(Text& text) {
  struct Begun {
    Generator& of;
    int64_t steps = 0;
    // Of an error or of a text that has ended: nobody wants their tokens.
    ~Begun() {
      for (; steps > 0; --steps) try {
          of.runner_.end_sample({});
        } catch (...) {  // what went wrong on the device is thrown again by the next call there
        }
    }
  } begun{*this};
  // Where a step begins before the token of the one before has come, the step after next is enqueued while the GPU is
  // at the next one. The host learns that a text has ended one step too late: that step is surplus. Penalties look at
  // the token before the one that is chosen.
  const int64_t most_begun = overlap_ && !text.sampler.needs_history() ? 2 : 1;
  for (bool more = text.emit(text.next); more;) {
    const int64_t drafts = std::min<int64_t>(this->drafts(), text.left() - 1);
    if (drafts > 0 && begun.steps == 0) {
      more = verify(text, drafts);
      continue;
    }
    if (drafts == 0)
      for (; begun.steps < std::min(most_begun, text.left()); ++begun.steps) begin_step(text, begun.steps);
    --begun.steps;
    more = end_step(text);
  }
}

// A step of one row, whose token goes from step to step without the host where `ahead` steps begun before it have not
// ended.
void Generator::begin_step(const Text& text, int64_t ahead) {
  const int64_t context = text.context + ahead;
  runner_.clear();
  runner_.add({.slot = 0,
               .tokens = {&text.next, 1},
               .context = context,
               .blocks = blocks_,
               .logit_rows = 1,
               .sampled = ahead > 0 ? 0 : -1});
  runner_.run();
  edits_.clear();
  rows_.assign(1, text.sampler.row(0, context + 1, {}, {}, edits_));
  runner_.begin_sample({rows_, edits_});
}

// False: the text ends.
bool Generator::end_step(Text& text) {
  sampled_.resize(1);
  runner_.end_sample(sampled_);
  text.next = sampling::checked_token(sampled_[0], ++text.context);
  ++text.out.forwards;
  learn(0, 1);
  return text.emit(text.next);
}

// A step that checks drafts. Row r chooses the token after verify_[r]; the next row counts only if its draft is that
// token. False: the text ends.
bool Generator::verify(Text& text, int64_t drafts) {
  const DraftRequest request{0, text.context, blocks_, drafts};
  runner_.make_drafts({&request, 1});
  const auto guessed = runner_.drafts(0).first(static_cast<size_t>(drafts));
  verify_.assign(1, text.next);
  verify_.insert(verify_.end(), guessed.begin(), guessed.end());
  const int64_t rows = 1 + drafts;
  runner_.clear();
  runner_.add({0, verify_, text.context, blocks_, rows, true});
  runner_.run();
  ++text.out.forwards;
  text.out.drafted += drafts;
  next_.clear();
  bool more = true;
  for (int64_t r = 0; r < rows && more; ++r) {
    text.next = choose(text.sampler, r, text.context + r + 1);
    next_.push_back(text.next);
    more = text.emit(text.next);
    const bool right = r + 1 < rows && text.next == verify_[static_cast<size_t>(r) + 1];
    text.out.accepted += right ? 1 : 0;
    if (!right) break;
  }
  const auto kept = static_cast<int64_t>(next_.size());
  runner_.commit(0, kept);
  if (!more) return false;
  advance_draft_head(next_, text.context, true);
  text.context += kept;
  if (depth_) depth_->verified(drafts, kept - 1);
  learn(drafts, kept);
  return true;
}

}  // namespace sluice::model
