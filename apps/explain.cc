// SPDX-License-Identifier: Apache-2.0
// `sluice explain`: what each MoE backend says to a spec line.
#include <CLI/CLI.hpp>

#include "command.h"
#include "moe/select.h"

namespace sluice::apps {

namespace {

struct Options {
  std::vector<std::string> words;
  std::string backend = "auto";
};

void run(const Options& o) {
  std::string line;
  for (const std::string& word : o.words) line += (line.empty() ? "" : " ") + word;
  const MoeSpec spec = parse_moe_spec(line);
  const auto answers = moe::ask_backends(spec);
  const moe::Backend* chosen = nullptr;
  std::string refusal;
  try {
    chosen = &moe::select(spec, o.backend);
  } catch (const Error& e) {  // shown after every backend has had its line
    if (e.code() != ErrorCode::unsupported) throw;
    refusal = e.what();
  }
  std::printf("%s\n", to_string(spec).c_str());
  for (const auto& [backend, support] : answers) {
    const std::string detail = support.choice.empty() ? "" : " (" + support.choice + ")";
    const std::string text = (!support            ? "cannot: " + support.reason
                              : backend == chosen ? "chosen"
                                                  : "usable") +
                             detail;
    std::printf("%-11s%s\n", (std::string(backend->name()) + ":").c_str(), text.c_str());
  }
  if (!refusal.empty()) fail(ErrorCode::unsupported, "{}", refusal);
}

}  // namespace

void add_explain(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      add_command(parent, shared,
                  {"explain", "print what each MoE backend says to a problem, and which one runs it",
                   "  sluice explain \"experts=128 top_k=8 hidden=2048 inter=768 weights=nvfp4 tokens=64\"\n"},
                  [o] { run(*o); });
  command->add_option("SPEC", o->words, "the problem: key=value words, one argument or several")->required();
  command->add_option("--moe-runner-backend", o->backend, "the backend to choose: " + moe::backend_names());
}

}  // namespace sluice::apps
