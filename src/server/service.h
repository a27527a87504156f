// SPDX-License-Identifier: Apache-2.0
// What the endpoints share: the model and the engine once they are there, the keys, the requests that can be aborted.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/engine_client.h"
#include "server/http/exchange.h"
#include "server/http/server.h"
#include "server/mailbox.h"
#include "server/reasoning/reasoning_format.h"
#include "server/served_model.h"
#include "server/tool_calls/call_format.h"
#include "server/unknown_fields.h"

namespace sluice::server {

// What routers are told of it.
struct KvEventSource {
  std::string endpoint, replay_endpoint, topic;  // replay_endpoint "": there is none
};

struct ServiceConfig {
  std::string api_key, admin_api_key;       // "": none
  std::vector<std::string> allowed_hosts;   // names in the Host header besides those of the loopback; see Router
  std::vector<std::string> cors_origins;    // "*": all
  std::string tool_call_parser;             // a name of tool_call_formats(); "": by the chat template; "none"
  std::string reasoning_parser;             // a name of reasoning_formats(); "": by the chat template; "none"
  bool check_host = true;                   // only the loopback's names and allowed_hosts
  bool ignore_unknown_fields = false;       // of requests; else they are refused
  std::vector<std::string> weight_folders;  // whence requests may load weights, besides the model's own
  bool allow_weight_update = false;         // /update_weights_from_tensor
  bool priority_scheduling = false;         // requests may have a priority; larger ones first,
  bool low_priority_first = false;          // or smaller ones
  double queue_timeout = 0;                 // of requests that do not say, in seconds; 0: none
  double request_timeout = 0;
  std::string profile_folder;                           // where /start_profile writes; "": nowhere
  uint64_t random_seed = 0;                             // of requests without a seed
  bool fixed_seed = false;                              // they all take random_seed itself
  std::vector<std::string> metrics_prefixes{"sluice"};  // whose names /metrics has: sluice, sglang, vllm
  std::optional<KvEventSource> kv_events;               // where cache events are published
  std::string version;                                  // the program's, "0.1.0"
  std::string build;                                    // how and for what it was built, and the processor
  std::function<void(std::string_view)> log = [](std::string_view) {};
};

// What the HTTP server in front counts.
struct FrontStats {
  http::Stats http;
  size_t bodies_waiting = 0;  // requests that are complete, but that nobody reads yet
};

// How the served model marks calls of tools and thoughts in its text; nullptr: neither is looked for.
struct AnswerFormats {
  const CallFormat* calls = nullptr;
  const ReasoningFormat* reasoning = nullptr;
  bool calls_are_special = false, reasoning_is_special = false;  // their tags are special tokens, which answers hide
};

// What /abort_request may call a request, or one of its prompts.
struct RequestName {
  std::string text;
  bool chosen = false;                // by the client, in rid or request_id; else it is an id of the answer
  std::optional<size_t> prompt = {};  // nullopt: all of them
};

enum class State { loading, ready, draining };

class Service {
  struct NamedRequest {
    bool chosen = false;
    std::vector<engine::RequestId> ids = {};
    bool aborted = false;  // ids that are added later are cancelled too
  };

 public:
  explicit Service(ServiceConfig config);
  ~Service() { engine_ = nullptr; }  // an engine that still runs tells its answers, which use what is below
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  const ServiceConfig& config() const { return config_; }
  State state() const { return state_; }
  void set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<EngineClient> engine);
  void set_draining() { state_ = State::draining; }

  // Both throw ApiError 503 while the model loads.
  std::shared_ptr<const ServedModel> model() const;
  std::shared_ptr<EngineClient> engine() const;
  AnswerFormats formats() const;
  // Throws ApiError 503 while loading and when draining: for requests that make work.
  void require_ready() const;

  UnknownFields& unknown_fields() { return unknown_fields_; }  // for Fields::finish()

  // A request's seed when it gives none.
  uint64_t next_seed();
  std::string new_id(std::string_view prefix);  // "chatcmpl-0f3a..."

  // Requests by their names, from before they are in the engine on. Throws ApiError 400 for a name that the clients of
  // two requests have chosen.
  using Registered = std::multimap<std::string, NamedRequest>::iterator;
  Registered register_request(const RequestName& name);
  // False: it was aborted before the engine had it, and the caller must cancel `id`.
  [[nodiscard]] bool add_to_request(Registered request, engine::RequestId id);
  void forget_request(Registered request);
  bool abort_request(const std::string& name);  // false: unknown
  void abort_all();

  // Calls `job` once after `delay`, on the tick after it.
  void after(std::chrono::milliseconds delay, std::function<void()> job);
  // Every second or so: due jobs, and the rate of new tokens since the last tick.
  void tick();
  double generation_throughput() const { return throughput_; }

  // Before the first request only.
  void set_front(std::function<FrontStats()> front) { front_ = std::move(front); }
  FrontStats front() const { return front_ ? front_() : FrontStats(); }

  std::chrono::steady_clock::time_point started() const { return started_; }
  double load_seconds() const { return load_seconds_; }
  // What the client that brought the weights called them, else how many times they were replaced.
  std::string weight_version() const;
  // The checkpoint that the weights are from, as the command line or the last update from disk named it. Tensors that
  // came since do not change it.
  std::string weights_path() const;
  // "": the number of replacements; the same checkpoint.
  void weights_replaced(std::string version, const std::string& path = "");
  void set_weight_version(std::string version);  // of the same weights
  Mailbox& mailbox() { return mailbox_; }

 private:
  ServiceConfig config_;
  UnknownFields unknown_fields_;
  std::function<FrontStats()> front_;
  std::atomic<State> state_{State::loading};
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> model_;
  AnswerFormats formats_;
  std::shared_ptr<EngineClient> engine_;
  std::multimap<std::string, NamedRequest> requests_;
  std::vector<std::pair<std::chrono::steady_clock::time_point, std::function<void()>>> delayed_;
  std::string weight_version_ = "0", weights_path_;
  int64_t reloads_ = 0;
  std::atomic<uint64_t> seeds_{0}, ids_{0};
  std::atomic<double> throughput_{0}, load_seconds_{0};
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now(), last_tick_ = started_;
  int64_t last_tokens_ = 0;
  Mailbox mailbox_;  // the last: answers that were never delivered give up their names
};

}  // namespace sluice::server
