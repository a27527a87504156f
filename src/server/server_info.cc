// SPDX-License-Identifier: Apache-2.0
// GET /server_info (/get_server_info), /v1/loads: what routers read of a
// server.
#include <algorithm>
#include <array>
#include <ctime>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/json_out.h"

namespace sluice::server {

namespace {
int64_t tokens_of(const EngineClient& engine, int64_t blocks) { return blocks * engine.config().block_size; }

struct Loads {
  std::vector<std::string> sections;
  bool has(std::string_view name) const {
    return std::any_of(sections.begin(), sections.end(), [&](const auto& s) { return s == name || s == "all"; });
  }
};

// ?include=core,queues&dp_rank=0
Loads read_query(std::string_view query) {
  constexpr std::array<std::string_view, 7> kSections{"core", "memory", "spec", "lora", "disagg", "queues", "all"};
  Loads out;
  while (!query.empty()) {
    std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::string_view key = pair.substr(0, pair.find('='));
    const std::string value = http::percent_decoded(pair.substr(std::min(pair.size(), key.size() + 1)));
    if (key == "dp_rank") {
      if (value != "0") refuse("dp_rank", fmt::format("dp_rank is {}; accepted: 0", io::quote(value)));
    } else if (key == "include") {
      for (size_t at = 0; at <= value.size();) {
        const size_t comma = std::min(value.find(',', at), value.size());
        out.sections.push_back(value.substr(at, comma - at));
        if (std::find(kSections.begin(), kSections.end(), out.sections.back()) == kSections.end())
          refuse("include", fmt::format("include has {}; accepted: core, memory, spec, "
                                        "lora, disagg, queues, all",
                                        io::quote(out.sections.back())));
        at = comma + 1;
      }
    } else {
      refuse(std::string(key), fmt::format("{} is no parameter of this path; accepted: include, dp_rank",
                                           io::printable(std::string(key), 100)));
    }
  }
  if (out.sections.empty()) out.sections = {"all"};
  return out;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

// SGLang's keys, and the endpoints as they are.
std::string kv_events(const std::optional<KvEventSource>& source, int64_t block_size) {
  if (!source) return "null";
  JsonObject out;
  out.add("publisher", "zmq");
  constexpr std::string_view kTcp = "tcp://";
  const std::string& endpoint = source->endpoint;
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  const bool numeric = !port.empty() && port.find_first_not_of("0123456789") == port.npos;
  if (endpoint.starts_with(kTcp) && numeric)
    out.add("endpoint_host", endpoint.substr(kTcp.size(), endpoint.size() - port.size() - 1 - kTcp.size()))
        .raw("endpoint_port_base", port);
  out.add("topic", source->topic).add("block_size", block_size).add("dp_size", 1).add("endpoint", endpoint);
  if (!source->replay_endpoint.empty()) out.add("replay_endpoint", source->replay_endpoint);
  return out.str();
}
}  // namespace

void server_info(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const auto engine = service.engine();
  const engine::EngineConfig& c = engine->config();
  const engine::Metrics m = engine->metrics();
  const AnswerFormats formats = service.formats();
  const auto name_of = [](const auto* f) { return f == nullptr ? std::string("null") : json_text(f->names[0]); };
  const int64_t capacity = tokens_of(*engine, m.blocks);
  const std::string state = JsonObject()
                                .add("num_running_reqs", m.running)
                                .add("num_waiting_reqs", m.waiting)
                                .add("last_gen_throughput", service.generation_throughput())
                                .add("token_usage", m.token_usage())
                                .add("paused", engine->paused())
                                .str();
  exchange->reply({.body = JsonObject()
                               .add("model_path", service.weights_path())
                               .add("tokenizer_path", model->path)
                               .add("served_model_name", model->names[0])
                               .add("version", service.config().version)
                               .add("status", service.state() == State::draining ? "draining" : "ready")
                               .add("weight_version", service.weight_version())
                               .add("dtype", model->info.dtype == DType::f32 ? "float32" : "bfloat16")
                               .add("kv_cache_dtype", to_string(model->info.kv_dtype))
                               .add("context_length", engine->limits().context_length)
                               .add("max_req_input_len", engine->limits().context_length - 1)
                               .add("max_running_requests", c.max_running)
                               .add("max_queued_requests", c.max_queued)
                               .add("max_total_num_tokens", capacity)
                               .add("chunked_prefill_size", c.prefill_chunk)
                               .add("page_size", c.block_size)
                               .add("disable_radix_cache", !c.prefix_cache)
                               .add("speculative_num_steps", c.speculative_steps)
                               .add("enable_priority_scheduling", service.config().priority_scheduling)
                               .raw("tool_call_parser", name_of(formats.calls))
                               .raw("reasoning_parser", name_of(formats.reasoning))
                               .add("tp_size", 1)
                               .add("dp_size", 1)
                               .add("ep_size", 1)
                               .add("disaggregation_mode", "null")
                               .raw("kv_events", kv_events(service.config().kv_events, c.block_size))
                               .raw("internal_states", JsonArray().raw(state).str())
                               .str()});
}

void loads(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const auto engine = service.engine();
  const Loads wanted = read_query(exchange->request().query);
  const engine::Metrics m = engine->metrics();
  const int64_t used = tokens_of(*engine, m.blocks_used), capacity = tokens_of(*engine, m.blocks);
  JsonObject rank;
  rank.add("dp_rank", 0)
      .add("num_running_reqs", m.running)
      .add("num_waiting_reqs", m.waiting)
      .add("num_total_reqs", m.running + m.waiting)
      .add("num_used_tokens", used)
      .add("num_total_tokens", used)
      .add("max_total_num_tokens", capacity)
      .add("token_usage", m.token_usage())
      .add("gen_throughput", service.generation_throughput())
      .add("cache_hit_rate", m.cache_hit_rate())
      .add("utilization", static_cast<double>(m.running) / engine->config().max_running)
      .add("max_running_requests", engine->config().max_running);
  if (wanted.has("memory"))
    rank.raw("memory", JsonObject()
                           .add("weight_gb", static_cast<double>(model->info.weight_bytes) / 1e9)
                           .add("token_capacity", capacity)
                           .str());
  if (wanted.has("spec") && engine->config().speculative_steps > 0)
    rank.raw("speculative",
             JsonObject().add("accept_length", m.accept_length()).add("accept_rate", m.accept_rate()).str());
  if (wanted.has("queues"))
    rank.raw("queues", JsonObject()
                           .add("waiting", m.waiting)
                           .add("grammar", model->grammars().stats().pending)
                           .add("paused", engine->paused() ? m.running + m.waiting : 0)
                           .add("retracted", m.waiting - m.queued)
                           .str());
  const std::string aggregate =
      JsonObject()
          .add("total_running_reqs", m.running)
          .add("total_waiting_reqs", m.waiting)
          .add("total_reqs", m.running + m.waiting)
          .add("avg_token_usage", m.token_usage())
          .add("avg_throughput", service.generation_throughput())
          .add("avg_utilization", static_cast<double>(m.running) / engine->config().max_running)
          .str();
  exchange->reply({.body = JsonObject()
                               .add("timestamp", utc_now())
                               .add("version", service.config().version)
                               .add("dp_rank_count", 1)
                               .raw("loads", JsonArray().raw(rank.str()).str())
                               .raw("aggregate", aggregate)
                               .str()});
}

}  // namespace sluice::server
