// SPDX-License-Identifier: Apache-2.0
// `sluice generate`: a prompt's continuation, streamed as it comes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "interrupt.h"
#include "model/generate.h"
#include "model_options.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/special_guard.h"

namespace sluice::apps {

namespace {
struct Options {
  ModelOptions model;
  SpeculativeOptions speculative;
  model::GenerateOptions generate;
  model::RecordingConfig recording;
  std::optional<bool> overlap;
  std::string prompt;
  bool chat = false, json = false, ignore_eos = false;
};

// In a chat the template's special tokens are tokens; those that the prompt spells out are text, as in the server.
std::vector<int32_t> prompt_ids(const Options& o, const text::Tokenizer& tokenizer) {
  if (!o.chat) return tokenizer.encode(o.prompt);
  if (tokenizer.chat_template().empty())
    fail(ErrorCode::unsupported, "{} has no chat template; leave --chat out", o.model.path);
  using text::jinja::Value;
  text::ChatOptions chat;
  const text::SpecialGuard special(tokenizer);
  chat.messages = Value::list({Value::dict({{"role", "user"}, {"content", special.guard(o.prompt)}})});
  chat.bos_token = tokenizer.bos_token();
  chat.eos_token = tokenizer.eos_token();
  chat.pad_token = tokenizer.pad_token();
  chat.now = text::local_time();
  return special.encode(tokenizer, text::ChatTemplate(tokenizer.chat_template(), o.model.path).render(chat));
}

const char* name_of(model::FinishReason reason) {
  switch (reason) {
    case model::FinishReason::stop:
      return "stop";
    case model::FinishReason::length:
      return "length";
    case model::FinishReason::cancelled:
      return "cancelled";
  }
  return "?";
}

void print_json(const std::vector<int32_t>& prompt, const model::Generated& out, const std::string& text,
                bool speculative) {
  nlohmann::ordered_json j{{"text", text},
                           {"output_ids", out.ids},
                           {"prompt_ids", prompt},
                           {"finish_reason", name_of(out.reason)},
                           {"prefill_seconds", out.prefill_seconds},
                           {"decode_seconds", out.decode_seconds}};
  if (speculative)
    j["speculative"] = {{"drafted", out.drafted},
                        {"accepted", out.accepted},
                        {"accept_rate", out.accept_rate()},
                        {"accept_length", out.accept_length()}};
  std::printf("%s\n", j.dump().c_str());
}

void print_speed(size_t prompt_tokens, const model::Generated& out, bool speculative) {
  // The first new token comes out of the prompt's pass.
  const auto prompt = static_cast<double>(prompt_tokens), decoded = static_cast<double>(out.ids.size()) - 1;
  std::fprintf(stderr, "prompt: %zu tokens, %.0f tok/s; new: %zu tokens, %.0f tok/s", prompt_tokens,
               prompt / std::max(out.prefill_seconds, 1e-9), out.ids.size(),
               std::max(decoded, 0.0) / std::max(out.decode_seconds, 1e-9));
  if (speculative)
    std::fprintf(stderr, "; accept rate %.3f, accept length %.2f", out.accept_rate(), out.accept_length());
  std::fprintf(stderr, "\n");
}

// The streamed text ends with a line end, also when Ctrl-C or an error cuts it short.
struct LineEnd {
  const std::string& text;
  bool streamed;
  ~LineEnd() {
    if (streamed && !text.empty()) std::puts("");
  }
};

void run(const Options& o, Shared& shared) {
  Context ctx = shared.context(o.model.device);
  model::GenerateOptions generate = o.generate;
  model::validate(generate.sampling);
  check(o.chat || !o.prompt.empty(), "--prompt is empty; give at least one character");
  const text::Tokenizer tokenizer = model::load_tokenizer(o.model.path);
  const std::vector<int32_t> prompt = prompt_ids(o, tokenizer);
  check(!prompt.empty(), "--prompt has no tokens {}; give other text",
        o.chat ? "after the model's chat template" : "for the model's tokenizer");
  const auto model = load_model(ctx, o.model);

  const model::ModelInfo& info = model->info();
  const auto length = static_cast<int64_t>(prompt.size());
  check(length < info.max_positions, "the prompt has {} tokens; {} has room for {} positions, prompt and answer",
        length, info.architecture, info.max_positions);
  generate.max_new_tokens = std::min(generate.max_new_tokens, info.max_positions - length);
  if (!o.ignore_eos) generate.stop_tokens = info.stop_tokens;

  model::Generator generator(ctx, *model,
                             {.max_tokens = length + generate.max_new_tokens,
                              .speculative_steps = o.speculative.steps(),
                              .recording = o.recording,
                              .overlap = o.overlap,
                              .adaptive_drafts = !o.speculative.fixed_steps});
  text::Detokenizer pieces(tokenizer, true);
  std::string text;
  const auto show = [&](const std::string& piece) {
    text += piece;
    if (o.json || piece.empty()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  const model::Generated out = [&] {
    const LineEnd end{text, !o.json};
    const model::Generated generated = generator.run(prompt, generate, [&](int32_t id) {
      throw_if_interrupted();
      show(pieces.push(id));
      return true;
    });
    show(pieces.finish());
    return generated;
  }();
  const bool speculative = o.speculative.steps() > 0;
  if (o.json) print_json(prompt, out, text, speculative);
  std::fflush(stdout);  // a log that takes both streams gets the text first
  print_speed(prompt.size(), out, speculative);
}
}  // namespace

void add_generate(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(
      parent, shared,
      {"generate", "continue a prompt, token by token",
       "  sluice generate --model-path models/tiny-nemotron-h --prompt \"Once upon a time\"\n"
       "  sluice generate --model-path DIR --chat --prompt \"Hello\" --max-new-tokens 64 --temperature 0.7 --seed 1\n"
       "  sluice generate --model-path DIR --prompt TEXT --speculative-algorithm NEXTN --json\n"},
      [o, &shared] { run(*o, shared); });
  add_model_options(*command, o->model);
  command->add_option("--prompt", o->prompt, "the text to continue")->required();
  command->add_flag("--chat", o->chat, "send the prompt as a user's message through the checkpoint's chat template");
  command->add_option("--max-new-tokens", o->generate.max_new_tokens, "the most tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_flag("--ignore-eos", o->ignore_eos, "do not end at the checkpoint's end tokens");
  command->add_flag("--json", o->json, "print one JSON object with text, ids and timings at the end");
  const char* group = "Sampling";
  model::SamplingOptions& s = o->generate.sampling;
  command->add_option("--temperature", s.temperature, "0: always the most likely token")
      ->capture_default_str()
      ->group(group);
  command->add_option("--top-k", s.top_k, "choose among this many of the most likely tokens; 0: all")
      ->capture_default_str()
      ->group(group);
  command->add_option("--top-p", s.top_p, "choose among the most likely tokens that together reach this probability")
      ->capture_default_str()
      ->group(group);
  check_uint64(*command->add_option("--seed", s.seed, "of the choices; the same seed gives the same text")
                    ->capture_default_str()
                    ->group(group));
  add_speculative_options(*command, o->speculative, o->model);
  add_launch_options(*command, o->recording, o->overlap);
}

}  // namespace sluice::apps
