// SPDX-License-Identifier: Apache-2.0
// What constrained output costs: an engine's step with RUNNING answers under a JSON schema and the same without, in
// turn so that both see the same machine; and the library alone with a vocabulary of 151,936 tokens: a compilation, one
// from the cache, a mask, a token, in time of the processor. One JSON line per measurement.
//   bench/constrained_step MODEL_FOLDER [RUNNING]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "io/tokenizer_json.h"
#include "model/models.h"
#include "sampling/choose.h"

namespace {
using namespace sluice;
using Clock = std::chrono::steady_clock;

// Lists of records do not end by themselves.
const grammar::Source kSchema{
    grammar::Kind::json_schema,
    R"({"type":"array","minItems":1000,"items":{"type":"object","properties":{"name":{"type":"string"},"age":{"type":)"
    R"("integer","minimum":0,"maximum":150},"kind":{"enum":["one","two","three"]},"tags":{"type":"array","items":)"
    R"({"type":"string","maxLength":20}}},"required":["name","age","kind","tags"]}})"};

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of this thread: what else runs does not count.
double processor_seconds_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

engine::Request request(int64_t i, int64_t vocab, grammar::GrammarPtr grammar) {
  engine::Request r;
  for (int64_t t = 0; t < 64; ++t) r.prompt.push_back(static_cast<int32_t>((i * 64 + t) * 7919 % vocab));
  r.params.max_tokens = 400;
  r.params.ignore_eos = true;
  r.params.sampling.temperature = 1;
  r.params.sampling.seed = static_cast<uint64_t>(i);
  r.params.grammar = std::move(grammar);
  return r;
}

void measure_engine(const Context& ctx, const model::Model& model, const text::Tokenizer& tokenizer, int running) {
  const model::ModelInfo& info = model.info();
  grammar::GrammarCompiler compiler(grammar::vocabulary_of(tokenizer, info.vocab, info.stop_tokens));
  const grammar::GrammarPtr grammar = compiler.compile(kSchema);
  engine::EngineConfig config;
  config.max_running = running;
  double step[2] = {}, best[2] = {1e9, 1e9};
  constexpr int kTurns = 6, kSteps = 32;
  for (int turn = 0; turn < kTurns; ++turn)
    for (const bool constrained : {false, true}) {
      engine::Engine engine(ctx, model, &tokenizer, config);
      for (int64_t i = 0; i < running; ++i)
        engine.add(request(i, info.vocab, constrained ? grammar : nullptr), [](const engine::Event&) {});
      while (engine.metrics().generation_tokens < running * 4) engine.step();  // all of them decode
      const double seconds = seconds_of([&] {
        for (int i = 0; i < kSteps; ++i) engine.step();
      });
      step[constrained ? 1 : 0] += seconds / (kTurns * kSteps);
      best[constrained ? 1 : 0] = std::min(best[constrained ? 1 : 0], seconds / kSteps);
    }
  std::printf(
      "{\"running\": %d, \"vocab\": %ld, \"step_us\": %.1f, \"constrained_us\": %.1f, \"best_us\": %.1f, "
      "\"best_constrained_us\": %.1f, \"more_percent\": %.2f}\n",
      running, static_cast<long>(info.vocab), 1e6 * step[0], 1e6 * step[1], 1e6 * best[0], 1e6 * best[1],
      100 * (best[1] / best[0] - 1));
  std::fflush(stdout);
}

// Words of one to eight letters, mostly with a space before them, after the 256 bytes: as vocabularies are.
grammar::Vocabulary words(size_t count) {
  grammar::Vocabulary v;
  std::mt19937 random(1);
  for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
  for (const char* text : {"{\"", "\":", "\", \"", "\": \"", "},", "}]", "[]", "[\"", "\"]", "00", "  ", "    "})
    v.bytes.emplace_back(text);
  while (v.bytes.size() < count) {
    std::string word = random() % 3 == 0 ? "" : " ";
    for (size_t n = 1 + random() % 8; n > 0; --n) word += static_cast<char>('a' + random() % 26);
    v.bytes.push_back(std::move(word));
  }
  v.special.assign(count, false);
  v.size = static_cast<int64_t>(count);
  return v;
}

void measure_library() {
  const grammar::Vocabulary vocabulary = words(151936);
  grammar::GrammarCompiler compiler(vocabulary);
  compiler.compile({grammar::Kind::regex, "a"});  // sorts the vocabulary
  grammar::GrammarPtr grammar;
  const double cold = seconds_of([&] { grammar = compiler.compile(kSchema); });
  const double hit = processor_seconds_of([&] {
    for (int i = 0; i < 1000; ++i) grammar = compiler.compile(kSchema);
  });
  std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocabulary.size)));
  std::mt19937 random(7);
  double accepts = 0;
  std::vector<double> masks;
  for (int text = 0; text < 8; ++text) {
    grammar::GrammarState state(grammar);
    for (int i = 0; i < 200; ++i) {
      masks.push_back(processor_seconds_of([&] { state.fill_mask(mask); }));
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary.size; ++id)
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      if (allowed.empty()) break;
      // Half of the time a quotation mark or what else is rare, so that strings end.
      const int32_t id = random() % 2 == 0 ? allowed[random() % std::min<size_t>(allowed.size(), 40)]
                                           : allowed[random() % allowed.size()];
      accepts += processor_seconds_of([&] { state.accept(id); });
    }
  }
  std::sort(masks.begin(), masks.end());
  const auto count = static_cast<double>(masks.size());
  std::printf(
      "{\"vocab\": %ld, \"compile_ms\": %.1f, \"cached_us\": %.2f, \"mask_us\": %.2f, \"median_mask_us\": %.2f, "
      "\"p99_mask_us\": %.1f, \"worst_mask_us\": %.1f, \"accept_us\": %.2f}\n",
      static_cast<long>(vocabulary.size), 1e3 * cold, 1e6 * hit / 1000,
      1e6 * std::accumulate(masks.begin(), masks.end(), 0.0) / count, 1e6 * masks[masks.size() / 2],
      1e6 * masks[masks.size() * 99 / 100], 1e6 * masks.back(), 1e6 * accepts / count);
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  ThreadPool pool;
  Context ctx{pool};
  model::LoadOptions load;
  load.path = argv[1];
  const auto model = model::load_model(ctx, load);
  const text::Tokenizer tokenizer(io::read_tokenizer(load.path));
  measure_engine(ctx, *model, tokenizer, argc > 2 ? std::atoi(argv[2]) : 32);
  measure_library();
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: constrained_step MODEL_FOLDER [RUNNING]\n");
    return 2;
  }
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "constrained_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
