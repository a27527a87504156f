// SPDX-License-Identifier: Apache-2.0
#include "server/service.h"

#include <algorithm>
#include <random>

#include "server/api_error.h"
#include "server/tool_calls/tool_call_formats.h"

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

Service::Service(ServiceConfig config)
    : config_(std::move(config)), unknown_fields_(config_.ignore_unknown_fields ? config_.log : nullptr) {}

namespace {
template <class Format>
const Format* chosen(const std::string& name, const std::string& chat_template,
                     const Format* (*by_name)(std::string_view), const Format* (*by_template)(std::string_view)) {
  if (name.empty()) return by_template(chat_template);
  const Format* format = by_name(name);
  check(format != nullptr || name == "none", "there is no parser {}", name);
  return format;
}

AnswerFormats formats_of(const ServiceConfig& config, const ServedModel& model) {
  AnswerFormats out;
  const std::string& text = model.chat_template_text();
  out.calls = chosen(config.tool_call_parser, text, tool_call_format, tool_call_format_of);
  out.reasoning = chosen(config.reasoning_parser, text, reasoning_format, reasoning_format_of);
  const auto special = [&](std::string_view tag) { return model.is_special_token(tag); };
  if (const CallFormat* f = out.calls)
    out.calls_are_special = std::any_of(f->begins.begin(), f->begins.end(), special) ||
                            std::any_of(f->inner.begin(), f->inner.end(), special) || special(f->open);
  if (const ReasoningFormat* f = out.reasoning)
    out.reasoning_is_special = std::any_of(f->tags.begin(), f->tags.end(), special);
  return out;
}
}  // namespace

void Service::set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<EngineClient> engine) {
  {
    const std::lock_guard lock(mutex_);
    formats_ = formats_of(config_, *model);
    const auto name = [](const auto* format) { return format == nullptr ? "none" : format->names[0]; };
    config_.log(
        fmt::format("tool-call parser: {}; reasoning parser: {}", name(formats_.calls), name(formats_.reasoning)));
    model_ = std::move(model);
    engine_ = std::move(engine);
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

AnswerFormats Service::formats() const {
  const std::lock_guard lock(mutex_);
  return formats_;
}

std::shared_ptr<EngineClient> Service::engine() const {
  const std::lock_guard lock(mutex_);
  if (!engine_) still_loading();
  return engine_;
}

void Service::require_ready() const {
  if (state() == State::loading) still_loading();
  if (state() == State::draining)
    throw ApiError(503, "unavailable_error", "the server is shutting down and takes no new requests", "", "draining");
}

std::string Service::weight_version() const {
  const std::lock_guard lock(mutex_);
  return weight_version_;
}

std::string Service::weights_path() const {
  const std::lock_guard lock(mutex_);
  return weights_path_.empty() && model_ != nullptr ? model_->path : weights_path_;
}

void Service::weights_replaced(std::string version, const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (!path.empty()) weights_path_ = path;
  ++reloads_;
  weight_version_ = version.empty() ? std::to_string(reloads_) : std::move(version);
}

void Service::set_weight_version(std::string version) {
  const std::lock_guard lock(mutex_);
  weight_version_ = std::move(version);
}

uint64_t Service::next_seed() {
  return config_.fixed_seed ? config_.random_seed : mixed(config_.random_seed + seeds_++);
}

std::string Service::new_id(std::string_view prefix) {
  // Not to be guessed: /abort_request takes it.
  static thread_local std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}{:04x}", prefix, random(), random(), random(), ids_++ & 0xFFFF);
}

Service::Registered Service::register_request(const RequestName& name) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = requests_.equal_range(name.text);
  if (name.chosen && std::any_of(begin, end, [](const auto& other) { return other.second.chosen; }))
    refuse("rid", "rid names a request that is still running; give each its own");
  return requests_.emplace(name.text, NamedRequest{name.chosen});
}

bool Service::add_to_request(Registered request, engine::RequestId id) {
  const std::lock_guard lock(mutex_);
  request->second.ids.push_back(id);
  return !request->second.aborted;
}

void Service::forget_request(Registered request) {
  const std::lock_guard lock(mutex_);
  requests_.erase(request);
}

bool Service::abort_request(const std::string& name) {
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = requests_.equal_range(name);
    if (begin == end) return false;
    for (auto request = begin; request != end; ++request) {
      request->second.aborted = true;
      ids.insert(ids.end(), request->second.ids.begin(), request->second.ids.end());
    }
  }
  const auto engine = this->engine();
  for (const engine::RequestId id : ids) engine->cancel(id);
  return true;
}

void Service::abort_all() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [name, request] : requests_) request.aborted = true;
  }
  engine()->cancel_all();
}

void Service::after(std::chrono::milliseconds delay, std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  delayed_.emplace_back(Clock::now() + delay, std::move(job));
}

void Service::tick() {
  const Clock::time_point now = Clock::now();
  std::vector<std::function<void()>> due;
  std::shared_ptr<EngineClient> engine;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(delayed_, [&](auto& job) {
      if (job.first > now) return false;
      due.push_back(std::move(job.second));
      return true;
    });
    engine = engine_;
  }
  for (const auto& job : due) job();
  if (!engine) return;
  const int64_t tokens = engine->metrics().generation_tokens;
  throughput_ = static_cast<double>(tokens - last_tokens_) / std::max(1e-3, seconds_between(last_tick_, now));
  last_tokens_ = tokens;
  last_tick_ = now;
}

}  // namespace sluice::server
