// SPDX-License-Identifier: Apache-2.0
#include "habit_options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <string_view>

#include "base/error.h"

namespace sluice::apps {

namespace {
// `value`: the only one that is accepted; "": the option takes none; "*": any.
struct Accepted {
  const char *name, *value, *why;
};
constexpr std::array kAccepted{
    Accepted{"--trust-remote-code", "", "no code of a checkpoint is ever run"},
    Accepted{"--enable-metrics", "", "/metrics is always there"},
    Accepted{"--skip-server-warmup", "", "there is no warm-up"},
    Accepted{"--disable-flashinfer-autotune", "", "nothing is tuned at the start"},
    Accepted{"--enable-prefix-caching", "", "it is on unless --disable-radix-cache"},
    Accepted{"--enable-chunked-prefill", "", "it is on; --chunked-prefill-size says how much"},
    Accepted{"--enable-auto-tool-choice", "", "it is on where the format of calls is known; see --tool-call-parser"},
    Accepted{"--enable-cache-report", "", "usage always says how much of a prompt was cached"},
    Accepted{"--enable-prompt-tokens-details", "", "usage always says how much of a prompt was cached"},
    Accepted{"--disable-log-requests", "", "prompts are never logged"},
    Accepted{"--no-enable-log-requests", "", "prompts are never logged"},
    Accepted{"--disable-log-stats", "", "the log has a line for each answer, with --log-level info"},
    Accepted{"--disable-custom-all-reduce", "", "there is one process"},
    Accepted{"--attention-backend", "*", "there is one"},
    Accepted{"--sampling-backend", "*", "there is one"},
    Accepted{"--schedule-policy", "fcfs",
             "requests are served in order of arrival, and of priority with "
             "--enable-priority-scheduling"},
    Accepted{"--enable-return-routed-experts", "", "requests may always ask for them"},
    Accepted{"--enable-request-id-headers", "", "every answer has X-Request-Id"},
    Accepted{"--enable-server-load-tracking", "", "/v1/loads is always there"},
    Accepted{"--tokenizer-worker-num", "*", "the server's own threads tokenize"},
    Accepted{"--detokenizer-worker-num", "*", "the engine's own thread makes the texts"},
    Accepted{"--default-priority-value", "0", "requests without a priority have 0"},
    Accepted{"--grammar-backend", "xgrammar", "there is one"},
    Accepted{"--runner", "generate", "the models here make text"},
    Accepted{"--api-server-count", "1", "there is one process"},
    Accepted{"--tokenizer-mode", "auto", "the checkpoint's own tokenizer is used"},
    Accepted{"--dp-size", "1", "there is one process"},
    Accepted{"--dp", "1", "there is one process"},
    Accepted{"--data-parallel-size", "1", "there is one process"},
    Accepted{"--ep-size", "1", "there is one process"},
    Accepted{"--ep", "1", "there is one process"},
    Accepted{"--expert-parallel-size", "1", "there is one process"},
    Accepted{"--pp-size", "1", "there is one process"},
    Accepted{"--pp", "1", "there is one process"},
    Accepted{"--pipeline-parallel-size", "1", "there is one process"},
    Accepted{"--nnodes", "1", "there is one machine"},
    Accepted{"--node-rank", "0", "there is one machine"},
    Accepted{"--moe-a2a-backend", "none", "there is one process"},
    Accepted{"--model-impl", "auto", "each architecture has one implementation"},
    Accepted{"--stream-interval", "1", "every step's tokens are sent"},
};

struct Counterpart {
  const char *name, *here;
  bool stands_alone = false;
};
constexpr std::array kCounterparts{
    Counterpart{"--max-model-len", "--context-length"},
    Counterpart{"--max-num-seqs", "--max-running-requests"},
    Counterpart{"--max-num-batched-tokens", "--chunked-prefill-size"},
    Counterpart{"--max-prefill-tokens", "--chunked-prefill-size"},
    Counterpart{"--speculative-num-draft-tokens", "--speculative-num-steps, whose drafts are one after the other"},
    Counterpart{"--cuda-graph-bs", "--cuda-graph-max-bs"},
    Counterpart{"--max-num-queued-reqs", "--max-queued-requests"},
    Counterpart{"--gpu-memory-utilization", "--mem-fraction-static"},
    Counterpart{"--tensor-parallel-size", "--tp-size"},
    Counterpart{"--block-size", "--page-size"},
    Counterpart{"--seed", "--random-seed"},
    Counterpart{"--no-enable-prefix-caching", "--disable-radix-cache", true},
    Counterpart{"--generation-config", "--sampling-defaults"},
    Counterpart{"--allowed-origins", "--cors-origins"},
    Counterpart{"--speculative-config", "--speculative-algorithm NEXTN --speculative-num-steps 3"},
    Counterpart{"--scheduling-policy",
                "--enable-priority-scheduling "
                "--schedule-low-priority-values-first (for fcfs: nothing)"},
    Counterpart{"--return-tokens-as-token-ids", "the field return_tokens_as_token_ids of a request", true},
    Counterpart{"--enable-force-include-usage", "the field stream_options.include_usage of a request", true},
    Counterpart{"--weight-version", "the field weight_version of /update_weights_from_disk"},
};

struct Absent {
  const char *name, *why;
  bool stands_alone = false;
};
constexpr std::array kAbsent{
    Absent{"--tokenizer", "the checkpoint's own is used"},
    Absent{"--tokenizer-path", "the checkpoint's own is used"},
    Absent{"--revision", "--model-path is a folder; nothing is downloaded"},
    Absent{"--download-dir", "--model-path is a folder; nothing is downloaded"},
    Absent{"--swap-space", "requests that give up their memory are computed again"},
    Absent{"--speculative-eagle-topk", "drafts are one chain"},
    Absent{"--watchdog-timeout", "a step that fails ends its answers with a sentence"},
    Absent{"--enable-torch-compile", "there is no torch", true},
    Absent{"--enable-expert-parallel", "there is one process", true},
    Absent{"--override-generation-config", "change the generation_config.json of a copy instead"},
    Absent{"--json-model-override-args", "change the config.json of a copy instead"},
    Absent{"--hf-overrides", "change the config.json of a copy instead"},
    Absent{"--ssl-keyfile", "TLS is a proxy's work"},
    Absent{"--ssl-certfile", "TLS is a proxy's work"},
    Absent{"--enable-lora", "there are no adapters", true},
    Absent{"--lora-paths", "there are no adapters"},
    Absent{"--lora-modules", "there are no adapters"},
    Absent{"--root-path", "the proxy that adds a prefix to the paths takes it away"},
    Absent{"--skip-tokenizer-init", "send input_ids and read output_ids, which are always there", true},
    Absent{"--incremental-streaming-output",
           "streams of /generate have the text so far; those of /v1/completions have what is new", true},
    Absent{"--enable-tokenizer-info-endpoint", "the tokenizer is in the checkpoint's tokenizer.json", true},
    Absent{"--limit-mm-per-prompt", "the models here read text"},
    Absent{"--cpu-offload-gb", "weights are not moved between memories"},
};

// An empty group hides an option from --help.
void hide(CLI::Option* option) { option->group(""); }
}  // namespace

void add_habit_options(CLI::App& command, std::vector<std::string>& lines) {
  for (const Accepted& a : kAccepted) {
    const std::string_view only = a.value;
    if (only.empty()) {
      hide(command.add_flag_callback(
          a.name, [&lines, a] { lines.push_back(fmt::format("{}: nothing to do, {}", a.name, a.why)); }));
      continue;
    }
    hide(command.add_option_function<std::string>(a.name, [&lines, a, only](const std::string& value) {
      check(only == "*" || value == only, "{} is {}; accepted: {}, {}", a.name, value, only, a.why);
      lines.push_back(fmt::format("{} {}: nothing to do, {}", a.name, value, a.why));
    }));
  }
  const auto refuse = [&](const char* name, bool stands_alone, std::string sentence) {
    const auto say = [sentence = std::move(sentence)] { fail(ErrorCode::invalid_argument, "{}", sentence); };
    hide(stands_alone ? command.add_flag_callback(name, say)
                      : command.add_option_function<std::string>(name, [say](const std::string&) { say(); }));
  };
  for (const Counterpart& c : kCounterparts) {
    const bool option = std::string_view(c.here).starts_with("--");
    refuse(c.name, c.stands_alone, fmt::format("{} is {}{} here", c.name, option ? "called " : "", c.here));
  }
  for (const Absent& a : kAbsent) refuse(a.name, a.stands_alone, fmt::format("{} is not available: {}", a.name, a.why));
}

}  // namespace sluice::apps
