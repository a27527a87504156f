// SPDX-License-Identifier: Apache-2.0
// An engine whose every event the test sends, and an exchange that keeps what it is told.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/tokenizer_json.h"
#include "server/engine_client.h"
#include "server/grammar_waiters.h"
#include "server/routes.h"

namespace sluice::server {

inline std::string tiny_folder() { return std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h"; }

class FakeEngine final : public EngineClient {
 public:
  struct Submitted {
    engine::Request request;
    engine::Sink sink;
    bool cancelled = false;
  };
  std::map<engine::RequestId, Submitted> requests;
  size_t room = 1000;  // requests that are taken before it is busy
  double stalled = 0;
  std::string failed;
  engine::Limits bounds{.vocab = 2048, .context_length = 100, .has_tokenizer = true};
  engine::Metrics numbers;
  std::string reload_error;
  int reloads = 0;
  std::vector<engine::PauseMode> pauses;  // since the last resume()
  std::function<void()> while_submitting = [] {};

  engine::RequestId submit(engine::Request request, engine::Sink sink) override {
    engine::validate(request, limits());  // as the real engine does
    if (requests.size() >= room) fail(ErrorCode::busy, "the queue is full: {} answers wait; try again later", room);
    const engine::RequestId id = requests.size() + 1;
    requests[id] = {std::move(request), std::move(sink)};
    return id;
  }
  std::vector<engine::RequestId> submit(std::vector<engine::Request> all, std::vector<engine::Sink> sinks) override {
    if (requests.size() >= room) fail(ErrorCode::busy, "the queue is full: {} answers wait; try again later", room);
    for (const engine::Request& r : all) engine::validate(r, limits());
    while_submitting();
    std::vector<engine::RequestId> ids;
    for (size_t i = 0; i < all.size(); ++i) {
      ids.push_back(requests.size() + 1);
      requests[ids.back()] = {std::move(all[i]), std::move(sinks[i])};
    }
    return ids;
  }
  void cancel(engine::RequestId id) override { requests.at(id).cancelled = true; }
  void cancel_all() override {
    for (auto& [id, r] : requests) r.cancelled = true;
  }
  void flush_cache() override {}
  engine::Metrics metrics() const override { return numbers; }
  engine::Limits limits() const override { return bounds; }
  const engine::EngineConfig& config() const override { return config_; }
  double stalled_seconds() const override { return stalled; }
  std::string fault() const override { return failed; }
  void pause(engine::PauseMode mode) override { pauses.push_back(mode); }
  void resume() override { pauses.clear(); }
  bool paused() const override { return !pauses.empty(); }
  void reload(const std::string&, const engine::Replacement& how) override {
    if (!reload_error.empty()) fail(ErrorCode::bad_file, "{}", reload_error);
    ++reloads;
    how.in_place();
  }
  void update(const engine::NamedTensors&, const engine::Replacement& how) override { how.in_place(); }
  void begin_update() override {}
  void end_update(const engine::Replacement& how) override { how.in_place(); }
  void check_update(const engine::NamedTensors&) const override {}
  std::optional<engine::SentTensors> sent() const override { return std::nullopt; }
  io::Checkpoint weights() const override {  // a few bytes, as fuzzers hash them often
    return io::Checkpoint::open_configs(tiny_folder()).with_tensors({{"a", Tensor(DType::f32, {2, 2}).zero()}});
  }
  void release_memory(engine::MemoryTags) override {}
  void resume_memory(engine::MemoryTags) override {}
  void record_experts(bool) override {}
  std::pair<bool, engine::ExpertCounts> expert_counts() override { return {}; }
  void trace_steps(int64_t, std::function<void(const engine::StepTrace&)>) override {}
  bool drain(std::chrono::milliseconds) override { return true; }
  void stop() override {}

  // One token's event, the last one when a reason is given.
  void send(engine::RequestId id, int choice, std::string text, engine::FinishReason reason = {},
            std::vector<sampling::TokenLogprob> prompt_logprobs = {}) {
    engine::Event event;
    event.request = id;
    event.choice = choice;
    event.tokens = {65};
    event.text = std::move(text);
    event.logprobs = {{{65, -0.5F}, {}}};
    event.prompt_logprobs = std::move(prompt_logprobs);
    event.reason = reason;
    if (reason == engine::FinishReason::error) event.error = "broken weights";
    event.usage.prompt_tokens = 3;
    event.usage.completion_tokens = 2;
    requests.at(id).sink(event);
  }

 private:
  engine::EngineConfig config_;
};

class FakeExchange final : public http::Exchange {
 public:
  FakeExchange(std::string method, std::string path, std::string body = "") {
    request_.method = std::move(method);
    request_.path = std::move(path);
    request_.body = std::move(body);
  }
  const http::Request& request() const override { return request_; }
  void reply(http::Response r) override {
    if (!answered++) response = std::move(r);
  }
  void begin_stream(http::Response) override { streaming = true; }
  void write(std::string bytes) override { streamed += bytes; }
  void end() override { ++answered; }
  void fail(http::Response r, std::string last) override {
    if (streamed.empty()) return reply(std::move(r));
    write(std::move(last));
    end();
  }
  void on_gone(std::function<void()> callback) override { gone = std::move(callback); }
  void post(std::function<void()> job) override { job(); }

  int answered = 0;
  bool streaming = false;
  http::Response response;
  std::string streamed;
  std::function<void()> gone;

 private:
  http::Request request_;
};

// As ApiServer does, which begins a request again when its grammar is there; here the caller waits for it.
inline void answer_when_compiled(Service& service, const Route& route, const ExchangePtr& exchange) {
  for (;;) try {
      return route.answer(service, exchange);
    } catch (const NotCompiled& missing) {
      try {
        service.model()->grammars().compile(missing.source);
      } catch (const Error&) {  // the endpoint will say so
      }
    }
}

inline std::shared_ptr<const ServedModel> tiny_model() {
  static const auto model = [] {
    const std::string folder = tiny_folder();
    return std::make_shared<const ServedModel>(std::vector<std::string>{"tiny"}, folder,
                                               text::Tokenizer(io::read_tokenizer(folder)), model::ModelInfo(),
                                               read_sampling_defaults(folder));
  }();
  return model;
}

}  // namespace sluice::server
