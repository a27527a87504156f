// SPDX-License-Identifier: Apache-2.0
// What the endpoints share: the model and the engine once they are there, the keys, the requests that can be aborted.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/backend.h"
#include "server/http/exchange.h"
#include "server/mailbox.h"
#include "server/served_model.h"

namespace sluice::server {

struct ServiceConfig {
  std::string api_key, admin_api_key;       // "": none
  std::vector<std::string> allowed_hosts;   // names in the Host header besides those of the loopback; see Router
  std::vector<std::string> cors_origins;    // "*": all
  std::string reasoning_parser;             // "qwen3", "deepseek-r1"; "": thoughts stay in the text
  bool check_host = true;                   // only the loopback's names and allowed_hosts
  std::vector<std::string> weight_folders;  // whence /update_weights_from_disk may load, besides the model's own
  uint64_t random_seed = 0;                 // of requests without a seed
  bool fixed_seed = false;                  // they all take random_seed itself
  std::string version;                      // the program's
  std::function<void(std::string_view)> log = [](std::string_view) {};
};

enum class State { loading, ready, draining };

class Service {
 public:
  explicit Service(ServiceConfig config) : config_(std::move(config)) {}
  ~Service() { backend_ = nullptr; }  // an engine that still runs tells its answers, which use what is below
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  const ServiceConfig& config() const { return config_; }
  State state() const { return state_; }
  void set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<Backend> backend);
  void set_draining() { state_ = State::draining; }

  // Both throw ApiError 503 while the model loads.
  std::shared_ptr<const ServedModel> model() const;
  std::shared_ptr<Backend> backend() const;
  // Throws ApiError 503 while loading and when draining: for requests that make work.
  void require_ready() const;

  // A request's seed when it gives none.
  uint64_t next_seed();
  std::string new_id(std::string_view prefix);  // "chatcmpl-0f3a..."

  // Requests in the engine by the client's name for them. Throws ApiError 400 for a name in use.
  void register_request(const std::string& rid);
  void add_to_request(const std::string& rid, engine::RequestId id);
  void forget_request(const std::string& rid);
  bool abort_request(const std::string& rid);  // false: unknown

  // Calls `job` once after `delay`, on the tick after it.
  void after(std::chrono::milliseconds delay, std::function<void()> job);
  // Every second or so: due jobs, and the rate of new tokens since the last tick.
  void tick();
  double generation_throughput() const { return throughput_; }

  std::chrono::steady_clock::time_point started() const { return started_; }
  double load_seconds() const { return load_seconds_; }
  std::atomic<int64_t> weight_version{0};  // reloads
  Mailbox& mailbox() { return mailbox_; }

 private:
  ServiceConfig config_;
  std::atomic<State> state_{State::loading};
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Backend> backend_;
  std::map<std::string, std::vector<engine::RequestId>> requests_;
  std::vector<std::pair<std::chrono::steady_clock::time_point, std::function<void()>>> delayed_;
  std::atomic<uint64_t> seeds_{0}, ids_{0};
  std::atomic<double> throughput_{0}, load_seconds_{0};
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now(), last_tick_ = started_;
  int64_t last_tokens_ = 0;
  Mailbox mailbox_;  // the last: answers that were never delivered give up their names
};

}  // namespace sluice::server
