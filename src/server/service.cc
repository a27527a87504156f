// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <random>

#include "server/api_error.h"

namespace sluice::server {

using Clock = std::chrono::steady_clock;

namespace {
double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// SplitMix64: neighbouring numbers give unrelated ones.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}
}  // namespace

void Service::set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<Backend> backend) {
  {
    const std::lock_guard lock(mutex_);
    model_ = std::move(model);
    backend_ = std::move(backend);
  }
  load_seconds_ = seconds_between(started_, Clock::now());
  State expected = State::loading;  // a server that is already told to end stays so
  state_.compare_exchange_strong(expected, State::ready);
}

namespace {
[[noreturn]] void still_loading() {
  throw ApiError(503, "unavailable_error", "the model is loading; try again later", "", "loading");
}
}  // namespace

std::shared_ptr<const ServedModel> Service::model() const {
  const std::lock_guard lock(mutex_);
  if (!model_) still_loading();
  return model_;
}

std::shared_ptr<Backend> Service::backend() const {
  const std::lock_guard lock(mutex_);
  if (!backend_) still_loading();
  return backend_;
}

void Service::require_ready() const {
  if (state() == State::loading) still_loading();
  if (state() == State::draining)
    throw ApiError(503, "unavailable_error", "the server is shutting down and takes no new requests", "", "draining");
}

uint64_t Service::next_seed() {
  return config_.fixed_seed ? config_.random_seed : mixed(config_.random_seed + seeds_++);
}

std::string Service::new_id(std::string_view prefix) {
  // Not to be guessed: /abort_request takes it.
  static thread_local std::random_device random;
  return fmt::format("{}-{:08x}{:08x}{:08x}{:04x}", prefix, random(), random(), random(), ids_++ & 0xFFFF);
}

void Service::register_request(const std::string& rid) {
  const std::lock_guard lock(mutex_);
  if (!requests_.emplace(rid, std::vector<engine::RequestId>{}).second)
    refuse("rid", "rid names a request that is still running; give each its own");
}

void Service::add_to_request(const std::string& rid, engine::RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = requests_.find(rid); found != requests_.end()) found->second.push_back(id);
}

void Service::forget_request(const std::string& rid) {
  const std::lock_guard lock(mutex_);
  requests_.erase(rid);
}

bool Service::abort_request(const std::string& rid) {
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(rid);
    if (found == requests_.end()) return false;
    ids = found->second;
  }
  const auto engine = backend();
  for (const engine::RequestId id : ids) engine->cancel(id);
  return true;
}

void Service::after(std::chrono::milliseconds delay, std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  delayed_.emplace_back(Clock::now() + delay, std::move(job));
}

void Service::tick() {
  const Clock::time_point now = Clock::now();
  std::vector<std::function<void()>> due;
  std::shared_ptr<Backend> engine;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(delayed_, [&](auto& job) {
      if (job.first > now) return false;
      due.push_back(std::move(job.second));
      return true;
    });
    engine = backend_;
  }
  for (const auto& job : due) job();
  if (!engine) return;
  const int64_t tokens = engine->metrics().generation_tokens;
  throughput_ = static_cast<double>(tokens - last_tokens_) / std::max(1e-3, seconds_between(last_tick_, now));
  last_tokens_ = tokens;
  last_tick_ = now;
}

}  // namespace sluice::server
