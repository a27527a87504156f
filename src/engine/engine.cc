// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <unordered_map>

#include "base/math.h"
#include "engine/choice.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace sluice::engine {

namespace {
constexpr int64_t kDefaultCacheTokens = 65536;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

EngineConfig complete(EngineConfig c, const model::ModelInfo& info) {
  check(c.context_length >= 0 && c.context_length <= info.max_positions,
        "context_length is {}; accepted: 1 to {} (max_position_embeddings), or 0 for all", c.context_length,
        info.max_positions);
  check(c.max_running >= 1 && c.max_running <= 4096, "max_running is {}; accepted: 1 to 4096", c.max_running);
  check(c.max_queued >= 1, "max_queued is {}; accepted: 1 or more", c.max_queued);
  check(c.prefill_chunk >= 1 && c.prefill_chunk <= 1 << 20, "prefill_chunk is {}; accepted: 1 to 1048576",
        c.prefill_chunk);
  check(c.block_size >= 1 && c.block_size <= 4096, "block_size is {}; accepted: 1 to 4096", c.block_size);
  check(c.cache_tokens >= 0 && c.cache_tokens / c.block_size < INT32_MAX / 2,
        "cache_tokens is {}; accepted: 0 or more, fewer than 2^30 blocks", c.cache_tokens);
  check(c.state_snapshots >= 0 && c.state_snapshots <= 65536, "state_snapshots is {}; accepted: 0 to 65536",
        c.state_snapshots);
  check(c.speculative_steps >= 0 && c.speculative_steps <= 64, "speculative_steps is {}; accepted: 0 to 64",
        c.speculative_steps);
  if (c.speculative_steps > 0 && !info.has_draft)
    fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info.architecture);
  if (c.context_length == 0) c.context_length = info.max_positions;
  if (c.cache_tokens == 0)
    c.cache_tokens = std::min(c.max_running * c.context_length, std::max(kDefaultCacheTokens, c.context_length));
  c.cache_tokens = round_up(c.cache_tokens, c.block_size);
  c.context_length = std::min(c.context_length, c.cache_tokens);
  return c;
}

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

model::CacheConfig cache_config(const EngineConfig& c, bool recurrent) {
  model::CacheConfig out;
  out.blocks = c.cache_tokens / c.block_size;
  out.block_size = c.block_size;
  out.slots = c.max_running + (recurrent && c.prefix_cache ? c.state_snapshots : 0);
  out.tentative_rows = c.speculative_steps > 0 ? c.speculative_steps + 1 : 0;
  return out;
}

SchedulerConfig scheduler_config(const EngineConfig& c, bool recurrent) {
  SchedulerConfig out;
  out.max_running = c.max_running;
  out.prefill_budget = c.prefill_chunk;
  out.blocks = static_cast<int32_t>(c.cache_tokens / c.block_size);
  out.block_size = c.block_size;
  out.prefix_cache = c.prefix_cache;
  out.recurrent = recurrent;
  out.snapshots = c.prefix_cache ? c.state_snapshots : 0;
  out.drafts = c.speculative_steps;
  return out;
}
}  // namespace

struct Engine::Impl {
  struct Job {
    Sink sink;
    int open = 0;  // choices
  };
  // A sequence in a step, beside its Pass.
  struct Turn {
    Choice* choice = nullptr;
    int64_t new_tokens = 0;
  };

  Impl(Context context, const model::Model& m, const text::Tokenizer* t, const EngineConfig& c)
      : ctx(std::move(context)),
        model(&m),
        tokenizer(t),
        config(complete(c, m.info())),
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
  void publish(Handle handle, Clock::time_point now);
  void end(Handle handle);

  Context ctx;
  const model::Model* model;
  const text::Tokenizer* tokenizer;
  EngineConfig config;
  bool recurrent;
  HashKey key = random_key();
  Scheduler scheduler;
  Runner runner;
  std::unordered_map<RequestId, Job> jobs;
  std::vector<std::unique_ptr<Choice>> choices;  // by handle
  RequestId last_id = 0;
  Metrics metrics;
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
  if (id == 0) id = e.last_id + 1;
  check(e.jobs.count(id) == 0, "request id {} is in use", id);
  e.last_id = std::max(e.last_id, id);
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
    const auto handle = static_cast<size_t>(e.scheduler.add(std::move(s)));
    if (e.choices.size() <= handle) e.choices.resize(handle + 1);
    e.choices[handle] = std::move(choice);
    ++e.metrics.queued;
  }
  e.jobs[id] = {std::move(sink), static_cast<int>(request.params.n)};
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
    Choice& c = *choices[static_cast<size_t>(entry.sequence)];
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
      ++metrics.verify_rounds;
      metrics.drafted += e.drafts;
      metrics.accepted += n - 1;
      c.event().usage.drafted += e.drafts;
      c.event().usage.accepted += n - 1;
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
  for (const Pass& pass : passes) publish(pass.entry->sequence, now);
  metrics.preemptions = scheduler.preemptions();
}

void Engine::Impl::publish(Handle handle, Clock::time_point now) {
  Choice& c = *choices[static_cast<size_t>(handle)];
  Event& event = c.event();
  const auto count = static_cast<int64_t>(event.tokens.size());
  if (count == 0 && event.prompt_logprobs.empty() && !c.finished()) return;
  if (count > 0) {
    const bool first = c.last_token == Clock::time_point{};
    const double gap = seconds(now - (first ? c.added : c.last_token));
    if (first) event.usage.first_token_seconds = gap;
    (first ? metrics.first_token_seconds : metrics.inter_token_seconds)
        .observe(first ? gap : gap / static_cast<double>(count));
    for (int64_t i = 1; i < count; ++i)
      metrics.inter_token_seconds.observe(first ? 0 : gap / static_cast<double>(count));
    c.last_token = now;
  }
  if (c.finished()) {
    event.usage.preemptions = scheduler.preemptions(handle);
    event.usage.total_seconds = seconds(now - c.added);
    metrics.request_seconds.observe(event.usage.total_seconds);
    scheduler.remove(handle);  // before the sink: what it held is free when the user hears of the end
  }
  try {
    jobs.at(event.request).sink(event);
  } catch (...) {  // a reader that failed: its request ends, the engine goes on
    if (!c.finished()) {
      c.finish(FinishReason::cancelled);
      scheduler.remove(handle);
    }
  }
  c.clear_event();
  if (c.finished()) end(handle);
}

void Engine::Impl::end(Handle handle) {
  std::unique_ptr<Choice> choice = std::move(choices[static_cast<size_t>(handle)]);
  if (!choice->started) --metrics.queued;
  switch (choice->event().reason) {
    case FinishReason::stop:
      ++metrics.finished_stop;
      break;
    case FinishReason::length:
      ++metrics.finished_length;
      break;
    case FinishReason::cancelled:
      ++metrics.finished_cancelled;
      break;
    case FinishReason::error:
    case FinishReason::none:
      ++metrics.finished_error;
      break;
  }
  const auto job = jobs.find(choice->event().request);
  if (--job->second.open == 0) jobs.erase(job);
}

bool Engine::cancel(RequestId id) {
  Impl& e = *impl_;
  if (e.jobs.count(id) == 0) return false;
  const auto now = Clock::now();
  for (size_t h = 0; h < e.choices.size(); ++h) {
    Choice* c = e.choices[h].get();
    if (c == nullptr || c->event().request != id) continue;
    c->finish(FinishReason::cancelled);
    e.publish(static_cast<Handle>(h), now);
  }
  return true;
}

void Engine::cancel_all() {
  while (!impl_->jobs.empty()) cancel(impl_->jobs.begin()->first);
}

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
