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

#include "serve_options.h"
#include "server/api_server.h"
#include "server/in_process_engine.h"
#include "server/kv_events/publisher.h"
#include "shutdown_signal.h"
#include "version.h"

namespace sluice::apps {

namespace {
constexpr std::chrono::seconds kFaultDrain{5};  // for the answers that say so

// Every connection is a descriptor, and so are the checkpoint's files and the standard streams.
void raise_descriptor_limit(int& max_connections, const Context& ctx) {
  constexpr int kOthers = 80;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= rlim_t{1} << 30) return;
  const int most = std::max(1, static_cast<int>(limit.rlim_cur) - kOthers);
  if (max_connections <= most) return;
  ctx.log(LogLevel::warning,
          fmt::format("--max-connections is {} and not {}: {} files may be open, of which {} are kept for other things",
                      most, max_connections, limit.rlim_cur, kOthers));
  max_connections = most;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// Lines come from several threads here.
Context with_locked_log(Context ctx) {
  auto mutex = std::make_shared<std::mutex>();
  ctx.log = [mutex, log = ctx.log](LogLevel level, std::string_view line) {
    const std::lock_guard lock(*mutex);
    log(level, line);
  };
  return ctx;
}

std::shared_ptr<server::ServedModel> served_model(const ServeOptions& o, text::Tokenizer tokenizer,
                                                  const model::ModelInfo& info, const std::string& template_text) {
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
  return std::make_shared<server::ServedModel>(std::move(names), o.model.path, std::move(tokenizer), info,
                                               std::move(defaults), template_text, o.chat_template);
}

std::unique_ptr<server::KvEventPublisher> event_publisher(ServeOptions& o, const Context& ctx) {
  if (!o.kv_events) return nullptr;
  const server::KvEventsConfig config = server::parse_kv_events_config(*o.kv_events, "--kv-events-config");
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

// keys: requests need one, which the line has from the environment, as it may end in a log.
void print_ready(const std::string& url, const server::ServedModel& model, bool keys) {
  std::printf("ready: %s serves %s\n", url.c_str(), model.names[0].c_str());
  std::printf("  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n", url.c_str(),
              keys ? " -H \"Authorization: Bearer $API_KEY\"" : "");
  std::printf("    -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
              model.names[0].c_str());
  std::fflush(stdout);
}

// What follows from the options and is not one of them.
void complete(ServeOptions& o, const Context& ctx) {
  raise_descriptor_limit(o.http.max_connections, ctx);
  o.model.deterministic = o.model.deterministic || o.deterministic;
  o.engine.speculative_steps = o.speculative.steps();
  o.engine.adaptive_drafts = !o.speculative.fixed_steps;
  o.engine.prefix_cache = !o.no_prefix_cache;
  o.service.log = [log = ctx.log](std::string_view line) { log(LogLevel::info, line); };
  o.service.version = version_number();
  o.service.build = version_text();
  o.service.random_seed = o.random_seed.value_or(o.deterministic ? 42 : std::random_device{}());
  o.service.fixed_seed = o.deterministic;  // as SGLang: the same request gives the same text
  // A name that a browser resolves to this machine must not open it to that name's pages.
  o.service.check_host = o.service.api_key.empty() && is_loopback(o.http.host);
}

std::string url_of(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != host.npos;
  return fmt::format("http://{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);
}

std::shared_ptr<server::InProcessEngine> make_engine(const Context& ctx, const ServeOptions& o, model::LiveModel live,
                                                     model::LoadOptions loaded, const text::Tokenizer& tokenizer) {
  auto options_of = [ctx = Context(ctx), options = o.model](const std::string& path) mutable {
    options.path = path;
    options.load_format = "auto";
    return load_options(ctx, options);
  };
  return std::make_shared<server::InProcessEngine>(ctx, std::move(live), std::move(loaded), tokenizer, o.engine,
                                                   std::move(options_of));
}

void log_sizes(const Context& ctx, const ServeOptions& o, const server::InProcessEngine& engine,
               const model::ModelInfo& model) {
  const engine::EngineConfig& config = engine.config();
  ctx.log(
      LogLevel::info,
      fmt::format("weights {:.2f} GB; cache {:.2f} GB for {} tokens; context {} tokens; at most {} answers at once, "
                  "{} waiting",
                  static_cast<double>(model.weight_bytes) / 1e9, static_cast<double>(engine.cache_bytes()) / 1e9,
                  config.cache_tokens, config.context_length, config.max_running, config.max_queued));
  const int64_t wanted = o.engine.context_length ? o.engine.context_length : model.max_positions;
  if (config.context_length < wanted)
    ctx.log(LogLevel::warning,
            fmt::format("the cache of {} tokens bounds the context: {} tokens instead of {}; a larger {} allows more",
                        config.cache_tokens, config.context_length, wanted,
                        o.engine.mem_fraction_static ? "--mem-fraction-static" : "--max-total-tokens"));
}

// Returns whether grammars still compile, which nobody wants any more.
bool run(ServeOptions o, Shared& shared) {
  Context ctx = with_locked_log(shared.context(o.model.device));
  const std::string template_text = o.chat_template.empty() ? "" : read_text_file(o.chat_template);
  complete(o, ctx);
  if (o.service.api_key.empty() && !is_loopback(o.http.host))
    ctx.log(LogLevel::warning,
            fmt::format("--host {} without --api-key: whoever reaches this machine may use the server", o.http.host));
  for (const std::string& line : o.habits) ctx.log(LogLevel::warning, line);

  const std::unique_ptr<server::KvEventPublisher> events = event_publisher(o, ctx);  // outlives the engine
  server::ApiServer server(o.http, o.service);
  const std::string url = url_of(o.http.host, server.port());
  std::printf("listening on %s; answers 503 until the model is loaded\n", url.c_str());
  std::fflush(stdout);

  text::Tokenizer tokenizer = model::load_tokenizer(o.model.path);
  model::LoadOptions loaded = load_options(ctx, o.model);
  model::LiveModel live = model::load_live_model(ctx, loaded, engine::cache_plan(o.engine, ctx.device().id()));
  const std::shared_ptr<server::ServedModel> served =
      served_model(o, std::move(tokenizer), live.model->info(), template_text);
  if (!served->chat_template_error().empty())
    ctx.log(LogLevel::warning, fmt::format("no chat: {}", served->chat_template_error()));
  if (!served->defaults.source.empty()) ctx.log(LogLevel::info, "sampling defaults from " + served->defaults.source);
  const auto engine = make_engine(ctx, o, std::move(live), std::move(loaded), served->tokenizer);
  if (events)
    engine->publish_cache_events([&](std::vector<engine::CacheEvent> batch) { events->push(std::move(batch)); });
  log_sizes(ctx, o, *engine, served->info);
  shared.clear_progress();
  watch_for_shutdown();
  engine->on_fault(ask_for_shutdown);
  server.set_ready(served, engine);
  print_ready(url, *served, !o.service.api_key.empty());

  wait_for_shutdown();
  if (const std::string fault = engine->fault(); !fault.empty()) {
    server.drain(kFaultDrain);
    server.stop();
    fail(ErrorCode::cuda, "the device has failed, which ends the server: {}", fault);
  }
  ctx.log(LogLevel::info, fmt::format("shutting down: what runs is finished, at most {} s; a second signal ends it at "
                                      "once",
                                      o.drain_seconds));
  server.drain(std::chrono::seconds(o.drain_seconds));
  server.stop();
  return served->grammars().stats().pending > 0;
}
}  // namespace

void add_serve(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<ServeOptions>();
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
  add_serve_options(*command, *o);
}

}  // namespace sluice::apps
