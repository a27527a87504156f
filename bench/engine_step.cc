// SPDX-License-Identifier: Apache-2.0
// The engine without a server: RUNNING answers decode at once, into a sink that drops them. One JSON line per number:
// microseconds of a step, of its scheduling, and of everything but the model and the sampling.
//   bench/engine_step MODEL_FOLDER [RUNNING ...]
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "engine/engine.h"
#include "io/tokenizer_json.h"
#include "model/models.h"

namespace {
using namespace sluice;

engine::Request request(int64_t i, int64_t vocab) {
  engine::Request r;
  for (int64_t t = 0; t < 64; ++t) r.prompt.push_back(static_cast<int32_t>((i * 64 + t) * 7919 % vocab));
  r.params.max_tokens = 128;
  r.params.ignore_eos = true;
  r.params.sampling.temperature = 0;
  return r;
}

void measure(const Context& ctx, const model::Model& model, const text::Tokenizer& tokenizer, int running) {
  engine::EngineConfig config;
  config.max_running = running;
  engine::Engine engine(ctx, model, &tokenizer, config);
  for (int64_t i = 0; i < running; ++i) engine.add(request(i, model.info().vocab), [](const engine::Event&) {});
  while (engine.metrics().generation_tokens < running * 4) engine.step();  // all of them decode
  const engine::Metrics before = engine.metrics();
  for (int i = 0; i < 64; ++i) engine.step();
  const engine::Metrics after = engine.metrics();
  const auto microseconds = [&](const engine::Histogram& a, const engine::Histogram& b) {
    return 1e6 * (b.sum() - a.sum()) / static_cast<double>(b.count() - a.count());
  };
  const double step = microseconds(before.step_seconds, after.step_seconds);
  std::printf("{\"running\": %d, \"step_us\": %.1f, \"schedule_us\": %.2f, \"overhead_us\": %.2f, \"tok_s\": %.0f}\n",
              running, step, microseconds(before.schedule_seconds, after.schedule_seconds),
              microseconds(before.overhead_seconds, after.overhead_seconds),
              static_cast<double>(after.generation_tokens - before.generation_tokens) / (64 * step) * 1e6);
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  ThreadPool pool;
  Context ctx{pool};
  model::LoadOptions load;
  load.path = argv[1];
  const auto model = model::load_model(ctx, load);
  const text::Tokenizer tokenizer(io::read_tokenizer(load.path));
  std::vector<int> counts{1, 8, 32, 64};
  if (argc > 2) counts.clear();
  for (int i = 2; i < argc; ++i) counts.push_back(std::atoi(argv[i]));
  for (const int running : counts) measure(ctx, *model, tokenizer, running);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: engine_step MODEL_FOLDER [RUNNING ...]\n");
    return 2;
  }
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
