// SPDX-License-Identifier: Apache-2.0
// `sluice eval logits` and `sluice eval perplexity`: a checkpoint against Hugging Face's numbers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "model/perplexity.h"
#include "model/windows.h"
#include "model_options.h"

namespace sluice::apps {

namespace {
struct LogitsOptions {
  ModelOptions model;
  std::string input, output;
};

// input_ids [B, T] or [T], int32 or int64.
std::vector<int64_t> read_ids(const Tensor& t, const std::string& file) {
  if (t.dtype() == DType::i32) return {t.as<int32_t>(), t.as<int32_t>() + t.elements()};
  if (t.dtype() == DType::i64) return {t.as<int64_t>(), t.as<int64_t>() + t.elements()};
  fail(ErrorCode::bad_file, "{}: input_ids is {}; accepted: int32, int64", file, to_string(t.dtype()));
}

// The same as a model takes them.
std::vector<int32_t> checked_ids(const std::vector<int64_t>& ids, int64_t vocab, const std::string& file) {
  for (const int64_t id : ids)
    check_file(id >= 0 && id < vocab, "{}: input_ids holds {}; accepted: 0 to {}, the model's vocabulary", file, id,
               vocab - 1);
  return {ids.begin(), ids.end()};
}

void run_logits(const LogitsOptions& o, Shared& shared) {
  Context ctx = shared.context(o.model.device);
  const io::SafetensorsFile file = io::SafetensorsFile::open(o.input);
  const Tensor input = file.tensor("input_ids");
  check_file((input.rank() == 1 || input.rank() == 2) && input.elements() > 0,
             "{}: input_ids has shape {}; accepted: [sequences, tokens]", o.input, to_string(input.shape()));
  const std::vector<int64_t> given = read_ids(input, o.input);
  check_not_the_input(o.output, o.input);
  check_not_in_the_model(o.output, o.model.path);
  io::SafetensorsWriter writer(o.output);  // before the work: an output that cannot be written is said at once
  const auto model = load_model(ctx, o.model);
  Shape shape = input.shape();
  const int64_t length = shape.back(), longest = model->info().max_positions, vocab = model->info().vocab;
  check_file(length <= longest,
             "{}: input_ids has shape {}; accepted: sequences of at most {} tokens, the model's longest", o.input,
             to_string(shape), longest);
  const std::vector<int32_t> ids = checked_ids(given, vocab, o.input);
  shape.push_back(vocab);
  Tensor logits(DType::f32, shape);
  // Every sequence is a window of its own.
  model::run_windows(ctx, *model, ids, length, true, nullptr, "evaluating", [&](const model::WindowPiece& piece) {
    piece.runner.read_logits(0, static_cast<int64_t>(piece.ids.size()), logits.as<float>() + piece.begin * vocab);
  });
  writer.write_all({{"logits", logits}}, ctx.progress);
}

struct PerplexityOptions {
  ModelOptions model;
  std::string text;
  int64_t window = 512;
  bool json = false;
};

void run_perplexity(const PerplexityOptions& o, Shared& shared) {
  Context ctx = shared.context(o.model.device);
  const std::string text = read_text_file(o.text);
  const std::vector<int32_t> ids = model::load_tokenizer(o.model.path).encode(text, {.add_special_tokens = false});
  const auto model = load_model(ctx, o.model);
  const model::Perplexity p = model::perplexity(ctx, *model, ids, o.window);
  if (o.json) {
    const nlohmann::ordered_json j{
        {"ppl", p.value()}, {"scored_tokens", p.scored_tokens}, {"nll_sum", p.nll_sum}, {"window_nll", p.window_nll}};
    std::printf("%s\n", j.dump().c_str());
  } else {
    std::printf("perplexity %.6f over %lld scored tokens (sum of -ln p %.6f)\n", p.value(),
                static_cast<long long>(p.scored_tokens), p.nll_sum);
  }
}
}  // namespace

void add_eval(CLI::App& parent, Shared& shared) {
  CLI::App& group = add_group(parent, "eval", "measure a checkpoint: logits, perplexity");

  auto l = std::make_shared<LogitsOptions>();
  CLI::App* logits = add_command(
      group, shared,
      {"logits", "write float32 logits [B, T, V] for the input_ids [B, T] of a safetensors file",
       "  sluice eval logits --model-path DIR --input-ids DIR/golden.safetensors -o out.safetensors --dtype float32\n"},
      [l, &shared] { run_logits(*l, shared); });
  add_model_options(*logits, l->model);
  logits->add_option("--input-ids", l->input, "safetensors file with int32 or int64 input_ids")->required();
  logits->add_option("-o,--output", l->output, "safetensors file to write")->required();

  auto p = std::make_shared<PerplexityOptions>();
  CLI::App* perplexity =
      add_command(group, shared,
                  {"perplexity", "score a text in windows, each alone, every token but a window's first",
                   "  sluice eval perplexity --model-path DIR --text DIR/valid.txt --json\n"
                   "  sluice eval perplexity --model-path DIR --text DIR/valid.txt --quantization nvfp4_online\n"},
                  [p, &shared] { run_perplexity(*p, shared); });
  add_model_options(*perplexity, p->model);
  perplexity->add_option("--text", p->text, "text file")->required();
  perplexity->add_option("--window", p->window, "tokens of a window")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  perplexity->add_flag("--json", p->json, "print {\"ppl\", \"scored_tokens\", \"nll_sum\", \"window_nll\"}");
}

}  // namespace sluice::apps
