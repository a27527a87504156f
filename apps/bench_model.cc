// SPDX-License-Identifier: Apache-2.0
// `sluice bench model`: prefill and decode tokens per second of a whole model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "interrupt.h"
#include "median.h"
#include "model/generate.h"
#include "model_cells.h"
#include "model_options.h"
#include "model_profile.h"

namespace sluice::apps {

namespace {
struct Options {
  ModelOptions model;
  SpeculativeOptions speculative;
  model::RecordingConfig recording;
  std::optional<bool> overlap;
  std::vector<int64_t> batch_sizes, prompt_tokens{512};
  std::vector<std::string> prefill;
  std::string routing = "model";
  int64_t new_tokens = 128;
  int repeat = 5;
  bool json = false, from_stdin = false, profile = false;
};

constexpr int64_t kMaxTokens = int64_t{1} << 24;

struct Rates {
  double prefill = 0, decode = 0, accept_length = 0;
};

Rates measure(Context& ctx, const model::Model& model, const Options& o, int64_t prompt_tokens) {
  model::GenerateOptions generate;
  generate.max_new_tokens = o.new_tokens;
  model::Generator generator(ctx, model,
                             {.max_tokens = prompt_tokens + o.new_tokens,
                              .speculative_steps = o.speculative.steps(),
                              .recording = o.recording,
                              .overlap = o.overlap,
                              .adaptive_drafts = !o.speculative.fixed_steps});
  // Ids spread over the vocabulary: every expert gets work.
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < prompt_tokens; ++i)
    prompt.push_back(static_cast<int32_t>((i * 2654435761u + 12345) % static_cast<uint64_t>(model.info().vocab)));

  std::vector<double> prefill, decode;
  Rates rates;
  for (int r = 0; r <= o.repeat; ++r) {
    throw_if_interrupted();
    const model::Generated last = generator.run(prompt, generate);
    if (r == 0) continue;  // warm-up
    prefill.push_back(static_cast<double>(prompt_tokens) / last.prefill_seconds);
    if (o.new_tokens > 1) decode.push_back(static_cast<double>(o.new_tokens - 1) / last.decode_seconds);
    rates.accept_length = last.accept_length();
  }
  rates.prefill = median(prefill);
  if (!decode.empty()) rates.decode = median(decode);
  return rates;
}

void print_json(const Context& ctx, const model::ModelInfo& info, const Options& o, int64_t prompt_tokens,
                const Rates& rates) {
  nlohmann::ordered_json j{
      {"model", info.architecture},        {"experts", info.experts},        {"dtype", to_string(info.dtype)},
      {"weight_bytes", info.weight_bytes}, {"threads", ctx.pool.size()},     {"prompt_tokens", prompt_tokens},
      {"new_tokens", o.new_tokens},        {"prefill_tok_s", rates.prefill}, {"decode_tok_s", rates.decode}};
  if (o.speculative.steps() > 0) {
    j["speculative_num_steps"] = o.speculative.steps();
    j["speculative_fixed_steps"] = o.speculative.fixed_steps;
    j["accept_length"] = rates.accept_length;
  }
  std::printf("%s\n", j.dump().c_str());
  std::fflush(stdout);
}

// A line is a prompt length. The reader of the answers decides when the next line comes, so that another program can be
// measured in between while this one sleeps with its model loaded.
void answer_lines(Context& ctx, const model::Model& model, const Options& o) {
  for (std::string line; std::getline(std::cin, line);) {
    int64_t tokens = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), tokens);
    if (error != std::errc{} || end != line.data() + line.size() || tokens < 1 || tokens > kMaxTokens)
      fail(ErrorCode::invalid_argument, "a line of --from-stdin is \"{}\"; accepted: a prompt length from 1 to {}",
           line, kMaxTokens);
    print_json(ctx, model.info(), o, tokens, measure(ctx, model, o, tokens));
  }
}

CellOptions cell_options(const Options& o) {
  CellOptions out;
  out.repeat = o.repeat;
  out.recording = o.recording;
  out.overlap = o.overlap.value_or(true);
  for (const int64_t batch : o.batch_sizes)
    for (const int64_t length : o.prompt_tokens) out.cells.push_back({batch, length, o.new_tokens});
  for (const std::string& text : o.prefill) out.cells.push_back(parse_cell("--prefill", text));
  return out;
}

struct LoadedModel {
  std::unique_ptr<model::Model> model;
  double seconds = 0;
};

LoadedModel load(Context& ctx, const Options& o) {
  const auto start = std::chrono::steady_clock::now();
  model::LoadOptions options = load_options(ctx, o.model);
  options.random_routing = o.routing == "uniform";
  LoadedModel out{model::load_model(ctx, options), 0};
  ctx.queue.wait();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

void print_cell_json(const model::ModelInfo& info, const Options& o, const LoadedModel& loaded, double copy,
                     const CellResult& r) {
  const Cell& c = r.cell;
  const double batch = static_cast<double>(c.batch_size);
  nlohmann::ordered_json j{{"model", info.architecture},
                           {"experts", info.experts},
                           {"dtype", to_string(info.dtype)},
                           {"device", o.model.device},
                           {"routing", o.routing},
                           {"weight_bytes", info.weight_bytes},
                           {"load_s", loaded.seconds},
                           {"batch_size", c.batch_size},
                           {"input_len", c.input_len},
                           {"new_tokens", c.new_tokens},
                           {"prefill_ms", r.prefill_seconds * 1e3},
                           {"prefill_tok_s", batch * static_cast<double>(c.input_len) / r.prefill_seconds}};
  if (c.new_tokens > 1) {
    j["decode_ms"] = r.step_seconds * 1e3;
    j["decode_tok_s"] = batch / r.step_seconds;
    j["step_bytes"] = r.step_bytes;
    j["token_bytes"] = loaded.model->cache_shape().bytes_per_token();
    if (copy > 0) {
      j["copy_tb_s"] = copy / 1e12;
      j["floor_ms"] = r.step_bytes / copy * 1e3;
      j["ratio"] = r.step_seconds * copy / r.step_bytes;
    }
  }
  std::printf("%s\n", j.dump().c_str());
  std::fflush(stdout);
}

void print_cell(double copy, const CellResult& r) {
  const Cell& c = r.cell;
  const auto batch = static_cast<double>(c.batch_size);
  std::printf("B=%-4lld prompt %-6lld prefill %10.2f ms %9.0f tok/s", static_cast<long long>(c.batch_size),
              static_cast<long long>(c.input_len), r.prefill_seconds * 1e3,
              batch * static_cast<double>(c.input_len) / r.prefill_seconds);
  if (c.new_tokens > 1)
    std::printf("   decode %8.3f ms per step %9.1f tok/s", r.step_seconds * 1e3, batch / r.step_seconds);
  if (c.new_tokens > 1 && copy > 0)
    std::printf("   floor %7.3f ms  x%.2f", r.step_bytes / copy * 1e3, r.step_seconds * copy / r.step_bytes);
  std::printf("\n");
  std::fflush(stdout);
}

void print_profile(const Cell& cell, const std::vector<KernelTime>& kernels, bool json) {
  double total = 0;
  for (const KernelTime& k : kernels) total += k.microseconds;
  if (json) {
    nlohmann::ordered_json j{{"profile_batch_size", cell.batch_size},
                             {"input_len", cell.input_len},
                             {"prompts", cell.new_tokens == 1},
                             {"us", total}};
    for (const KernelTime& k : kernels)
      j["kernels"].push_back({{"name", k.name}, {"count", k.count}, {"us", k.microseconds}});
    std::printf("%s\n", j.dump().c_str());
  } else {
    std::printf("%s of %lldx%lld, kernels one by one: %.1f us\n", cell.new_tokens == 1 ? "prompts" : "a step",
                static_cast<long long>(cell.batch_size), static_cast<long long>(cell.input_len), total);
    for (const KernelTime& k : kernels)
      std::printf("  %9.1f us %5.1f %%  %5lld x %8.2f us  %.110s\n", k.microseconds, 100 * k.microseconds / total,
                  static_cast<long long>(k.count), k.microseconds / static_cast<double>(k.count), k.name.c_str());
  }
  std::fflush(stdout);
}

void run_batches(Context& ctx, const LoadedModel& loaded, const Options& o) {
  const model::ModelInfo& info = loaded.model->info();
  const double copy = copy_bytes_per_second(ctx);
  if (!o.json) {
    std::printf("%s, %s, %.1f MB of weights loaded in %.2f s\n", info.architecture.c_str(),
                to_string(info.dtype).data(), static_cast<double>(info.weight_bytes) / 1e6, loaded.seconds);
    if (!info.experts.empty()) std::printf("experts: %s, routing: %s\n", info.experts.c_str(), o.routing.c_str());
    if (copy > 0) std::printf("copies within the device: %.2f TB/s, of which floors are made\n", copy / 1e12);
  }
  run_cells(ctx, *loaded.model, cell_options(o), [&](const CellResult& r) {
    if (o.json)
      print_cell_json(info, o, loaded, copy, r);
    else
      print_cell(copy, r);
  });
  if (!o.profile) return;
  const CellOptions options = cell_options(o);
  const auto profile = [&](const Cell& cell) {
    print_profile(cell, profile_step(ctx, *loaded.model, cell, options.chunk), o.json);
  };
  for (const int64_t batch : o.batch_sizes) profile({batch, o.prompt_tokens[0], 2});
  for (const std::string& text : o.prefill) profile(parse_cell("--prefill", text));
}

void run(const Options& o, Shared& shared) {
  Context ctx = shared.context(o.model.device);
  const bool batches = !o.batch_sizes.empty() || !o.prefill.empty();
  check(batches || o.prompt_tokens.size() == 1,
        "--input-len has {} values, which takes --batch-size; accepted without it: one", o.prompt_tokens.size());
  check(!o.profile || !ctx.device().id().is_host(), "--profile is given with --device cpu; accepted: cuda, cuda:N");
  check(!o.profile || batches, "--profile is given without --batch-size or --prefill, whose steps it times");
  check(!batches || o.speculative.steps() == 0,
        "--speculative-algorithm is {}; with --batch-size and --prefill it is not available", o.speculative.algorithm);
  if (batches) cell_options(o);  // refuses before it loads
  const LoadedModel loaded = load(ctx, o);
  const auto& model = loaded.model;
  if (batches) return run_batches(ctx, loaded, o);
  const model::ModelInfo& info = model->info();
  if (o.from_stdin) return answer_lines(ctx, *model, o);
  const int64_t prompt_tokens = o.prompt_tokens[0];
  const Rates rates = measure(ctx, *model, o, prompt_tokens);
  if (o.json) return print_json(ctx, info, o, prompt_tokens, rates);
  std::printf("%s, %s, %.1f MB of weights, %d threads\n", info.architecture.c_str(), to_string(info.dtype).data(),
              static_cast<double>(info.weight_bytes) / 1e6, ctx.pool.size());
  if (!info.experts.empty()) std::printf("experts: %s\n", info.experts.c_str());
  std::printf("prefill of %lld tokens: %.0f tok/s; decode of %lld: %.0f tok/s (median of %d)\n",
              static_cast<long long>(prompt_tokens), rates.prefill, static_cast<long long>(o.new_tokens), rates.decode,
              o.repeat);
  if (o.speculative.steps() > 0) std::printf("accept length %.2f\n", rates.accept_length);
}
}  // namespace

void add_bench_model(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      add_command(parent, shared,
                  {"model", "prefill and decode tokens per second of a whole checkpoint",
                   "  sluice bench model --model-path DIR --prompt-tokens 512 --new-tokens 128 --json\n"
                   "  sluice bench model --model-path DIR --load-format dummy --device cuda --batch-size 1,8,64 "
                   "--input-len 64 --routing uniform\n"},
                  [o, &shared] { run(*o, shared); });
  add_model_options(*command, o->model);
  const auto count = CLI::Range(int64_t{1}, kMaxTokens);
  CLI::Option* prompt =
      command->add_option("--input-len,--prompt-tokens", o->prompt_tokens, "prompt length; with --batch-size a list")
          ->delimiter(',')
          ->check(count)
          ->capture_default_str();
  CLI::Option* batch =
      command
          ->add_option(
              "--batch-size", o->batch_sizes,
              "sequences that run together, a list: for each, with each prompt length, the time to the first "
              "tokens and of a decoding step, and the step's floor: bytes it cannot avoid at the rate of copies")
          ->delimiter(',')
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  CLI::Option* prefill = command
                             ->add_option("--prefill", o->prefill,
                                          "prompts alone, a list of batch size x prompt length, as in 1x8192,16x1024")
                             ->delimiter(',');
  command
      ->add_option(
          "--routing", o->routing,
          "model: the routers choose; uniform: experts are chosen at random, as often each, as no dummy model's "
          "routers do")
      ->check(CLI::IsMember({"model", "uniform"}))
      ->capture_default_str();
  command->add_option("--new-tokens", o->new_tokens, "tokens to decode")->check(count)->capture_default_str();
  command
      ->add_option("--repeat", o->repeat, "measured runs; the median counts, with --batch-size and --prefill the best")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--profile", o->profile,
                    "with --batch-size or --prefill on a GPU: the time of each kernel of a decoding step and of the "
                    "prompts' first step, run one after another");
  command->add_flag("--json", o->json, "print one JSON object, for each batch");
  command
      ->add_flag("--from-stdin", o->from_stdin,
                 "read prompt lengths, one per line, and print a JSON object for each; the model stays loaded")
      ->excludes(prompt)
      ->excludes(batch)
      ->excludes(prefill);
  add_speculative_options(*command, o->speculative, o->model);
  add_launch_options(*command, o->recording, o->overlap);
}

}  // namespace sluice::apps
