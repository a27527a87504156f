// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>

#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "model/draft_depth.h"

namespace sluice::engine {

struct Engine::Impl {
  Impl(Context context, const model::Model& m, const text::Tokenizer* t, const EngineConfig& c)
      : ctx(std::move(context)),
        model(&m),
        info(m.info()),
        tokenizer(t),
        config(completed(c, info, m.cache_shape(), ctx.device().id(), ctx.device().memory())),
        recurrent(m.cache_shape().recurrent()),
        scheduler(scheduler_config(config, recurrent)),
        runner(ctx, m, runner_config(config, recurrent)),
        depth(config.adaptive_drafts && config.speculative_steps > 0
                  ? std::make_optional<model::DraftDepth>(config.speculative_steps)
                  : std::nullopt),
        overlap(config.overlap.value_or(ctx.device().id().asynchronous())),
        steps{{parts(), info.vocab, config.speculative_steps > 0},
              {parts(), info.vocab, config.speculative_steps > 0}} {}

  Step::Parts parts() { return {ctx, scheduler, runner, requests, observer, metrics}; }
  // Whether the step after this one may begin before this one has ended.
  bool may_follow() {
    return overlap && drafts() == 0 && traces_left == 0 && !requests.timed() && !scheduler.would_admit();
  }
  // How many drafts each sequence gets in the next step.
  int drafts() {
    if (!depth) return config.speculative_steps;
    return depth->choose(std::max<int64_t>(scheduler.running(), 1));
  }
  void learn_of_drafts(Clock::time_point start);
  void find_fault();
  void finish_begun_step();

  bool observable() const { return ctx.device().id().shares_host_memory() && !info.experts.empty(); }
  Limits limits() const { return {info.vocab, config.context_length, tokenizer != nullptr, observable()}; }
  void give_cache_events() {
    if (cache_events) cache_events->give();
  }
  void give_trace(std::span<const PlanEntry> plan, Clock::time_point start, Clock::time_point scheduled,
                  Clock::time_point published_from);

  Context ctx;
  const model::Model* model;  // null: dropped
  model::ModelInfo info;      // of the last one
  const text::Tokenizer* tokenizer;
  EngineConfig config;
  bool recurrent;
  HashKey key = random_key();
  Scheduler scheduler;
  model::Runner runner;
  Metrics metrics;
  RequestTable requests{scheduler, metrics};
  std::optional<CacheEvents> cache_events;
  StepObserver observer{info.layers};
  int64_t traces_left = 0;
  std::function<void(const StepTrace&)> trace;
  std::optional<model::DraftDepth> depth;     // nothing: always speculative_steps
  std::optional<Clock::time_point> last_end;  // of the last step; nothing: there was nothing to do since
  std::string fault;
  bool overlap;
  Step steps[2];  // the current one, and the one that may begin before it has ended
  Step* current = &steps[0];
  Step* next = &steps[1];
};

// Ends the step that was begun ahead, if there is one.
void Engine::Impl::finish_begun_step() {
  if (!current->begun()) return;
  current->end();
  give_cache_events();
  current->publish();
}

Engine::Engine(Context ctx, const model::Model& model, const text::Tokenizer* tokenizer, const EngineConfig& config)
    : impl_(std::make_unique<Impl>(std::move(ctx), model, tokenizer, config)) {}
Engine::~Engine() {
  if (!impl_->current->begun()) return;
  try {
    impl_->ctx.queue.wait();
  } catch (...) {  // nobody is left to hear of it
  }
}

RequestId Engine::add(Request request, Sink sink, RequestId id, bool admitted) {
  Impl& e = *impl_;
  validate(request, limits());
  if (!admitted && queued() >= e.config.max_queued) {
    ++e.metrics.requests_refused;
    fail(ErrorCode::busy, "the queue is full: {} answers wait; try again later", queued());
  }
  id = e.requests.new_id(id);
  ++e.metrics.requests;
  OutputSequence::Setup setup;
  setup.tokenizer = e.tokenizer;
  setup.model_stops = e.info.stop_tokens;
  const auto length = static_cast<int64_t>(request.prompt.size());
  const bool scores = request.params.prompt_logprobs_from.has_value();
  setup.max_length = request.params.max_tokens ? length + *request.params.max_tokens : e.config.context_length;
  setup.block_size = e.config.block_size;
  setup.vocab = e.info.vocab;
  setup.key = e.key;
  setup.hashes = e.scheduler.config().prefix_cache;
  setup.names = e.cache_events.has_value();
  for (int i = 0; i < request.params.n; ++i) {
    auto output = std::make_unique<OutputSequence>(id, i, request, setup);
    NewSequence s;
    s.length = length;
    s.priority = request.priority;
    s.max_length = setup.max_length;
    output->take_hashes(s.hashes);
    s.scored = scores && i == 0;
    if (request.routed_experts) s.reuse_limit = 0;  // what does not run has no experts
    if (s.scored && !request.routed_experts)
      s.reuse_limit = std::max<int64_t>(*request.params.prompt_logprobs_from - 1, 0);
    e.requests.insert(e.scheduler.add(std::move(s)), std::move(output));
  }
  e.requests.open(id, std::move(sink), static_cast<int>(request.params.n));
  return id;
}

bool Engine::step() {
  Impl& e = *impl_;
  const auto start = Clock::now();
  auto scheduled = start;
  std::span<const PlanEntry> plan;
  // A step that the one before has begun was in the model then.
  const double in_model_before = e.current->begun() ? e.current->model_seconds() : 0.0;
  double in_next_model = 0.0;
  if (!e.current->begun()) {
    e.requests.expire(start);
    const int drafts = e.drafts();
    plan = e.scheduler.schedule(drafts);
    if (plan.empty()) return e.last_end.reset(), false;
    scheduled = Clock::now();
    e.metrics.schedule_seconds.observe(seconds(scheduled - start));
    e.observer.timed = e.traces_left > 0;
    if (e.may_follow() && static_cast<int64_t>(plan.size()) == e.scheduler.running() && e.current->may_begin(plan))
      e.current->begin(plan);
    else
      e.current->run(plan, !e.depth || drafts > 0 || (e.depth->follows() && !only_decode(plan, drafts)));
  }
  const bool ahead = e.current->begun();
  if (ahead) {
    if (e.may_follow()) e.next->begin_after(*e.current);
    if (e.next->begun()) in_next_model = e.next->model_seconds();
    e.current->end();
    if (e.next->begun()) e.next->drop_finished();
  }
  if (e.current->failed()) e.find_fault();
  e.learn_of_drafts(start);
  const auto published_from = Clock::now();
  e.give_cache_events();
  e.current->publish();
  if (e.traces_left > 0 && !ahead) e.give_trace(plan, start, scheduled, published_from);
  const double all = seconds(Clock::now() - start);
  e.metrics.step_seconds.observe(all);
  const double in_model = e.current->model_seconds() - in_model_before + in_next_model;
  e.metrics.overhead_seconds.observe(std::max(0.0, all - in_model - e.current->sampling_seconds()));
  if (!ahead) return true;
  std::swap(e.current, e.next);
  if (!e.current->begun()) return true;
  e.current->drop_finished();
  if (e.current->dropped_all()) e.current->end();  // of texts that all ended one step before it
  return true;
}

// Memory that was missing is an error of one step; a device that has failed says so again.
void Engine::Impl::find_fault() {
  try {
    ctx.queue.wait();
  } catch (const std::exception& error) {
    if (fault.empty()) fault = error.what();
  }
}

// A step's time is the one since the end of the step before, where one followed the other.
void Engine::Impl::learn_of_drafts(Clock::time_point start) {
  if (!depth) return;
  constexpr std::chrono::milliseconds kPause{50};
  const auto now = Clock::now();
  const bool followed = last_end && start - *last_end < kPause;
  const double period = seconds(now - (followed ? *last_end : start));
  last_end = now;
  current->visit_drafts([&](int64_t drafts, int64_t right) { depth->verified(drafts, right); });
  if (followed && current->only_decodes(drafts()))
    depth->took(period, current->new_tokens());
  else
    depth->took_otherwise(period, current->following_seconds());
}

void Engine::Impl::give_trace(std::span<const PlanEntry> plan, Clock::time_point start, Clock::time_point scheduled,
                              Clock::time_point published_from) {
  StepTrace out{metrics.steps, 0, static_cast<int64_t>(plan.size()), observer.spans};
  for (const PlanEntry& entry : plan) out.rows += entry.rows;
  const auto now = Clock::now();
  const auto model_end = std::min(
      published_from,
      scheduled + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(current->model_seconds())));
  out.spans.push_back({"schedule", start, scheduled});
  out.spans.push_back({"model", scheduled, model_end});
  out.spans.push_back({"sample and accept", model_end, published_from});
  out.spans.push_back({"publish", published_from, now});
  out.spans.push_back({"step", start, now});
  --traces_left;
  trace(out);
}

void Engine::record_experts(bool on) {
  if (on && !impl_->observable())
    fail(ErrorCode::unsupported, "experts are counted of models with experts on the cpu only; this is {} on {}",
         impl_->info.architecture, to_string(impl_->ctx.device().id()));
  impl_->observer.record(on);
}
bool Engine::recording_experts() const { return impl_->observer.recording(); }
const ExpertCounts& Engine::expert_counts() const { return impl_->observer.counts(); }
void Engine::trace_steps(int64_t steps, std::function<void(const StepTrace&)> trace) {
  impl_->traces_left = steps;
  impl_->trace = std::move(trace);
}

bool Engine::cancel(RequestId id) {
  impl_->finish_begun_step();
  return impl_->requests.cancel(id);
}
void Engine::cancel_all() {
  impl_->finish_begun_step();
  impl_->requests.cancel_all();
}
void Engine::expire() {
  impl_->finish_begun_step();
  impl_->requests.expire(Clock::now());
}
bool Engine::timed() const { return impl_->requests.timed(); }
bool Engine::idle() const { return impl_->scheduler.idle(); }
const std::string& Engine::fault() const { return impl_->fault; }
int64_t Engine::queued() const { return impl_->metrics.queued; }
void Engine::flush_cache() {
  impl_->finish_begun_step();
  impl_->scheduler.flush();
  impl_->give_cache_events();
}

void Engine::publish_cache_events(CacheEventSink sink) {
  Impl& e = *impl_;
  if (!e.scheduler.config().prefix_cache) fail(ErrorCode::unsupported, "there is no prefix cache to publish events of");
  if (e.metrics.requests > 0)
    fail(ErrorCode::internal, "cache events are wanted after {} requests", e.metrics.requests);
  e.cache_events.emplace(e.requests, e.scheduler.pool().size(), e.config.block_size, std::move(sink));
  e.scheduler.listen(&*e.cache_events);
}

void Engine::retract_all() {
  impl_->finish_begun_step();
  impl_->scheduler.retract_all();
  impl_->requests.restart_scores();
}

void Engine::replace_model(const model::Model& model, InFlight requests) {
  const model::ModelInfo &now = impl_->info, &next = model.info();
  check(impl_->runner.cache_shape() == model.cache_shape() && now.vocab == next.vocab && now.hidden == next.hidden &&
            now.dtype == next.dtype && now.has_draft == next.has_draft,
        "the new model has other shapes than the {} it would replace; start anew for another model", now.architecture);
  validate(impl_->config, next);  // throws where this configuration could not have begun with it
  impl_->finish_begun_step();
  if (requests == InFlight::cancel) cancel_all();
  impl_->scheduler.flush_and_isolate();
  impl_->give_cache_events();
  impl_->info = next;
  impl_->model = &model;
  impl_->runner.set_model(model);
}

void Engine::drop_model() {
  impl_->finish_begun_step();
  if (impl_->scheduler.running() > 0)
    fail(ErrorCode::busy, "{} answers are being worked on; pause with abort or retract first",
         impl_->scheduler.running());
  impl_->model = nullptr;
}
bool Engine::has_model() const { return impl_->model != nullptr; }

void Engine::release_cache() {
  impl_->finish_begun_step();
  if (impl_->scheduler.running() > 0)
    fail(ErrorCode::busy, "{} answers hold keys and values; pause with abort or retract first",
         impl_->scheduler.running());
  impl_->runner.release_cache();
  flush_cache();
}

void Engine::restore_cache() { impl_->runner.restore_cache(); }

const EngineConfig& Engine::config() const { return impl_->config; }
const model::ModelInfo& Engine::model_info() const { return impl_->info; }
Limits Engine::limits() const { return impl_->limits(); }
int64_t Engine::cache_bytes() const { return impl_->runner.cache_bytes(); }

void Engine::on_change(std::function<void()> then) { impl_->requests.on_change(std::move(then)); }

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
