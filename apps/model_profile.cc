// SPDX-License-Identifier: Apache-2.0
#include "model_profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>

#include "base/math.h"
#include "device/cuda.h"

namespace sluice::apps {

namespace {
constexpr int64_t kBlockSize = 64;
constexpr int kRepeat = 5;

// Tokens of temperature 1, as the cells choose them; the best of some calls in microseconds.
double sample_microseconds(ops::Ops& ops, ops::Matrix logits) {
  std::vector<sampling::SampleRow> rows(static_cast<size_t>(logits.rows));
  std::vector<sampling::Sampled> sampled(rows.size());
  double best = 1e30;
  for (int r = 0; r <= kRepeat; ++r) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].logits = static_cast<int32_t>(i);
      rows[i].temperature = 1;
      rows[i].seed = i;
      rows[i].position = r;
    }
    ops.ctx().queue.wait();
    const auto start = std::chrono::steady_clock::now();
    ops.sample(logits, {rows, {}}, sampled);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (r > 0) best = std::min(best, time.count());
  }
  return best;
}
}  // namespace

std::vector<KernelTime> profile_step(Context& ctx, const model::Model& model, const Cell& cell, int64_t chunk) {
  if (ctx.device().id().is_host()) return {};
  const model::ModelInfo& info = model.info();
  // Prompts alone: the first step's, whole ones if one fits. Else one new token for each sequence.
  const bool prompts = cell.new_tokens == 1;
  const int64_t rows = prompts ? std::min(cell.input_len, chunk) : 1, context = prompts ? 0 : cell.input_len;
  const int64_t sequences = std::min(cell.batch_size, std::max<int64_t>(1, chunk / rows));
  const int64_t blocks = ceil_div(context + rows, kBlockSize);
  model::CacheConfig config;
  config.block_size = kBlockSize;
  config.blocks = sequences * blocks;
  config.slots = static_cast<int>(sequences);
  const std::unique_ptr<ops::Ops> ops = ops::make_ops(ctx);
  model::Cache cache(ctx.device(), model.cache_shape(), config);
  const model::StateTable states(config.slots, config.versions());
  model::BatchBuilder builder(ctx.device(), model.cache_shape(), config,
                              {sequences * rows, sequences, config.blocks, info.vocab, info.max_positions});
  std::vector<int32_t> of_sequence(static_cast<size_t>(blocks)), tokens(static_cast<size_t>(rows));
  for (int b = 0; b < config.slots; ++b) {
    std::iota(of_sequence.begin(), of_sequence.end(), static_cast<int32_t>(b * blocks));
    for (int64_t i = 0; i < rows; ++i)
      tokens[static_cast<size_t>(i)] = static_cast<int32_t>((b * 40503ll + i * 2654435761ll) % info.vocab);
    builder.add({b, tokens, context, of_sequence, 1}, states);
  }
  Tensor logits(ctx.device(), DType::f32, {sequences, info.vocab});
  const model::Outputs out{
      .logits = {logits.address(), DType::f32, sequences, info.vocab, info.vocab}, .hidden = {}, .observer = {}};
  const model::Batch& batch = builder.upload(ctx.queue);
  model.forward(*ops, batch, cache, out);  // the workspace grows
  ctx.queue.wait();

  std::map<std::string, KernelTime> by_name;
  for (const OperationTime& t : time_operations(
           ctx.queue, [&] { model.forward(*ops, batch, cache, out); }, kRepeat)) {
    KernelTime& k = by_name[t.name];
    k.name = t.name;
    ++k.count;
    k.microseconds += t.microseconds;
  }
  by_name["sample"] = {"sample", 1, sample_microseconds(*ops, out.logits)};
  std::vector<KernelTime> all;
  for (auto& [name, k] : by_name) all.push_back(std::move(k));
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.microseconds > b.microseconds; });
  return all;
}

}  // namespace sluice::apps
