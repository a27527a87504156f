// SPDX-License-Identifier: Apache-2.0
#include "serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "argument_checks.h"
#include "habit_options.h"
#include "server/reasoning/reasoning_format.h"
#include "server/tool_calls/tool_call_formats.h"

namespace sluice::apps {

namespace {
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

void add_engine_options(CLI::App& command, ServeOptions& o) {
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
                  "instead: as many as weights and cache together fit into this share of the device's memory, "
                  "and at most as many as all running requests need")
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

void add_server_options(CLI::App& command, ServeOptions& o) {
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
  key("--api-key", o.service.api_key, "requests must carry it, except for /, /health and /ping");
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

void add_serve_options(CLI::App& command, ServeOptions& o) {
  add_model_options(command, o.model);
  add_server_options(command, o);
  add_engine_options(command, o);
  add_launch_options(command, o.engine.recording, o.engine.overlap);
  add_speculative_options(command, o.speculative, o.model);
  add_habit_options(command, o.habits);
}

}  // namespace sluice::apps
