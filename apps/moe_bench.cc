// SPDX-License-Identifier: Apache-2.0
#include "moe_bench.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "median.h"
#include "moe/backend_cpu.h"

namespace sluice::apps {

namespace {
using format::Format;
using weights::QuantTensor;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// xorshift64*: a GB of codes in about a second.
void fill_random(Context& ctx, void* data, int64_t bytes, uint64_t keep, uint64_t set) {
  constexpr int64_t kRun = 1 << 16;
  ctx.pool.parallel_for((bytes + kRun * 8 - 1) / (kRun * 8), [&](int64_t task, int) {
    uint64_t s = static_cast<uint64_t>(task) * 0x9e3779b97f4a7c15u + 88172645463325252u;
    const int64_t begin = task * kRun * 8, end = std::min(bytes, begin + kRun * 8);
    for (int64_t i = begin; i < end; i += 8) {
      s ^= s >> 12;
      s ^= s << 25;
      s ^= s >> 27;
      const uint64_t value = ((s * 0x2545f4914f6cdd1du) & keep) | set;
      std::memcpy(static_cast<uint8_t*>(data) + i, &value, static_cast<size_t>(std::min<int64_t>(8, end - i)));
    }
  });
}

// Codes of about unit size; scales that bring a row's sum back to about one.
QuantTensor random_weights(Context& ctx, Format f, int64_t experts, int64_t n, int64_t k) {
  QuantTensor w = weights::make_quant_tensor(f, experts, n, k);
  const format::FormatInfo info = format::info(f);
  if (info.bits == 16)  // sign, mantissa and one exponent bit vary: 2^-6 to 2^-5
    fill_random(ctx, w.codes.data(), w.codes.bytes(), 0x80ff80ff80ff80ffu, 0x3c003c003c003c00u);
  else if (info.bits == 8)  // up to 3.75
    fill_random(ctx, w.codes.data(), w.codes.bytes(), 0xbfbfbfbfbfbfbfbfu, 0);
  else
    fill_random(ctx, w.codes.data(), w.codes.bytes(), ~uint64_t{0}, 0);
  if (info.scale == format::ScaleType::f32)
    std::fill_n(w.scales.as<float>(), w.scales.elements(), 0.02f);
  else if (info.scale == format::ScaleType::e8m0)
    fill_random(ctx, w.scales.data(), w.scales.bytes(), 0x0101010101010101u, 0x7878787878787878u);
  else if (info.scale == format::ScaleType::e4m3)
    fill_random(ctx, w.scales.data(), w.scales.bytes(), 0x0f0f0f0f0f0f0f0fu, 0x3030303030303030u);
  if (!w.global.empty()) std::fill_n(w.global.as<float>(), w.global.elements(), 0.02f);
  return w;
}
}  // namespace

struct MoeBench::State {
  const kernels::cpu::Ceilings& ceilings;
  MoeSpec spec;
  BenchOptions options;
  std::vector<std::unique_ptr<moe::MoeLayer>> layers;
  size_t next_layer = 0;
  std::mt19937_64 rng{1};
};

MoeBench::MoeBench(Context& ctx, const kernels::cpu::Ceilings& ceilings, const MoeSpec& spec,
                   const BenchOptions& options)
    : state_(std::make_unique<State>(State{ceilings, spec, options, {}, 0, std::mt19937_64{1}})) {
  const auto backend = moe::make_cpu_backend({options.isa});
  weights::ExpertWeights w;
  w.up = random_weights(ctx, spec.weights, spec.locals(), spec.inter, spec.hidden);
  if (spec.gated()) w.gate = random_weights(ctx, spec.weights, spec.locals(), spec.inter, spec.hidden);
  w.down = random_weights(ctx, spec.weights, spec.locals(), spec.hidden, spec.inter);
  w.input_scale1 = w.input_scale2 = spec.inputs == format::InputFormat::nvfp4 ? 5.0f / (448 * 6) : 5.0f / 448;
  int64_t bytes = 0;
  do {
    state_->layers.push_back(backend->prepare(ctx, spec, w));
    bytes += state_->layers.back()->weight_bytes();
  } while (bytes < options.cold_bytes);
}

MoeBench::~MoeBench() = default;

BenchCell MoeBench::measure(Context& ctx, int64_t tokens) {
  State& s = *state_;
  const int64_t hidden = s.spec.hidden, experts = s.spec.experts, locals = s.spec.locals();
  BenchCell cell;
  cell.spec = s.spec;
  cell.tokens = tokens;
  const double pair_flops = 2.0 * static_cast<double>((s.spec.gated() ? 3 : 2) * s.spec.inter * hidden);
  const double expert_bytes = static_cast<double>(s.layers[0]->weight_bytes()) / static_cast<double>(locals);

  Tensor x(DType::bf16, {tokens, hidden}), logits(DType::f32, {tokens, experts}), y(DType::bf16, {tokens, hidden});
  Tensor ids(DType::i32, {tokens, s.spec.top_k}), workspace(DType::u8, {s.layers[0]->workspace_bytes(tokens)});
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < x.elements(); ++i) x.as<uint16_t>()[i] = float_to_bf16(normal(s.rng));

  std::vector<double> times, bytes, flops, reads, dots;
  double touched_sum = 0;
  const auto run_once = [&](bool record) {
    for (int64_t i = 0; i < logits.elements(); ++i)
      logits.as<float>()[i] = static_cast<float>(s.rng() >> 40) * 0x1p-24f;
    moe::MoeArgs a;
    a.tokens = tokens;
    a.hidden = x.data();
    a.logits = logits.data();
    a.logits_dtype = DType::f32;
    a.output = y.data();
    a.workspace = workspace.data();
    a.workspace_size = workspace.bytes();
    a.chosen_ids = ids.as<int32_t>();
    const moe::MoeLayer& layer = *s.layers[s.next_layer++ % s.layers.size()];
    const double start = now();
    layer.run(ctx, a);
    const double took = now() - start;
    if (!record) return took;
    std::vector<char> seen(static_cast<size_t>(locals));
    int64_t pairs = 0;
    for (int64_t i = 0; i < ids.elements(); ++i) {
      const int32_t id = ids.as<int32_t>()[i];
      if (id >= locals) continue;
      seen[static_cast<size_t>(id)] = 1;
      ++pairs;
    }
    const auto touched = static_cast<double>(std::count(seen.begin(), seen.end(), 1));
    touched_sum += touched;
    times.push_back(took);
    bytes.push_back(touched * expert_bytes);
    flops.push_back(static_cast<double>(pairs) * pair_flops);
    return took;
  };
  run_once(false);
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round) {
    reads.push_back(s.ceilings.read_bandwidth(ctx));
    dots.push_back(s.ceilings.dot_rate(ctx));
    const double end = now() + s.options.seconds / kRounds;
    do run_once(true);
    while (now() < end);
  }
  cell.min_s = *std::min_element(times.begin(), times.end());
  cell.median_s = median(times);
  cell.bytes = median(bytes);
  cell.flops = median(flops);
  cell.experts_touched = touched_sum / static_cast<double>(times.size());
  cell.read_bandwidth = median(reads);
  cell.dot_rate = median(dots);
  return cell;
}

}  // namespace sluice::apps
