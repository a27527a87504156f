// SPDX-License-Identifier: Apache-2.0
// Many requests through one model.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capi/chat.h"
#include "capi/context.h"
#include "capi/engine.h"
#include "capi/model.h"
#include "capi/status.h"
#include "device/choose_device.h"
#include "engine/event_queue.h"

using namespace sluice;
using capi::check_struct_out;
using capi::guard;
using capi::read_struct;
using capi::read_structs;
using capi::required;
using capi::Running;
using capi::write_struct;

namespace {

engine::EngineConfig read_config(const sluice_engine_options& o) {
  engine::EngineConfig config;
  const auto take = [](auto& value, auto given) {
    if (given != 0) value = given;
  };
  // Here, as engine::validate() names the engine's own fields, for which 0 is no default.
  const auto within = [](const char* name, int64_t value, int64_t least, int64_t most, const char* others) {
    check(value == 0 || (value >= least && value <= most), "{} is {}; accepted: 1 to {}, {}", name, value, most,
          others);
  };
  within("block_size", o.block_size, 1, 4096, "0 for the default");
  within("state_snapshots", o.state_snapshots, -1, 65536, "0 for the default, -1 for none");
  within("graph_max_sequences", o.graph_max_sequences, -1, 4096, "0 for the default, -1 for no graphs");
  check(o.speculative_fixed_steps == 0 || o.speculative_steps > 0,
        "speculative_fixed_steps is {} beside speculative_steps {}; accepted: with at least one draft",
        o.speculative_fixed_steps, o.speculative_steps);
  take(config.context_length, o.context_length);
  take(config.max_running, o.max_running);
  take(config.max_queued, o.max_queued);
  take(config.prefill_chunk, o.prefill_chunk);
  take(config.cache_tokens, o.cache_tokens);
  take(config.block_size, o.block_size);
  take(config.mem_fraction_static, o.mem_fraction_static);
  config.prefix_cache = o.no_prefix_cache == 0;
  if (o.state_snapshots != 0) config.state_snapshots = o.state_snapshots == -1 ? 0 : o.state_snapshots;
  config.speculative_steps = o.speculative_steps;
  config.adaptive_drafts = o.speculative_fixed_steps == 0;
  if (o.graph_max_sequences == -1)
    config.recording.enabled = false;
  else
    take(config.recording.max_sequences, o.graph_max_sequences);
  if (o.no_overlap != 0) config.overlap = false;
  return config;
}

// Where the engine's thread leaves events. After close() it writes to no descriptor: by then the number may be another
// file's.
struct Inbox {
  Inbox(int64_t choices, int fd) : events(choices), wake_fd(fd) {}

  void push(size_t request, const engine::Event& event, int64_t weight_updates) {
    events.push(request, event, weight_updates);
    const std::lock_guard lock(mutex);
    constexpr uint64_t kOne = 1;
    // A write that fails because the pipe is full needs no other: its reader is awake.
    if (wake_fd > 0) [[maybe_unused]]
      const ssize_t written = ::write(wake_fd, &kOne, sizeof kOne);
  }
  void close() {
    const std::lock_guard lock(mutex);
    wake_fd = 0;
  }

  engine::EventQueue events;
  std::mutex mutex;
  int wake_fd;
};

template <class T>
std::span<const T> list_of(const T* data, size_t count, const char* name) {
  check(data != nullptr || count == 0, "{} is NULL and its count is {}", name, count);
  return {data, count};
}

engine::Request read_request(const sluice_request& r, grammar::GrammarCompiler& grammars) {
  engine::Request request;
  engine::Params& p = request.params;
  const auto ids = [](const int32_t* data, size_t count, const char* name) {
    const auto list = list_of(data, count, name);
    return std::vector<int32_t>(list.begin(), list.end());
  };
  request.prompt = ids(r.prompt, r.prompt_count, "prompt");
  p.n = r.n == 0 ? 1 : r.n;
  if (r.max_new_tokens != 0) p.max_tokens = r.max_new_tokens;
  p.min_tokens = r.min_new_tokens;
  sampling::SamplingOptions& s = p.sampling;
  s.temperature = r.temperature;
  s.top_k = r.top_k;
  s.top_p = r.top_p == 0 ? 1 : r.top_p;
  s.min_p = r.min_p;
  s.repetition_penalty = r.repetition_penalty == 0 ? 1 : r.repetition_penalty;
  s.frequency_penalty = r.frequency_penalty;
  s.presence_penalty = r.presence_penalty;
  s.seed = r.seed;
  const auto bias_tokens = list_of(r.bias_tokens, r.bias_count, "bias_tokens");
  const auto bias_values = list_of(r.bias_values, r.bias_count, "bias_values");
  for (size_t i = 0; i < r.bias_count; ++i) s.logit_bias.emplace_back(bias_tokens[i], bias_values[i]);
  for (const char* stop : list_of(r.stop, r.stop_count, "stop"))
    p.stop.emplace_back(&required(stop, fmt::format("stop[{}]", p.stop.size()).c_str()));
  p.stop_tokens = ids(r.stop_tokens, r.stop_token_count, "stop_tokens");
  p.ignore_eos = r.ignore_eos != 0;
  p.include_stop = r.include_stop != 0;
  p.skip_special_tokens = r.keep_special_tokens == 0;
  p.logprobs = r.logprobs != 0;
  p.top_logprobs = r.top_logprobs;
  p.logprob_tokens = ids(r.logprob_tokens, r.logprob_token_count, "logprob_tokens");
  check(r.prompt_logprobs != 0 || r.prompt_logprobs_from == 0,
        "prompt_logprobs_from is {} without prompt_logprobs, which would use it", r.prompt_logprobs_from);
  if (r.prompt_logprobs != 0) p.prompt_logprobs_from = r.prompt_logprobs_from;
  check(r.grammar_kind >= SLUICE_GRAMMAR_NONE && r.grammar_kind <= SLUICE_GRAMMAR_STRUCTURAL_TAG,
        "grammar_kind is {}; accepted: SLUICE_GRAMMAR_NONE, _JSON_SCHEMA, _REGEX, _EBNF, _STRUCTURAL_TAG",
        r.grammar_kind);
  check(r.grammar_kind != SLUICE_GRAMMAR_NONE || r.grammar == nullptr,
        "grammar is given, but grammar_kind is SLUICE_GRAMMAR_NONE; accepted: one of the others");
  if (r.grammar_kind != SLUICE_GRAMMAR_NONE)
    p.grammar = grammars.compile({static_cast<grammar::Kind>(r.grammar_kind - 1), &required(r.grammar, "grammar")});
  if (r.score_only != 0) {
    check(r.max_new_tokens == 0, "max_new_tokens is {} with score_only; accepted: 0", r.max_new_tokens);
    p.max_tokens = 0;
    // A request without new tokens must score its prompt. If nobody asked for scores, the last token is scored.
    if (!p.prompt_logprobs_from) p.prompt_logprobs_from = static_cast<int64_t>(request.prompt.size()) - 1;
  }
  return request;
}

sluice_logprob logprob_of(const sampling::Likelihood& l) { return {l.token, l.logprob}; }

// Log probabilities in the C ABI's form, whose lists point into `flat`.
struct Logprobs {
  std::vector<sluice_token_logprobs> tokens;
  std::vector<sluice_logprob> flat;

  void assign(const std::vector<sampling::TokenLogprob>& from) {
    tokens.clear();
    flat.clear();
    size_t count = 0;
    for (const auto& t : from) count += t.top.size() + t.asked.size();
    flat.reserve(count);  // the pointers below stay right
    const auto list = [&](const std::vector<sampling::Likelihood>& all) {
      const sluice_logprob* begin = flat.data() + flat.size();
      for (const sampling::Likelihood& l : all) flat.push_back(logprob_of(l));
      return begin;
    };
    for (const auto& t : from) {
      const sluice_logprob* top = list(t.top);
      tokens.push_back({logprob_of(t.chosen), top, t.top.size(), list(t.asked), t.asked.size()});
    }
  }
};

}  // namespace

namespace sluice::capi {

Machine::Machine(const sluice_engine_options& o) : pool(o.threads) {
  if (const DeviceId id = choose_device(o.device == nullptr ? "cpu" : o.device).id; !id.is_host()) {
    device = make_cuda_device(id.index);
    queue = device->make_queue();
  }
}

Context Machine::context(const sluice_engine_options& o) {
  return {.pool = pool,
          .log = log_callback(o.log, o.user),
          .progress = progress_callback(o.progress, o.user),
          .queue = queue ? *queue : host_queue()};
}

Running::Running(const char* folder, const sluice_engine_options& o)
    : options(read_load_options(folder, o.model)),
      machine(o),
      ctx(machine.context(o)),
      tokenizer(model::load_tokenizer(options.path)),
      special(tokenizer) {
  const engine::EngineConfig config = read_config(o);
  model::LiveModel model = model::load_live_model(ctx, options, engine::cache_plan(config, ctx.device().id()));
  info = model.model->info();
  grammars =
      std::make_unique<grammar::GrammarCompiler>(grammar::vocabulary_of(tokenizer, info.vocab, info.stop_tokens));
  live = std::make_unique<engine::LiveEngine>(ctx, std::move(model), options, &tokenizer, config);
}

}  // namespace sluice::capi

struct sluice_stream {
  std::shared_ptr<Running> running;
  std::shared_ptr<Inbox> inbox;
  std::vector<engine::RequestId> ids;
  // What the last event's pointers point to.
  engine::Event event;
  Logprobs logprobs, prompt_logprobs;

  void cancel() {
    for (const engine::RequestId id : ids) running->live->async().cancel(id);
  }
  ~sluice_stream() {
    inbox->close();
    if (!inbox->events.done()) cancel();
  }

  sluice_event next_event(engine::EventQueue::Entry entry) {
    event = std::move(entry.event);
    logprobs.assign(event.logprobs);
    prompt_logprobs.assign(event.prompt_logprobs);
    sluice_event out{};
    out.request = entry.source;
    out.choice = event.choice;
    out.tokens = event.tokens.data();
    out.token_count = event.tokens.size();
    out.text = event.text.c_str();
    out.text_bytes = event.text.size();
    out.logprobs = logprobs.tokens.data();
    out.logprob_count = logprobs.tokens.size();
    out.prompt_logprobs = prompt_logprobs.tokens.data();
    out.prompt_logprob_count = prompt_logprobs.tokens.size();
    out.finish = static_cast<sluice_finish>(event.reason);
    out.stop_token = event.stop_token.value_or(-1);
    out.stop_string = event.stop_string ? event.stop_string->c_str() : nullptr;
    out.error = event.error.empty() ? nullptr : event.error.c_str();
    const engine::Usage& u = event.usage;
    out.prompt_tokens = u.prompt_tokens;
    out.cached_tokens = u.cached_tokens;
    out.completion_tokens = u.completion_tokens;
    out.drafted = u.drafted;
    out.accepted = u.accepted;
    out.verify_rounds = u.verify_rounds;
    out.preemptions = u.preemptions;
    out.queue_seconds = u.queue_seconds;
    out.first_token_seconds = u.first_token_seconds;
    out.total_seconds = u.total_seconds;
    out.weight_updates = entry.mark;
    return out;
  }
};

static_assert(static_cast<int>(grammar::Kind::json_schema) == SLUICE_GRAMMAR_JSON_SCHEMA - 1 &&
              static_cast<int>(grammar::Kind::structural_tag) == SLUICE_GRAMMAR_STRUCTURAL_TAG - 1);
static_assert(static_cast<int>(engine::FinishReason::stop) == SLUICE_FINISH_STOP &&
              static_cast<int>(engine::FinishReason::length) == SLUICE_FINISH_LENGTH &&
              static_cast<int>(engine::FinishReason::cancelled) == SLUICE_FINISH_CANCELLED &&
              static_cast<int>(engine::FinishReason::timed_out) == SLUICE_FINISH_TIMED_OUT &&
              static_cast<int>(engine::FinishReason::error) == SLUICE_FINISH_ERROR);

extern "C" {

sluice_status sluice_engine_create(const char* folder, const sluice_engine_options* given, sluice_engine** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const sluice_engine_options options =
        given == nullptr ? sluice_engine_options{}
                         : read_struct(given, "options", offsetof(sluice_engine_options, mem_fraction_static));
    *out = new sluice_engine{std::make_shared<Running>(folder, options)};
  });
}

void sluice_engine_destroy(sluice_engine* engine) { delete engine; }

sluice_status sluice_engine_get_info(const sluice_engine* engine, sluice_engine_info* out) {
  return guard([&] {
    const Running& r = *required(engine, "engine").running;
    const engine::EngineConfig& c = r.live->async().config();
    const engine::Metrics m = r.live->async().metrics();
    write_struct({0, c.context_length, c.cache_tokens, r.live->cache_bytes(), c.max_running, c.max_queued, m.running,
                  m.queued, r.weight_updates},
                 out, "out");
  });
}

sluice_status sluice_engine_get_model_info(const sluice_engine* engine, sluice_model_info* out) {
  return guard([&] { write_struct(capi::info_of(required(engine, "engine").running->info), out, "out"); });
}

sluice_status sluice_engine_encode(const sluice_engine* engine, const char* text, size_t bytes, int32_t* ids,
                                   size_t capacity, size_t* count) {
  return guard(
      [&] { return capi::encode(required(engine, "engine").running->tokenizer, text, bytes, ids, capacity, count); });
}

sluice_status sluice_engine_decode(const sluice_engine* engine, const int32_t* ids, size_t count,
                                   int skip_special_tokens, char* buffer, size_t size, size_t* needed) {
  return guard([&] {
    return capi::decode(required(engine, "engine").running->tokenizer, ids, count, skip_special_tokens, buffer, size,
                        needed);
  });
}

sluice_status sluice_engine_encode_chat(const sluice_engine* engine, const char* messages, const char* variables,
                                        int generation_prompt, int32_t* ids, size_t capacity, size_t* count) {
  return guard([&] {
    const Running& r = *required(engine, "engine").running;
    check(!r.tokenizer.chat_template().empty(), "{} has no chat template", r.options.path.string());
    capi::check_ids_out(ids, capacity, count);
    return capi::copy_ids(
        capi::encode_chat(r.tokenizer, r.special, &required(messages, "messages"), variables, generation_prompt != 0),
        ids, capacity, count);
  });
}

sluice_status sluice_engine_submit(sluice_engine* engine, const sluice_request* given, size_t count, int wake_fd,
                                   sluice_stream** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const auto& running = required(engine, "engine").running;
    check(count > 0, "count is 0; submit at least one request");
    check(wake_fd >= 0, "wake_fd is {}; accepted: 0 for none, or a descriptor", wake_fd);
    const int flags = wake_fd == 0 ? O_NONBLOCK : ::fcntl(wake_fd, F_GETFL);
    check(flags >= 0 && (flags & O_NONBLOCK) != 0, "wake_fd is {}, which is not an open, non-blocking descriptor",
          wake_fd);
    std::vector<engine::Request> requests;
    int64_t choices = 0;
    for (const sluice_request& r : read_structs(given, count, "requests", sizeof(sluice_request))) {
      requests.push_back(read_request(r, *running->grammars));
      engine::validate(requests.back(), running->live->async().limits());
      choices += requests.back().params.n;
    }
    auto made = std::make_unique<sluice_stream>();
    made->running = running;
    made->inbox = std::make_shared<Inbox>(choices, wake_fd);
    std::vector<engine::Sink> sinks;
    for (size_t i = 0; i < count; ++i)
      sinks.emplace_back([inbox = made->inbox, i, &updates = running->weight_updates](const engine::Event& event) {
        inbox->push(i, event, updates);
      });
    made->ids = running->live->submit(std::move(requests), std::move(sinks));
    *out = made.release();
  });
}

sluice_status sluice_stream_next(sluice_stream* stream, int64_t timeout_ms, sluice_event* out, int32_t* state) {
  return guard([&] {
    sluice_stream& s = required(stream, "stream");
    required(state, "state") = SLUICE_STREAM_WAITING;
    // An event that has been taken cannot be put back.
    check_struct_out(out, "out");
    constexpr int64_t kLongest = 3'600'000;  // "at most"; far from where a deadline would overflow
    auto entry = s.inbox->events.next(std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kLongest)));
    if (!entry) {
      if (s.inbox->events.done()) *state = SLUICE_STREAM_DONE;
      return;
    }
    write_struct(s.next_event(std::move(*entry)), out, "out");
    *state = SLUICE_STREAM_EVENT;
  });
}

void sluice_stream_cancel(sluice_stream* stream) {
  if (stream != nullptr) stream->cancel();
}

void sluice_stream_destroy(sluice_stream* stream) { delete stream; }
}
