// SPDX-License-Identifier: Apache-2.0
// `sluice bench model`: prefill and decode tokens a second of a whole model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "interrupt.h"
#include "model/generate.h"
#include "model_options.h"

namespace sluice::apps {

namespace {
struct Options {
  ModelOptions model;
  SpeculativeOptions speculative;
  int64_t prompt_tokens = 512, new_tokens = 128;
  int repeat = 5;
  bool json = false;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void run(const Options& o, Shared& shared) {
  Context ctx = shared.context();
  const auto model = load_model(ctx, o.model);
  const model::ModelInfo& info = model->info();
  model::GenerateOptions generate;
  generate.max_new_tokens = o.new_tokens;
  generate.speculative_steps = o.speculative.steps();
  model::Generator generator(*model, o.prompt_tokens + o.new_tokens, generate.speculative_steps);
  // Ids spread over the vocabulary: every expert gets work.
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < o.prompt_tokens; ++i)
    prompt.push_back(static_cast<int32_t>((i * 2654435761u + 12345) % static_cast<uint64_t>(info.vocab)));

  std::vector<double> prefill, decode;
  model::Generated last;
  for (int r = 0; r <= o.repeat; ++r) {
    throw_if_interrupted();
    last = generator.run(ctx, prompt, generate);
    if (r == 0) continue;  // warm-up
    prefill.push_back(static_cast<double>(o.prompt_tokens) / last.prefill_seconds);
    if (o.new_tokens > 1) decode.push_back(static_cast<double>(o.new_tokens - 1) / last.decode_seconds);
  }
  const double decode_rate = decode.empty() ? 0 : median(decode);
  const auto megabytes = static_cast<double>(info.weight_bytes) / 1e6;
  if (o.json) {
    nlohmann::ordered_json j{
        {"model", info.architecture},        {"experts", info.experts},          {"dtype", to_string(info.dtype)},
        {"weight_bytes", info.weight_bytes}, {"threads", ctx.pool.size()},       {"prompt_tokens", o.prompt_tokens},
        {"new_tokens", o.new_tokens},        {"prefill_tok_s", median(prefill)}, {"decode_tok_s", decode_rate}};
    if (generate.speculative_steps > 0) j["accept_length"] = last.accept_length();
    std::printf("%s\n", j.dump().c_str());
    return;
  }
  std::printf("%s, %s, %.1f MB of weights, %d threads\n", info.architecture.c_str(), to_string(info.dtype).data(),
              megabytes, ctx.pool.size());
  if (!info.experts.empty()) std::printf("experts: %s\n", info.experts.c_str());
  std::printf("prefill of %lld tokens: %.0f tok/s; decode of %lld: %.0f tok/s (median of %d)\n",
              static_cast<long long>(o.prompt_tokens), median(prefill), static_cast<long long>(o.new_tokens),
              decode_rate, o.repeat);
  if (generate.speculative_steps > 0) std::printf("accept length %.2f\n", last.accept_length());
}
}  // namespace

void add_bench_model(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      add_command(parent, shared,
                  {"model", "prefill and decode tokens a second of a whole checkpoint",
                   "  sluice bench model --model-path DIR --prompt-tokens 512 --new-tokens 128 --json\n"},
                  [o, &shared] { run(*o, shared); });
  add_model_options(*command, o->model);
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 24);
  command->add_option("--prompt-tokens", o->prompt_tokens, "prompt length")->check(count)->capture_default_str();
  command->add_option("--new-tokens", o->new_tokens, "tokens to decode")->check(count)->capture_default_str();
  command->add_option("--repeat", o->repeat, "measured runs; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", o->json, "print one JSON object");
  add_speculative_options(*command, o->speculative, o->model);
}

}  // namespace sluice::apps
