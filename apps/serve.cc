// SPDX-License-Identifier: Apache-2.0
// `sluice serve`: an OpenAI-compatible server for one checkpoint.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>

#include "argument_checks.h"
#include "habit_options.h"
#include "model_options.h"
#include "server/api_server.h"
#include "server/in_process_engine.h"
#include "server/kv_events/publisher.h"
#include "server/reasoning/reasoning_format.h"
#include "server/tool_calls/tool_call_formats.h"
#include "shutdown_signal.h"
#include "version.h"

namespace sluice::apps {

namespace {
struct Options {
  ModelOptions model;
  SpeculativeOptions speculative;
  server::http::Options http;
  server::ServiceConfig service;
  engine::EngineConfig engine;
  std::vector<std::string> names;
  std::vector<std::string> habits;  // lines about options that need nothing done
  std::string chat_template, sampling_defaults = "model";
  std::optional<std::string> kv_events;
  std::optional<uint64_t> random_seed;
  bool deterministic = false, no_prefix_cache = false;
  int drain_seconds = 60;
};

constexpr std::chrono::seconds kFaultDrain{5};  // for the answers that say so

// Every connection is a descriptor, and so are the checkpoint's files and the standard streams.
void raise_descriptor_limit(int& max_connections) {
  constexpr int kOthers = 80;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < rlim_t{1} << 30)
    max_connections = std::max(1, std::min(max_connections, static_cast<int>(limit.rlim_cur) - kOthers));
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// What a browser may send as Origin: a scheme, a host in lower case and a port, nothing after them. It is compared
// letter by letter, so that anything else would never be met.
bool is_origin(std::string_view text) {
  if (text == "*") return true;
  constexpr std::string_view kLower = "abcdefghijklmnopqrstuvwxyz0123456789";
  const size_t slashes = text.find("://");
  if (slashes == 0 || slashes == text.npos) return false;
  const std::string_view scheme = text.substr(0, slashes);
  std::string_view host = text.substr(slashes + 3);
  if (const size_t colon = host.rfind(':'); colon != host.npos && host.find(']', colon) == host.npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos) return false;
    host = host.substr(0, colon);
  }
  const auto of = [&](std::string_view part, std::string_view more) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [&](char c) {
      return kLower.find(c) != kLower.npos || more.find(c) != more.npos;
    });
  };
  return of(scheme, "+-.") && (host.starts_with('[') ? host.ends_with(']') && of(host, "[:]") : of(host, "-._"));
}

// Lines come from several threads here.
Context with_locked_log(Context ctx) {
  auto mutex = std::make_shared<std::mutex>();
  ctx.log = [mutex, log = ctx.log](LogLevel level, std::string_view line) {
    const std::lock_guard lock(*mutex);
    log(level, line);
  };
  return ctx;
}

std::shared_ptr<server::ServedModel> served_model(const Options& o, const model::Model& model,
                                                  const std::string& template_text) {
  server::SamplingDefaults defaults;
  if (o.sampling_defaults == "model") defaults = server::read_sampling_defaults(o.model.path);
  std::vector<std::string> names = o.names;
  if (std::all_of(names.begin(), names.end(), [](const std::string& name) { return name == "*"; })) {
    // The path, as SGLang has it, and its last part, which people remember.
    const std::filesystem::path path = std::filesystem::absolute(o.model.path).lexically_normal();
    const std::string last = (path.has_filename() ? path : path.parent_path()).filename().string();
    if (!last.empty() && last != o.model.path) names.insert(names.begin(), last);
    names.insert(names.begin(), o.model.path);
  }
  return std::make_shared<server::ServedModel>(std::move(names), o.model.path, load_tokenizer(o.model, model),
                                               model.info(), std::move(defaults), template_text, o.chat_template);
}

std::unique_ptr<server::KvEventPublisher> event_publisher(Options& o, const Context& ctx) {
  if (!o.kv_events) return nullptr;
  const server::KvEventsConfig config = server::parse_kv_events_config(*o.kv_events);
  if (!config.enabled) return nullptr;
  check(!o.no_prefix_cache, "--kv-events-config needs the prefix cache; leave --disable-radix-cache out");
  auto publisher = std::make_unique<server::KvEventPublisher>(
      config, [log = ctx.log](std::string_view line) { log(LogLevel::warning, line); });
  o.service.kv_events = {publisher->endpoint(), publisher->replay_endpoint(), config.topic};
  for (const std::string& endpoint : {publisher->endpoint(), publisher->replay_endpoint()})
    if (endpoint.starts_with("tcp://") && endpoint.find('*') != endpoint.npos)
      ctx.log(LogLevel::warning,
              fmt::format("KV events hold the tokens of every prompt: whoever reaches {} can read them", endpoint));
  ctx.log(LogLevel::info,
          fmt::format("KV events {} {}", server::is_listened_at(config.endpoint) ? "at" : "to", publisher->endpoint()));
  return publisher;
}

void print_ready(const std::string& url, const server::ServedModel& model) {
  std::printf("ready: %s serves %s\n", url.c_str(), model.names[0].c_str());
  std::printf("  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n", url.c_str());
  std::printf("    -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
              model.names[0].c_str());
  std::fflush(stdout);
}

// Returns whether grammars still compile, which nobody wants any more.
bool run(Options o, Shared& shared) {
  Context ctx = with_locked_log(shared.context(o.model.device));
  const std::string template_text = o.chat_template.empty() ? "" : read_text_file(o.chat_template);
  const auto log = [&](std::string_view line) { ctx.log(LogLevel::info, line); };
  raise_descriptor_limit(o.http.max_connections);
  o.model.deterministic = o.model.deterministic || o.deterministic;
  o.engine.speculative_steps = o.speculative.steps();
  o.engine.adaptive_drafts = !o.speculative.fixed_steps;
  o.engine.prefix_cache = !o.no_prefix_cache;
  o.service.log = log;
  o.service.version = version_number();
  o.service.build = version_text();
  o.service.random_seed = o.random_seed.value_or(o.deterministic ? 42 : std::random_device{}());
  o.service.fixed_seed = o.deterministic;  // as SGLang: the same request gives the same text
  // A name that a browser resolves to this machine must not open it to that name's pages.
  const std::string& host = o.http.host;
  o.service.check_host = o.service.api_key.empty() && is_loopback(host);

  if (o.service.api_key.empty() && !is_loopback(host))
    ctx.log(LogLevel::warning,
            fmt::format("--host {} without --api-key: whoever reaches this machine may use the server", host));

  for (const std::string& line : o.habits) ctx.log(LogLevel::warning, line);

  const std::unique_ptr<server::KvEventPublisher> events = event_publisher(o, ctx);  // outlives the engine
  server::ApiServer server(o.http, o.service);
  const bool ipv6 = host.find(':') != host.npos;
  const std::string url = fmt::format("http://{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", server.port());
  std::printf("listening on %s; answers 503 until the model is loaded\n", url.c_str());
  std::fflush(stdout);

  model::LoadOptions loaded = load_options(ctx, o.model);
  model::LiveModel live = model::load_live_model(ctx, loaded, engine::cache_plan(o.engine, ctx.device().id()));
  const model::Model* const model = live.model.get();
  const std::shared_ptr<server::ServedModel> served = served_model(o, *model, template_text);
  if (!served->chat_template_error().empty())
    ctx.log(LogLevel::warning, fmt::format("no chat: {}", served->chat_template_error()));
  if (!served->defaults.source.empty()) log("sampling defaults from " + served->defaults.source);
  const auto engine =
      std::make_shared<server::InProcessEngine>(ctx, std::move(live), std::move(loaded), served->tokenizer, o.engine,
                                                [&ctx, options = o.model](const std::string& path) mutable {
                                                  options.path = path;
                                                  options.load_format = "auto";
                                                  return load_options(ctx, options);
                                                });
  if (events)
    engine->publish_cache_events([&](std::vector<engine::CacheEvent> batch) { events->push(std::move(batch)); });
  const engine::EngineConfig& config = engine->config();
  log(fmt::format(
      "weights {:.2f} GB; cache {:.2f} GB for {} tokens; context {} tokens; at most {} answers at once, {} "
      "waiting",
      static_cast<double>(served->info.weight_bytes) / 1e9, static_cast<double>(engine->cache_bytes()) / 1e9,
      config.cache_tokens, config.context_length, config.max_running, config.max_queued));
  if (const int64_t wanted = o.engine.context_length ? o.engine.context_length : model->info().max_positions;
      config.context_length < wanted)
    ctx.log(LogLevel::warning,
            fmt::format("the cache of {} tokens bounds the context: {} tokens instead of {}; a larger {} allows more",
                        config.cache_tokens, config.context_length, wanted,
                        o.engine.mem_fraction_static ? "--mem-fraction-static" : "--max-total-tokens"));
  shared.clear_progress();
  watch_for_shutdown();
  engine->on_fault(ask_for_shutdown);
  server.set_ready(served, engine);
  print_ready(url, *served);

  wait_for_shutdown();
  if (const std::string fault = engine->fault(); !fault.empty()) {
    server.drain(kFaultDrain);
    server.stop();
    fail(ErrorCode::cuda, "the device has failed, which ends the server: {}", fault);
  }
  log(fmt::format("shutting down: what runs is finished, at most {} s; a second signal ends it at once",
                  o.drain_seconds));
  server.drain(std::chrono::seconds(o.drain_seconds));
  server.stop();
  return served->grammars().stats().pending > 0;
}

void add_engine_options(CLI::App& command, Options& o) {
  const char* group = "Engine";
  const auto count = [&](const char* name, auto& value, const char* what, int64_t least, int64_t most) {
    command.add_option(name, value, what)->check(CLI::Range(least, most))->capture_default_str()->group(group);
  };
  constexpr int64_t kMany = int64_t{1} << 30;
  count("--context-length", o.engine.context_length, "longest prompt with its answer, in tokens; 0: the model's", 0,
        kMany);
  count("--max-running-requests", o.engine.max_running, "answers that are worked on at once", 1, 4096);
  count("--max-queued-requests", o.engine.max_queued, "answers that may wait; further ones get 503", 1, kMany);
  count("--chunked-prefill-size", o.engine.prefill_chunk,
        "prompt tokens in one step of the engine; 0: 512 on the CPU, 8192 on a GPU; -1: whole prompts", -1, kMany);
  count("--max-total-tokens", o.engine.cache_tokens,
        "tokens of keys and values in memory; 0: as many as all running requests need, at most 65536 or one context", 0,
        kMany);
  command
      .add_option("--mem-fraction-static", o.engine.mem_fraction_static,
                  "instead: as many as weights and cache together fit into this share of the device's memory")
      ->check(CLI::Range(0.0, 1.0))
      ->excludes("--max-total-tokens")
      ->group(group);
  count("--page-size", o.engine.block_size, "tokens in a block of the cache, the unit that prompts share", 1, 4096);
  command
      .add_flag("--enable-priority-scheduling", o.service.priority_scheduling,
                "requests may have a priority; larger ones are taken up first")
      ->group(group);
  command
      .add_flag("--schedule-low-priority-values-first", o.service.low_priority_first,
                "smaller priorities are taken up first, as by vLLM")
      ->needs("--enable-priority-scheduling")
      ->group(group);
  const auto seconds = [&](const char* name, double& value, const char* what) {
    command.add_option(name, value, what)->check(CLI::Range(0.0, 1e6))->capture_default_str()->group(group);
  };
  seconds("--queue-timeout", o.service.queue_timeout,
          "seconds after which a request that waits for its first step gets "
          "503; 0: none; requests may say queue_timeout");
  seconds("--request-timeout", o.service.request_timeout,
          "seconds after which an answer ends with what there is; 0: none; "
          "requests may say timeout");
  command.add_flag("--disable-radix-cache", o.no_prefix_cache, "do not reuse the beginnings of earlier prompts")
      ->group(group);
  command
      .add_flag("--enable-deterministic-inference", o.deterministic,
                "a text depends on its request alone, not on what else is running; requests without a seed take "
                "--random-seed")
      ->group(group);
  check_uint64(*command.add_option("--random-seed", o.random_seed, "where the seeds of requests without one come from")
                    ->group(group));
}

// All names of a list of parsers, and "none".
template <class Formats>
std::vector<std::string> names(const Formats& formats) {
  std::vector<std::string> all;
  for (const auto& format : formats) all.insert(all.end(), format.names.begin(), format.names.end());
  all.emplace_back("none");
  return all;
}

void add_server_options(CLI::App& command, Options& o) {
  const char* group = "Server";
  o.http.port = 30000;
  command.add_option("--host", o.http.host, "address to listen on; 0.0.0.0: every one of this machine")
      ->capture_default_str()
      ->group(group);
  command.add_option("--port", o.http.port, "0: the system chooses, and the first line says which")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--served-model-name", o.names,
                  "names that requests may call the model, *: any; default: --model-path and its last part")
      ->group(group);
  // A shell variable that is not set must not open the server, nor make the next option its key: CLI11 takes whatever
  // follows as the value.
  const auto key = [&](const char* name, std::string& value, const char* what) {
    command.add_option(name, value, what)
        ->check(CLI::Validator(
            [name, &command](const std::string& text) -> std::string {
              check(!text.empty(), "{} is empty; give a key, or leave the option out", name);
              check(command.get_option_no_throw(text) == nullptr, "{} has no value: {} is an option", name, text);
              return "";
            },
            ""))
        ->group(group);
  };
  key("--api-key", o.service.api_key, "requests must carry it, except for / and /health");
  key("--admin-api-key", o.service.admin_api_key,
      "what controls the server (requests of others, weights, memory, the cache) needs this one");
  command.add_option("--chat-template", o.chat_template, "file with a Jinja template instead of the checkpoint's")
      ->group(group);
  command
      .add_option("--tool-call-parser", o.service.tool_call_parser,
                  "how the model writes calls of tools; default: as the chat template shows")
      ->check(CLI::IsMember(names(server::tool_call_formats())))
      ->group(group);
  command
      .add_option(
          "--reasoning-parser", o.service.reasoning_parser,
          "how it marks its thoughts, which chats give as reasoning_content; default: as the chat template shows; "
          "deepseek-r1: between <think> and </think> as qwen3, also where the first is missing")
      ->check(CLI::IsMember(names(server::reasoning_formats())))
      ->group(group);
  command
      .add_option_function<std::string>(
          "--unknown-fields", [&o](const std::string& word) { o.service.ignore_unknown_fields = word == "ignore"; },
          "fields of requests that this server does not know: refuse (400), or ignore and name each once in the log")
      ->check(CLI::IsMember({"refuse", "ignore"}))
      ->default_str("refuse")
      ->group(group);
  command
      .add_option("--sampling-defaults", o.sampling_defaults,
                  "for requests that do not say: model (generation_config.json) or openai (temperature 1)")
      ->check(CLI::IsMember({"model", "openai"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--weights-folder", o.service.weight_folders,
                  "weights of requests may be read from below this folder; may be given again")
      ->check(CLI::ExistingDirectory)
      ->group(group);
  command
      .add_flag("--allow-weight-update", o.service.allow_weight_update,
                "/update_weights_from_tensor may replace tensors by those of a shared memory or of a file below a "
                "--weights-folder")
      ->group(group);
  command.add_option("--profile-folder", o.service.profile_folder, "where /start_profile writes a file for every step")
      ->check(CLI::ExistingDirectory)
      ->group(group);
  command
      .add_option("--allowed-hosts", o.service.allowed_hosts,
                  "names in the Host header to accept besides the loopback's, when listening there without a key")
      ->group(group);
  command.add_option("--cors-origins", o.service.cors_origins, "origins whose pages may use the server; *: all")
      ->check(CLI::Validator(
          [](const std::string& origin) -> std::string {
            check(is_origin(origin), "--cors-origins is \"{}\"; accepted: scheme://host, scheme://host:port, and *",
                  origin);
            return "";
          },
          ""))
      ->group(group);
  command
      .add_option(
          "--kv-events-config", o.kv_events,
          "tells routers which prefixes are cached, as vLLM and SGLang do: JSON such as "
          R"({"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv"})")
      ->group(group);
  command
      .add_option("--metrics-prefix", o.service.metrics_prefixes,
                  "whose names /metrics has, for dashboards and routers: sluice, sglang, vllm; several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"sluice", "sglang", "vllm"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-connections", o.http.max_connections,
                  "beyond it, one without a request gives way, else a new one is told 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-request-bytes", o.http.body_bytes, "longest body of a request; longer ones get 413")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 30))
      ->capture_default_str()
      ->group(group);
  command.add_option("--shutdown-timeout", o.drain_seconds, "seconds that running answers get after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(group);
}
}  // namespace

void add_serve(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      add_command(parent, shared,
                  {"serve", "answer OpenAI's and SGLang's HTTP requests",
                   "  sluice serve --model-path models/tiny-nemotron-h --port 30000\n"
                   "  sluice serve --model-path DIR --host 0.0.0.0 --api-key SECRET --served-model-name my-model\n"
                   "  sluice serve --model-path DIR --speculative-algorithm NEXTN --max-running-requests 8\n"},
                  [o, &shared] {
                    if (!run(*o, shared)) return;
                    // A compilation cannot be stopped, and must not see main() destroy what it works with.
                    std::fflush(nullptr);
                    std::_Exit(kExitOk);
                  });
  add_model_options(*command, o->model);
  add_server_options(*command, *o);
  add_engine_options(*command, *o);
  add_launch_options(*command, o->engine.recording, o->engine.overlap);
  add_speculative_options(*command, o->speculative, o->model);
  add_habit_options(*command, o->habits);
}

}  // namespace sluice::apps
