// SPDX-License-Identifier: Apache-2.0
// What a step that decodes costs the host and the GPU: 48 layers of Qwen3-30B-A3B's attention with few small experts,
// so that the launches are those of the real model and its weights are not.
//   steps_sm90 [context]
// Of each number of sequences: microseconds until a step is enqueued, of which until its integers are put together, and
// per step when nobody waits in between, when
// the host waits for the tokens of each, and when it reads them one step late.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <vector>

#include "base/math.h"
#include "device/cuda.h"
#include "kernels/sm90/device.h"
#include "model/models.h"
#include "model/runner.h"

namespace sluice::bench {
namespace {

constexpr const char* kConfig = R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
  "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 512, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 128,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 8, "num_experts_per_tok": 2,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32768})";
constexpr int kRepeats = 40;

using Clock = std::chrono::steady_clock;
double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::unique_ptr<model::Model> make_model(Context& ctx) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "sluice-steps";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << kConfig;
  model::LoadOptions o;
  o.path = folder;
  o.dummy = true;
  auto model = model::load_model(ctx, o);
  std::filesystem::remove_all(folder);
  return model;
}

struct Steps {
  Steps(Context& ctx, const model::Model& model, int sequences, int64_t context, bool recorded)
      : queue(ctx.queue), count(sequences), position(context) {
    model::RunnerConfig c;
    const int64_t tokens = round_up<int64_t>(context + 8 * kRepeats, c.cache.block_size);
    each = tokens / c.cache.block_size;
    c.cache.blocks = each * sequences;
    c.cache.slots = sequences;
    c.rows = c.sequences = sequences;
    c.sequence_tokens = tokens;
    c.recording.enabled = recorded;
    runner = std::make_unique<model::Runner>(ctx, model, c);
    blocks.resize(static_cast<size_t>(c.cache.blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    for (int i = 0; i < sequences; ++i) rows.push_back({.logits = i});
    sampled.resize(rows.size());
  }

  // `taken`: the tokens are those that the last batch of samples chooses.
  void enqueue(bool taken) {
    runner->clear();
    const int32_t token = 7;
    for (int i = 0; i < count; ++i)
      runner->add({.slot = i,
                   .tokens = {&token, 1},
                   .context = position,
                   .blocks = std::span(blocks).subspan(static_cast<size_t>(i * each), static_cast<size_t>(each)),
                   .logit_rows = 1,
                   .sampled = taken ? i : -1});
    ++position;
    added = Clock::now();
    runner->run();
  }

  Queue& queue;
  int count;
  int64_t position, each = 0;
  Clock::time_point added;  // of the last enqueue()
  std::unique_ptr<model::Runner> runner;
  std::vector<int32_t> blocks;
  std::vector<sampling::SampleRow> rows;
  std::vector<sampling::Sampled> sampled;
};

void measure(Context& ctx, const model::Model& model, int sequences, int64_t context, bool recorded) {
  Steps s(ctx, model, sequences, context, recorded);
  for (int i = 0; i < 4; ++i) s.enqueue(false);
  s.queue.wait();
  std::vector<double> host, adding;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    s.enqueue(false);
    host.push_back(us_since(start));
    adding.push_back(std::chrono::duration<double, std::micro>(s.added - start).count());
    s.queue.wait();
  }
  std::sort(host.begin(), host.end());
  std::sort(adding.begin(), adding.end());
  const auto per_step = [&](auto&& body) {
    const auto start = Clock::now();
    body();
    s.queue.wait();
    return us_since(start) / kRepeats;
  };
  const double alone = per_step([&] {
    for (int i = 0; i < kRepeats; ++i) s.enqueue(false);
  });
  const double waiting = per_step([&] {
    for (int i = 0; i < kRepeats; ++i) {
      s.enqueue(false);
      s.runner->sample({s.rows, {}}, s.sampled);
    }
  });
  const double ahead = per_step([&] {
    for (int i = 0; i < kRepeats; ++i) {
      s.enqueue(i > 0);
      s.runner->begin_sample({s.rows, {}});
      if (i > 0) s.runner->end_sample(s.sampled);
    }
    s.runner->end_sample(s.sampled);
  });
  std::printf("%9d %8s %10.0f %10.0f %12.0f %14.0f %14.0f\n", sequences, recorded ? "replay" : "launch",
              host[host.size() / 2], adding[adding.size() / 2], alone, waiting, ahead);
  std::fflush(stdout);
}

int run(int64_t context) {
  if (const std::string problem = sm90::device_problem(); !problem.empty()) return std::puts(problem.c_str()), 1;
  ThreadPool pool(2);
  const auto device = make_cuda_device(0);
  const auto queue = device->make_queue();
  Context ctx{.pool = pool, .queue = *queue};
  const auto model = make_model(ctx);
  std::printf("48 layers, context %lld, microseconds\n", static_cast<long long>(context));
  std::printf("%9s %8s %10s %10s %12s %14s %14s\n", "sequences", "steps", "host", "of it add", "model alone",
              "with tokens", "one step late");
  for (const int sequences : {1, 8, 32, 64, 256})
    for (const bool recorded : {false, true}) measure(ctx, *model, sequences, context, recorded);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** words) { return sluice::bench::run(count > 1 ? std::atoll(words[1]) : 1024); }
