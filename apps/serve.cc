// SPDX-License-Identifier: Apache-2.0
// `sluice serve`: an OpenAI-compatible server for one checkpoint.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <random>

#include "model_options.h"
#include "server/api_server.h"
#include "server/engine_backend.h"
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
  std::string chat_template, sampling_defaults = "model";
  std::optional<uint64_t> random_seed;
  std::optional<double> mem_fraction;
  bool deterministic = false, no_prefix_cache = false;
  int drain_seconds = 60;
};

// Every connection is a descriptor, and so are the checkpoint's files and the standard streams.
void raise_descriptor_limit(int& max_connections) {
  constexpr int kOthers = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < rlim_t{1} << 30)
    max_connections = std::max(1, std::min(max_connections, static_cast<int>(limit.rlim_cur) - kOthers));
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

std::shared_ptr<server::ServedModel> served_model(const Options& o, const model::Model& model) {
  server::SamplingDefaults defaults;
  if (o.sampling_defaults == "model") defaults = server::read_sampling_defaults(o.model.path);
  const std::string template_text = o.chat_template.empty() ? "" : read_text_file(o.chat_template);
  std::vector<std::string> names = o.names;
  if (names.empty()) names.push_back(o.model.path);
  return std::make_shared<server::ServedModel>(std::move(names), o.model.path, load_tokenizer(o.model, model),
                                               model.info(), std::move(defaults), template_text, o.chat_template);
}

// SGLang's way to size the cache: what weights, states and keys and values may take of the machine's memory together.
int64_t cache_tokens_of(double fraction, const model::Model& model, const engine::EngineConfig& engine) {
  const double total = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  const model::CacheShape& shape = model.cache_shape();
  const int64_t states = (engine.max_running + engine.state_snapshots) * shape.bytes_per_slot(1);
  const double left = total * fraction - static_cast<double>(model.info().weight_bytes + states);
  const int64_t token = shape.bytes_per_token();
  const int64_t useful =
      engine.max_running * (engine.context_length ? engine.context_length : model.info().max_positions);
  const int64_t tokens =
      token == 0 ? useful : std::min(useful, static_cast<int64_t>(left / static_cast<double>(token)));
  check(tokens >= engine.block_size,
        "--mem-fraction-static is {}; of {:.2f} GB that leaves no room for keys and values beside {:.2f} GB of weights",
        fraction, total / 1e9, static_cast<double>(model.info().weight_bytes) / 1e9);
  return tokens;
}

void print_ready(const std::string& url, const server::ServedModel& model) {
  std::printf("ready: %s serves %s\n", url.c_str(), model.names[0].c_str());
  std::printf("  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n", url.c_str());
  std::printf("    -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
              model.names[0].c_str());
  std::fflush(stdout);
}

void run(Options o, Shared& shared) {
  Context ctx = with_locked_log(shared.context());
  const auto log = [&](std::string_view line) { ctx.log(LogLevel::info, line); };
  raise_descriptor_limit(o.http.max_connections);
  o.model.deterministic = o.model.deterministic || o.deterministic;
  o.engine.speculative_steps = o.speculative.steps();
  o.engine.prefix_cache = !o.no_prefix_cache;
  o.service.log = log;
  o.service.version = version_text();
  o.service.random_seed = o.random_seed.value_or(o.deterministic ? 42 : std::random_device{}());
  o.service.fixed_seed = o.deterministic;  // as SGLang: the same request gives the same text
  // A name that a browser resolves to this machine must not open it to that name's pages.
  const std::string& host = o.http.host;
  o.service.check_host =
      o.service.api_key.empty() && (host == "localhost" || host == "::1" || host.starts_with("127."));

  server::ApiServer server(o.http, o.service);
  const bool ipv6 = host.find(':') != host.npos;
  const std::string url = fmt::format("http://{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", server.port());
  std::printf("listening on %s; answers 503 until the model is loaded\n", url.c_str());
  std::fflush(stdout);

  std::unique_ptr<model::Model> model = load_model(ctx, o.model);
  const std::shared_ptr<server::ServedModel> served = served_model(o, *model);
  if (!served->chat_template_error().empty())
    ctx.log(LogLevel::warning, fmt::format("no chat: {}", served->chat_template_error()));
  if (!served->defaults.source.empty()) log("sampling defaults from " + served->defaults.source);
  if (o.mem_fraction) o.engine.cache_tokens = cache_tokens_of(*o.mem_fraction, *model, o.engine);
  const auto backend = std::make_shared<server::EngineBackend>(
      ctx, std::move(model), served->tokenizer, o.engine, [&ctx, options = o.model](const std::string& path) mutable {
        options.path = path;
        return load_model(ctx, options);
      });
  const engine::EngineConfig& engine = backend->config();
  log(fmt::format(
      "weights {:.2f} GB; cache {:.2f} GB for {} tokens; context {} tokens; at most {} answers at once, {} "
      "waiting",
      static_cast<double>(served->info.weight_bytes) / 1e9, static_cast<double>(backend->cache_bytes()) / 1e9,
      engine.cache_tokens, engine.context_length, engine.max_running, engine.max_queued));
  shared.clear_progress();
  watch_for_shutdown();
  server.set_ready(served, backend);
  print_ready(url, *served);

  wait_for_shutdown();
  log(fmt::format("shutting down: what runs is finished, at most {} s; a second signal ends it at once",
                  o.drain_seconds));
  server.drain(std::chrono::seconds(o.drain_seconds));
  server.stop();
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
  count("--chunked-prefill-size", o.engine.prefill_chunk, "prompt tokens in one step of the engine", 1, kMany);
  count("--max-total-tokens", o.engine.cache_tokens,
        "tokens of keys and values in memory; 0: as many as all running requests need, at most 65536 or one context", 0,
        kMany);
  command
      .add_option("--mem-fraction-static", o.mem_fraction,
                  "instead: as many as weights and cache together fit into this share of the machine's memory")
      ->check(CLI::Range(0.0, 1.0))
      ->excludes("--max-total-tokens")
      ->group(group);
  count("--page-size", o.engine.block_size, "tokens in a block of the cache, the unit that prompts share", 1, 4096);
  command.add_flag("--disable-radix-cache", o.no_prefix_cache, "do not reuse the beginnings of earlier prompts")
      ->group(group);
  command
      .add_flag("--enable-deterministic-inference", o.deterministic,
                "a text depends on its request alone, not on what else is running; requests without a seed take "
                "--random-seed")
      ->group(group);
  command.add_option("--random-seed", o.random_seed, "where the seeds of requests without one come from")->group(group);
}

void add_server_options(CLI::App& command, Options& o) {
  const char* group = "Server";
  o.http.port = 30000;
  command.add_option("--host", o.http.host, "address to listen on; 0.0.0.0: every one of this machine")
      ->capture_default_str()
      ->group(group);
  command.add_option("--port", o.http.port, "0: the system chooses, and the first line says which")
      ->capture_default_str()
      ->group(group);
  command.add_option("--served-model-name", o.names, "names that requests may call the model; default: --model-path")
      ->group(group);
  command.add_option("--api-key", o.service.api_key, "requests must carry it, except for / and /health")->group(group);
  command
      .add_option("--admin-api-key", o.service.admin_api_key,
                  "/flush_cache, /abort_request and /update_weights_from_disk need this one")
      ->group(group);
  command.add_option("--chat-template", o.chat_template, "file with a Jinja template instead of the checkpoint's")
      ->group(group);
  command
      .add_option("--reasoning-parser", o.service.reasoning_parser,
                  "chats give what stands between <think> and </think> as reasoning_content; deepseek-r1: also without "
                  "the first tag")
      ->check(CLI::IsMember({"qwen3", "deepseek-r1"}))
      ->group(group);
  command
      .add_option("--sampling-defaults", o.sampling_defaults,
                  "for requests that do not say: model (generation_config.json) or openai (temperature 1)")
      ->check(CLI::IsMember({"model", "openai"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--weights-folder", o.service.weight_folders,
                  "/update_weights_from_disk may load from below this folder; may be given again")
      ->group(group);
  command
      .add_option("--allowed-hosts", o.service.allowed_hosts,
                  "names in the Host header to accept besides the loopback's, when listening there without a key")
      ->group(group);
  command.add_option("--cors-origins", o.service.cors_origins, "origins whose pages may use the server; *: all")
      ->group(group);
  command.add_option("--max-connections", o.http.max_connections, "further ones are told 503")
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
                  [o, &shared] { run(*o, shared); });
  add_model_options(*command, o->model);
  add_server_options(*command, *o);
  add_engine_options(*command, *o);
  add_speculative_options(*command, o->speculative, o->model);
}

}  // namespace sluice::apps
