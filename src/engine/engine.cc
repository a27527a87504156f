// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>

#include "engine/answers.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace sluice::engine {

namespace {

bool same_shape(const model::CacheShape& a, const model::CacheShape& b) {
  const auto attention = [](const auto& x, const auto& y) {
    return x.heads == y.heads && x.key_width == y.key_width && x.value_width == y.value_width;
  };
  const auto mamba = [](const ops::MambaShape& x, const ops::MambaShape& y) {
    return x.heads == y.heads && x.head_dim == y.head_dim && x.groups == y.groups && x.state == y.state &&
           x.taps == y.taps;
  };
  return a.dtype == b.dtype && std::ranges::equal(a.attention, b.attention, attention) &&
         std::ranges::equal(a.mamba, b.mamba, mamba);
}
}  // namespace

struct Engine::Impl {
  // A sequence in a step, beside its Pass.
  struct Turn {
    Choice* choice = nullptr;
    int64_t new_tokens = 0;
  };

  Impl(Context context, const model::Model& m, const text::Tokenizer* t, const EngineConfig& c)
      : ctx(std::move(context)),
        model(&m),
        tokenizer(t),
        config(completed(c, m.info())),
        recurrent(!m.cache_shape().mamba.empty()),
        scheduler(scheduler_config(config, recurrent)),
        runner(ctx, m, cache_config(config, recurrent), config.speculative_steps) {}

  Limits limits() const { return {model->info().vocab, config.context_length, tokenizer != nullptr}; }
  void prepare(std::span<const PlanEntry> plan);
  bool run_model();
  void choose();
  void choose(Pass& pass, Turn& turn);
  void settle();
  void fail_all(const char* sentence);
  void publish();

  Context ctx;
  const model::Model* model;
  const text::Tokenizer* tokenizer;
  EngineConfig config;
  bool recurrent;
  HashKey key = random_key();
  Scheduler scheduler;
  Runner runner;
  Metrics metrics;
  Answers answers{scheduler, metrics};
  // Of the current step; reused.
  std::vector<Pass> passes;
  std::vector<Turn> turns;
  std::vector<Followed> followed;
  std::vector<BlockHash> hashes;
  double model_seconds = 0, sampling_seconds = 0;
};

Engine::Engine(Context ctx, const model::Model& model, const text::Tokenizer* tokenizer, const EngineConfig& config)
    : impl_(std::make_unique<Impl>(std::move(ctx), model, tokenizer, config)) {}
Engine::~Engine() = default;

RequestId Engine::add(Request request, Sink sink, RequestId id) {
  Impl& e = *impl_;
  validate(request, limits());
  if (queued() >= e.config.max_queued) {
    ++e.metrics.requests_refused;
    fail(ErrorCode::busy, "the queue is full: {} answers wait; try again later", queued());
  }
  id = e.answers.new_id(id);
  ++e.metrics.requests;
  Choice::Setup setup;
  setup.tokenizer = e.tokenizer;
  setup.model_stops = e.model->info().stop_tokens;
  const auto length = static_cast<int64_t>(request.prompt.size());
  const bool scores = request.params.prompt_logprobs_from.has_value();
  setup.max_length = request.params.max_tokens ? length + *request.params.max_tokens : e.config.context_length;
  setup.block_size = e.config.block_size;
  setup.key = e.key;
  setup.hashes = e.scheduler.config().prefix_cache;
  for (int i = 0; i < request.params.n; ++i) {
    auto choice = std::make_unique<Choice>(id, i, request, setup);
    NewSequence s;
    s.length = length;
    s.max_length = setup.max_length;
    choice->take_hashes(s.hashes);
    s.scored = scores && i == 0;
    if (s.scored) s.reuse_limit = std::max<int64_t>(*request.params.prompt_logprobs_from - 1, 0);
    e.answers.insert(e.scheduler.add(std::move(s)), std::move(choice));
  }
  e.answers.open(id, std::move(sink), static_cast<int>(request.params.n));
  return id;
}

bool Engine::step() {
  Impl& e = *impl_;
  const auto start = Clock::now();
  const std::span<const PlanEntry> plan = e.scheduler.schedule();
  if (plan.empty()) return false;
  e.metrics.schedule_seconds.observe(seconds(Clock::now() - start));
  e.prepare(plan);
  if (e.run_model()) {
    e.choose();
    e.settle();
  }
  e.publish();
  const double all = seconds(Clock::now() - start);
  e.metrics.step_seconds.observe(all);
  e.metrics.overhead_seconds.observe(all - e.model_seconds - e.sampling_seconds);
  return true;
}

void Engine::Impl::prepare(std::span<const PlanEntry> plan) {
  const auto now = Clock::now();
  passes.clear();
  turns.clear();
  model_seconds = sampling_seconds = 0;
  ++metrics.steps;
  for (const PlanEntry& entry : plan) {
    Choice& c = answers.at(entry.sequence);
    if (entry.admitted && !c.started) {
      c.started = true;
      c.reserve();
      Usage& u = c.event().usage;
      u.cached_tokens = scheduler.cached_tokens(entry.sequence);
      u.queue_seconds = seconds(now - c.added);
      --metrics.queued;
      metrics.prompt_tokens += u.prompt_tokens;
      metrics.cached_tokens += u.cached_tokens;
      metrics.queue_seconds.observe(u.queue_seconds);
    }
    metrics.rows += entry.rows;
    passes.push_back({&entry, c.tokens(), c.scored_from() && entry.context < c.prompt_length(), 0, 0, 0});
    turns.push_back({&c, 0});
  }
}

bool Engine::Impl::run_model() {
  const auto start = Clock::now();
  try {
    runner.forward(passes);
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
  model_seconds += seconds(Clock::now() - start);
  return !turns.front().choice->finished();
}

void Engine::Impl::choose() {
  const auto start = Clock::now();
  ctx.pool.parallel_for(static_cast<int64_t>(passes.size()), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    try {
      choose(passes[at], turns[at]);
    } catch (const std::exception& error) {
      turns[at].choice->finish(FinishReason::error, error.what());
    }
  });
  sampling_seconds += seconds(Clock::now() - start);
}

// Each row behind a right draft gives a token; speculate.h says why this is all.
void Engine::Impl::choose(Pass& pass, Turn& turn) {
  const PlanEntry& e = *pass.entry;
  Choice& c = *turn.choice;
  if (pass.all_logits)
    for (int64_t r = 0; r < e.rows && e.context + r + 1 < c.prompt_length(); ++r)
      c.score_prompt(e.context + r + 1, runner.logits(pass.first_logit + r));
  if (!e.last) return;
  if (c.prompt_only()) return c.finish(FinishReason::length);
  const std::span<const int32_t> drafts = runner.drafts(pass);
  const int64_t first = pass.first_logit + pass.logit_rows - 1 - e.drafts;
  for (int64_t i = 0; i <= e.drafts; ++i) {
    const int32_t token = c.advance(runner.logits(first + i));
    ++turn.new_tokens;
    if (c.finished() || i == e.drafts || token != drafts[static_cast<size_t>(i)]) return;
  }
}

// The scheduler, the states and the draft head learn what was accepted.
void Engine::Impl::settle() {
  const bool speculative = config.speculative_steps > 0;
  followed.clear();
  for (size_t i = 0; i < passes.size(); ++i) {
    const PlanEntry& e = *passes[i].entry;
    Choice& c = *turns[i].choice;
    const int64_t n = turns[i].new_tokens;
    metrics.generation_tokens += n;
    if (e.drafts > 0 && n > 0) {
      Usage& u = c.event().usage;
      ++metrics.verify_rounds;
      metrics.drafted += e.drafts;
      metrics.accepted += n - 1;
      ++u.verify_rounds;
      u.drafted += e.drafts;
      u.accepted += n - 1;
    }
    // The draft head does not follow what has ended, so its last blocks are not for others.
    if (c.finished() && (speculative || c.event().reason == FinishReason::error)) continue;
    hashes.clear();
    c.take_hashes(hashes);
    for (const BlockHash& h : hashes) scheduler.add_hash(e.sequence, h);
    scheduler.advance(e, n);
    if (c.finished() || !speculative) continue;
    runner.keep(passes[i], n);
    const int64_t kept = e.last ? e.rows - 1 - e.drafts + n : e.rows;
    followed.push_back({e.slot, e.context,
                        c.tokens().subspan(static_cast<size_t>(e.context) + 1, static_cast<size_t>(kept)), e.blocks,
                        passes[i].first_row, e.last});
  }
  if (followed.empty()) return;
  const auto start = Clock::now();
  try {
    runner.follow(followed);
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
  model_seconds += seconds(Clock::now() - start);
}

void Engine::Impl::fail_all(const char* sentence) {
  for (const Turn& t : turns)
    if (!t.choice->finished()) t.choice->finish(FinishReason::error, sentence);
}

void Engine::Impl::publish() {
  const auto now = Clock::now();
  for (const Pass& pass : passes) answers.publish(pass.entry->sequence, now);
  metrics.preemptions = scheduler.preemptions();
}

bool Engine::cancel(RequestId id) { return impl_->answers.cancel(id); }
void Engine::cancel_all() { impl_->answers.cancel_all(); }
bool Engine::idle() const { return impl_->scheduler.idle(); }
int64_t Engine::queued() const { return impl_->metrics.queued; }
void Engine::flush_cache() { impl_->scheduler.flush(); }

void Engine::replace_model(const model::Model& model) {
  const model::ModelInfo &now = impl_->model->info(), &next = model.info();
  check(same_shape(impl_->model->cache_shape(), model.cache_shape()) && now.vocab == next.vocab &&
            now.hidden == next.hidden && now.dtype == next.dtype && now.has_draft == next.has_draft,
        "the new model has other shapes than the {} it would replace; start anew for another model", now.architecture);
  cancel_all();
  flush_cache();
  impl_->model = &model;
  impl_->runner.set_model(model);
}

const EngineConfig& Engine::config() const { return impl_->config; }
const model::ModelInfo& Engine::model_info() const { return impl_->model->info(); }
Limits Engine::limits() const { return impl_->limits(); }
int64_t Engine::cache_bytes() const { return impl_->runner.cache_bytes(); }

Metrics Engine::metrics() const {
  Metrics m = impl_->metrics;
  const Scheduler& s = impl_->scheduler;
  m.running = s.running();
  m.waiting = s.waiting();
  m.blocks = s.pool().size();
  m.blocks_used = m.blocks - s.pool().available();
  m.blocks_cached = s.pool().cached();
  return m;
}

}  // namespace sluice::engine
