// SPDX-License-Identifier: Apache-2.0
// Every operation of a model on one GPU: microseconds a call (replays of a graph of many calls, median), the bytes or
// operations that it cannot avoid, and the ratio to the time these take.
//   ops_sm90 [part of an operation's name]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "base/math.h"
#include "device/cuda.h"
#include "event_time.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/quantize/rows.h"
#include "ops/linear.h"
#include "ops/ops.h"

namespace sluice::bench {
namespace {

using namespace sluice::ops;

constexpr double kDenseTflops = 780;  // BF16 products of 8192 x 8192 x 8192 on random data

class Bench {
 public:
  explicit Bench(std::string only) : only_(std::move(only)) {
    noise_ = device_->allocate(kNoise * 2);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<bf16_t> v(static_cast<size_t>(kNoise));
    for (bf16_t& x : v) x = float_to_bf16(normal(rng));
    queue_->copy(noise_.get(), v.data(), kNoise * 2);
    queue_->wait();
    copy_tbs_ = measure_copy();
    std::printf("copy rate %.2f TB/s, read and written\n", copy_tbs_);
    std::printf("%-44s %10s %12s %10s %7s\n", "operation", "us", "bytes", "floor us", "ratio");
  }

  Context& ctx() { return ctx_; }
  Ops& ops() { return *ops_; }
  Queue& queue() { return *queue_; }
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

  // Random bfloat16 values (or float32 of the same), repeated.
  std::shared_ptr<void> random(int64_t bytes, DType dtype = DType::bf16) {
    auto memory = device_->allocate(bytes);
    if (dtype == DType::f32) {
      std::mt19937 rng(2);
      std::normal_distribution<float> normal;
      std::vector<float> v(static_cast<size_t>(std::min<int64_t>(bytes / 4, 1 << 20)));
      for (float& x : v) x = normal(rng);
      for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(v.size()) * 4)
        queue_->copy(static_cast<char*>(memory.get()) + at, v.data(),
                     std::min<int64_t>(static_cast<int64_t>(v.size()) * 4, bytes - at));
    } else {
      for (int64_t at = 0; at < bytes; at += kNoise * 2)
        queue_->copy(static_cast<char*>(memory.get()) + at, noise_.get(), std::min(kNoise * 2, bytes - at));
    }
    queue_->wait();
    return memory;
  }
  std::shared_ptr<int32_t> ints(const std::vector<int32_t>& v) {
    auto memory = device_->allocate(static_cast<int64_t>(v.size()) * 4);
    queue_->copy(memory.get(), v.data(), static_cast<int64_t>(v.size()) * 4);
    queue_->wait();
    return {memory, static_cast<int32_t*>(memory.get())};
  }
  Tensor tensor(DType dtype, Shape shape) {
    const auto memory = random(elements_of(shape) * bytes_of(dtype), dtype);
    return {dtype, std::move(shape), memory.get(), memory, ctx_.device().id()};
  }
  Tensor floats(int64_t n) { return tensor(DType::f32, {n}); }

  // call(i): one call on the i-th set of buffers.
  void row(const std::string& name, double bytes, double flops, int calls, const std::function<void(int)>& call) {
    if (!wants(name)) return;
    try {
      for (int i = 0; i < std::min(calls, 3); ++i) call(i);  // memory grows, functions load
      queue_->wait();
      const auto graph = queue_->capture([&] {
        for (int i = 0; i < calls; ++i) call(i);
      });
      print(name, time([&] { graph->launch(); }) / calls, bytes, flops);
    } catch (const std::exception& e) {
      std::printf("%-44s %s\n", name.c_str(), e.what());
    }
  }
  // For what waits for its result: host time per call.
  void waiting_row(const std::string& name, double bytes, const std::function<void()>& call) {
    if (!wants(name)) return;
    try {
      for (int i = 0; i < 3; ++i) call();
      print(name, time(call), bytes, 0);
    } catch (const std::exception& e) {
      std::printf("%-44s %s\n", name.c_str(), e.what());
    }
  }

 private:
  static constexpr int64_t kNoise = 16 << 20;

  double time(const std::function<void()>& run) { return median_us(*queue_, 150e3, run); }
  void print(const std::string& name, double us, double bytes, double flops) {
    const double memory = bytes / copy_tbs_ / 1e6, math = flops / kDenseTflops / 1e6;
    std::printf("%-44s %10.2f %12.0f %10.2f %7.2f%s\n", name.c_str(), us, bytes, std::max(memory, math),
                us / std::max({memory, math, 1e-9}), math > memory ? " flops" : "");
    std::fflush(stdout);
  }
  double measure_copy() {
    const int64_t bytes = int64_t{2} << 30;
    const auto a = device_->allocate(bytes), b = device_->allocate(bytes);
    return 2.0 * static_cast<double>(bytes) / time([&] { queue_->copy(a.get(), b.get(), bytes); }) / 1e6;
  }

  std::string only_;
  std::unique_ptr<Device> device_ = make_cuda_device(0);
  std::unique_ptr<Queue> queue_ = device_->make_queue();
  ThreadPool pool_{4};
  Context ctx_{.pool = pool_, .queue = *queue_};
  std::unique_ptr<Ops> ops_ = make_ops(ctx_);
  std::shared_ptr<void> noise_;
  double copy_tbs_ = 0;
};

std::string label(const char* what, const std::string& detail) { return fmt::format("{} {}", what, detail); }

Matrix bf16(const std::shared_ptr<void>& memory, int64_t rows, int64_t cols) {
  return {memory.get(), DType::bf16, rows, cols, cols};
}
Matrix f32(const std::shared_ptr<void>& memory, int64_t rows, int64_t cols) {
  return {memory.get(), DType::f32, rows, cols, cols};
}

// --- rows of Qwen3-30B-A3B: hidden 2048, 32 + 4 + 4 heads of 128 ---
void bench_rows(Bench& b) {
  const int64_t hidden = 2048, heads = 32, kv = 4, dim = 128;
  RmsNorm norm{b.floats(hidden)};
  QkvLayout layout{heads, kv, dim, {b.floats(dim)}, {b.floats(dim)}, true};
  RopeConfig config;
  config.dim = dim;
  config.theta = 1e6;
  const RopeFrequencies frequencies = rope_frequencies(config);
  const Tensor table = b.tensor(DType::bf16, {151936, hidden});
  for (const int64_t rows : {1, 8, 64, 256, 8192}) {
    const std::string at = fmt::format("T={}", rows);
    const int calls = rows > 1000 ? 8 : 32;
    const auto x = b.random(rows * hidden * 2), y = b.random(rows * hidden * 2), z = b.random(rows * hidden * 2);
    const auto d = static_cast<double>(rows * hidden);
    std::vector<int32_t> ids, positions, slots;
    for (int64_t r = 0; r < rows; ++r) {
      ids.push_back(static_cast<int32_t>(r * 7919 % 151936));
      positions.push_back(static_cast<int32_t>(r));
      slots.push_back(static_cast<int32_t>(r));
    }
    const auto device_ids = b.ints(ids), device_positions = b.ints(positions), device_slots = b.ints(slots);
    b.row(label("embed", at), 4 * d, 0, calls,
          [&](int) { b.ops().embed(device_ids.get(), table, bf16(x, rows, hidden)); });
    b.row(label("add", at), 6 * d, 0, calls, [&](int) { b.ops().add(bf16(x, rows, hidden), bf16(y, rows, hidden)); });
    b.row(label("rms_norm", at), 4 * d, 0, calls,
          [&](int) { b.ops().rms_norm(bf16(x, rows, hidden), norm, bf16(y, rows, hidden)); });
    b.row(label("add_rms_norm", at), 8 * d, 0, calls, [&](int) {
      b.ops().add_rms_norm(bf16(x, rows, hidden), bf16(y, rows, hidden), norm, bf16(z, rows, hidden));
    });
    for (const format::InputFormat f : {format::InputFormat::fp8_token, format::InputFormat::fp8_group}) {
      const Workspace::Scope scope(b.ops().workspace());
      const RoundedRows rounded = b.ops().workspace().rounded_rows({f}, rows, hidden);
      b.row(fmt::format("add_rms_norm {} {}", name_of(format::kInputFormats, f), at), 9 * d, 0, calls, [&](int) {
        b.ops().add_rms_norm(bf16(x, rows, hidden), bf16(y, rows, hidden), norm, bf16(z, rows, hidden), rounded);
      });
    }
    b.row(label("silu_multiply 2048", at), 6 * d, 0, calls,
          [&](int) { b.ops().silu_multiply(bf16(x, rows, hidden), bf16(y, rows, hidden)); });
    b.row(label("relu_squared 2048", at), 4 * d, 0, calls, [&](int) { b.ops().relu_squared(bf16(x, rows, hidden)); });

    const auto cosine = b.random(rows * dim / 2 * 4, DType::f32), sine = b.random(rows * dim / 2 * 4, DType::f32);
    auto* c = static_cast<float*>(cosine.get());
    auto* s = static_cast<float*>(sine.get());
    b.row(label("rope_angles", at), static_cast<double>(rows * dim * 4), 0, calls,
          [&](int) { b.ops().rope_angles(frequencies, device_positions.get(), rows, DType::bf16, c, s); });
    const int64_t cols = (heads + 2 * kv) * dim;
    const auto qkv = b.random(rows * cols * 2);
    const int64_t blocks = ceil_div<int64_t>(rows, 64);
    const auto keys = b.random(blocks * 64 * kv * dim * 2), values = b.random(blocks * 64 * kv * dim * 2);
    Batch batch;
    batch.rows = rows;
    batch.kv_slots = device_slots.get();
    b.row(label("norm_rope_store", at), static_cast<double>(rows * (2 * (heads + kv) + 3 * kv) * dim * 2), 0, calls,
          [&](int) {
            b.ops().norm_rope_store(batch, layout, {c, s, dim / 2}, bf16(qkv, rows, cols),
                                    {keys.get(), DType::bf16, blocks, 64, kv, dim},
                                    {values.get(), DType::bf16, blocks, 64, kv, dim});
          });
  }
}

// --- rows between the GEMMs of FP8 experts ---
void bench_requantize(Bench& b) {
  namespace k = sluice::sm90;
  struct Shape {
    const char* name;
    int64_t tokens;
    int top_k, experts, columns, max_n;
  };
  const float ones[4] = {1, 1, 1, 1};
  const auto scale = b.random(16);
  b.queue().copy(scale.get(), ones, sizeof(ones));
  for (const Shape& s : {Shape{"qwen3", 1, 8, 128, 768, 16},
                         {"qwen3", 64, 8, 128, 768, 16},
                         {"qwen3", 256, 8, 128, 768, 64},
                         {"qwen3", 1024, 8, 128, 768, 128},
                         {"qwen3", 8192, 8, 128, 768, 256},
                         {"nano", 64, 6, 128, 1856, 16},
                         {"nano", 8192, 6, 128, 1856, 256},
                         {"deepseek", 64, 8, 256, 2048, 16}}) {
    const std::string name = fmt::format("requantize {} fp8_token T={}", s.name, s.tokens);
    if (!b.wants(name)) continue;
    std::vector<int> counts(static_cast<size_t>(s.experts));
    std::mt19937 rng(5);
    for (int64_t t = 0; t < s.tokens; ++t)
      for (int i = 0; i < s.top_k; ++i) ++counts[rng() % counts.size()];
    std::vector<int32_t> tiles;
    int base = 0, step = s.max_n <= 64 ? 8 : 16, num = 0;
    for (int e = 0; e < s.experts; ++e)
      for (int left = counts[static_cast<size_t>(e)]; left > 0; left -= s.max_n, ++num) {
        const int count = std::min(left, s.max_n), padded = round_up(count, step);
        tiles.insert(tiles.end(), {e, base, count, padded});
        base += padded;
      }
    const int64_t most = k::max_tiles(s.tokens * s.top_k, s.experts, s.max_n);
    tiles.resize(static_cast<size_t>(4 * most));
    const auto d_tiles = b.ints(tiles), header = b.ints({num, base, 0, 0});
    const auto x = b.random(int64_t{base} * s.columns * 4, DType::f32);
    const int k_blocks = ceil_div(s.columns, 128);
    const auto out = b.random(int64_t{base} * k_blocks * 128), row_scale = b.random(int64_t{base} * 4);
    k::RowsArgs a{};
    a.source.float_rows = static_cast<const float*>(x.get());
    a.source.columns = s.columns;
    a.out.round = k::Round::fp8_token;
    a.out.e4m3 = true;
    a.out.static_scale = static_cast<const k::InputScale*>(scale.get());
    a.out.data = static_cast<uint8_t*>(out.get());
    a.out.k_blocks = k_blocks;
    a.out.row_scale = static_cast<float*>(row_scale.get());
    a.gather.tiles = reinterpret_cast<const k::RowTile*>(d_tiles.get());
    a.gather.header = reinterpret_cast<const k::Header*>(header.get());
    const auto pairs = static_cast<double>(s.tokens * s.top_k);
    b.row(name, pairs * s.columns * 5, 0, s.tokens > 1000 ? 8 : 32,
          [&](int) { k::launch_requantize(a, most, s.max_n, s.tokens * s.top_k, b.queue().stream(), true); });
  }
}

// --- attention ---
struct AttentionShape {
  const char* name;
  int64_t heads, kv, dim;
};

void bench_attention(Bench& b, const AttentionShape& shape, int64_t sequences, int64_t context, int64_t rows) {
  const std::string name = fmt::format("attention {} B={} context {} rows {}", shape.name, sequences, context, rows);
  if (!b.wants(name)) return;
  const int64_t length = context + rows, blocks = ceil_div<int64_t>(length, 64) * sequences;
  const int64_t bytes = blocks * 64 * shape.kv * shape.dim * 2;
  // Each call reads pages of its own, as each layer does: together four times the L2 cache.
  const int sets = static_cast<int>(std::clamp<int64_t>(200'000'000 / (2 * bytes), 1, 24));
  const auto keys = b.random(bytes * sets), values = b.random(bytes * sets);
  std::vector<int32_t> row_begin{0}, block_begin{0}, contexts, list;
  for (int64_t s = 0; s < sequences; ++s) {
    row_begin.push_back(static_cast<int32_t>((s + 1) * rows));
    block_begin.push_back(static_cast<int32_t>((s + 1) * blocks / sequences));
    contexts.push_back(static_cast<int32_t>(context));
  }
  std::mt19937 rng(3);
  for (int64_t i = 0; i < blocks; ++i) list.push_back(static_cast<int32_t>(i));
  std::shuffle(list.begin(), list.end(), rng);
  const auto d_rows = b.ints(row_begin), d_block = b.ints(block_begin), d_list = b.ints(list),
             d_context = b.ints(contexts);
  Batch batch;
  batch.rows = sequences * rows;
  batch.sequences = sequences;
  batch.row_begin = d_rows.get();
  batch.block_begin = d_block.get();
  batch.blocks = d_list.get();
  batch.contexts = d_context.get();
  batch.longest_rows = rows;
  batch.longest_context = length;
  const auto q = b.random(batch.rows * shape.heads * shape.dim * 2),
             out = b.random(batch.rows * shape.heads * shape.dim * 2);
  const double seen = static_cast<double>(context) + (static_cast<double>(rows) + 1) / 2;
  const double flops = 4.0 * static_cast<double>(batch.rows * shape.heads * shape.dim) * seen;
  const double moved = 4.0 * static_cast<double>(sequences * length * shape.kv * shape.dim) +
                       4.0 * static_cast<double>(batch.rows * shape.heads * shape.dim);
  const int calls = flops > 1e12 ? 2 : std::max(sets, 8);
  b.row(name, moved, flops, calls, [&](int i) {
    const int64_t at = (i % sets) * bytes;
    b.ops().attention(batch, bf16(q, batch.rows, shape.heads * shape.dim),
                      {static_cast<char*>(keys.get()) + at, DType::bf16, blocks, 64, shape.kv, shape.dim},
                      {static_cast<char*>(values.get()) + at, DType::bf16, blocks, 64, shape.kv, shape.dim}, shape.dim,
                      {1 / std::sqrt(static_cast<float>(shape.dim)), false},
                      bf16(out, batch.rows, shape.heads * shape.dim));
  });
}

void bench_attentions(Bench& b) {
  const AttentionShape qwen{"32/4x128", 32, 4, 128}, nemotron{"32/2x128", 32, 2, 128};
  for (const auto& [sequences, context] : {std::pair<int64_t, int64_t>{1, 1024},
                                           {1, 8192},
                                           {1, 32768},
                                           {8, 1024},
                                           {8, 8192},
                                           {64, 1024},
                                           {64, 8192},
                                           {256, 1024}})
    bench_attention(b, qwen, sequences, context - 1, 1);
  bench_attention(b, qwen, 8, 1020, 4);  // verification of drafts
  for (const auto& [sequences, context] : {std::pair<int64_t, int64_t>{1, 1024}, {64, 1024}})
    bench_attention(b, nemotron, sequences, context - 1, 1);
  for (const auto& [context, rows] : {std::pair<int64_t, int64_t>{0, 512}, {0, 2048}, {0, 8192}, {16384, 2048}})
    bench_attention(b, qwen, 1, context, rows);
}

// --- matrix products ---
weights::QuantTensor zeros(format::Format f, int64_t n, int64_t k) {
  weights::QuantTensor w = weights::make_quant_tensor(f, 1, n, k);
  std::mt19937 rng(4);
  for (Tensor* t : {&w.codes, &w.scales, &w.global}) {
    if (t->empty()) continue;
    if (t->dtype() == DType::f32) {
      std::fill_n(t->as<float>(), t->elements(), 0.01f);
      continue;
    }
    auto* bytes = static_cast<uint8_t*>(t->data());
    for (int64_t i = 0; i < std::min<int64_t>(t->bytes(), 1 << 20); ++i) bytes[i] = static_cast<uint8_t>(rng() & 0xbf);
    if (f == format::Format::bf16)
      for (int64_t i = 1; i < std::min<int64_t>(t->bytes(), 1 << 20); i += 2)
        bytes[i] = static_cast<uint8_t>((bytes[i] & 0x80) | 0x3c);
    for (int64_t at = 1 << 20; at < t->bytes(); at += 1 << 20)
      std::memcpy(bytes + at, bytes, static_cast<size_t>(std::min<int64_t>(1 << 20, t->bytes() - at)));
  }
  return w;
}

void bench_linear(Bench& b, const char* what, int64_t n, int64_t k, format::Format f, format::InputFormat inputs,
                  DType out_type) {
  const auto bits = static_cast<double>(format::info(f).bits);
  const std::string name = fmt::format("linear {} {} [{}, {}]", what, name_of(format::kFormats, f), n, k);
  if (!b.wants(name)) return;
  const double weight_bytes = static_cast<double>(n * k) * bits / 8;
  LinearOptions options;
  options.inputs = inputs;
  const int sets = static_cast<int>(std::clamp(200e6 / weight_bytes, 1.0, 12.0));
  std::vector<std::unique_ptr<Linear>> layers;
  const weights::QuantTensor w = zeros(f, n, k);
  for (int i = 0; i < sets; ++i) layers.push_back(make_linear(b.ctx(), {&w, 1}, {}, options));
  for (const int64_t rows : {1, 8, 64, 256, 2048}) {
    if (n > 100000 && rows > 256) continue;
    const auto x = b.random(rows * k * 2), y = b.random(rows * n * bytes_of(out_type));
    const int64_t size = layers[0]->workspace_bytes(rows);
    const auto workspace = b.random(size);
    b.row(fmt::format("{} T={}", name, rows),
          weight_bytes + static_cast<double>(rows * (2 * k + n * bytes_of(out_type))),
          2.0 * static_cast<double>(rows * n * k), rows > 512 ? 8 : 2 * sets, [&](int i) {
            layers[static_cast<size_t>(i % sets)]->run(b.ctx(), bf16(x, rows, k), {y.get(), out_type, rows, n, n},
                                                       workspace.get(), size);
          });
  }
}

void bench_linears(Bench& b) {
  using format::Format;
  using format::InputFormat;
  bench_linear(b, "qkv", 5120, 2048, Format::bf16, InputFormat::plain, DType::bf16);
  bench_linear(b, "o", 2048, 4096, Format::bf16, InputFormat::plain, DType::bf16);
  bench_linear(b, "router", 128, 2048, Format::bf16, InputFormat::plain, DType::f32);
  bench_linear(b, "head", 151936, 2048, Format::bf16, InputFormat::plain, DType::f32);
  bench_linear(b, "qkv", 5120, 2048, Format::fp8_channel, InputFormat::fp8_token, DType::bf16);
  bench_linear(b, "qkv", 5120, 2048, Format::nvfp4, InputFormat::nvfp4, DType::bf16);
  const std::string name = "float_linear router [256, 7168]";
  if (!b.wants(name)) return;
  Tensor weight(DType::f32, {256, 7168});
  std::fill_n(weight.as<float>(), weight.elements(), 0.5f);
  const auto layer = make_float_linear(b.ctx(), weight);
  for (const int64_t rows : {1, 64, 2048}) {
    const auto x = b.random(rows * 7168 * 2), y = b.random(rows * 256 * 4);
    b.row(fmt::format("{} T={}", name, rows), 256 * 7168 * 4 + static_cast<double>(rows * 7168 * 2), 0, 8,
          [&](int) { layer->run(b.ctx(), bf16(x, rows, 7168), f32(y, rows, 256), nullptr, 0); });
  }
}

// --- the head ---
void bench_samples(Bench& b) {
  const int64_t vocab = 151936;
  for (const int64_t rows : {1, 64, 256}) {
    const auto logits = b.random(rows * vocab * 4, DType::f32);
    const auto bytes = static_cast<double>(rows * vocab * 4);
    const auto run = [&](const char* what, sampling::SampleRow row) {
      std::vector<sampling::SampleRow> all(static_cast<size_t>(rows), row);
      for (int64_t i = 0; i < rows; ++i) all[static_cast<size_t>(i)].logits = static_cast<int32_t>(i);
      std::vector<sampling::Sampled> out(static_cast<size_t>(rows));
      b.waiting_row(fmt::format("sample {} B={}", what, rows), bytes, [&] {
        b.ops().sample(f32(logits, rows, vocab), {all, {}}, out);
      });
    };
    run("greedy", {});
    run("temperature", {.temperature = 1});
    run("top_k 40", {.temperature = 1, .top_k = 40});
    run("top_p 0.95", {.temperature = 1, .top_p = 0.95});
    run("greedy, 5 log probabilities", {.top_logprobs = 5});
    std::vector<int32_t> ids(static_cast<size_t>(rows), 17);
    std::vector<double> out(static_cast<size_t>(rows));
    b.waiting_row(fmt::format("log_likelihoods B={}", rows), bytes,
                  [&] { b.ops().log_likelihoods(f32(logits, rows, vocab), ids, out); });
  }
}

// --- Mamba-2 of Nemotron-3-Nano: 64 heads of 64, state 128, 8 groups, 4 taps ---
void bench_mamba(Bench& b) {
  const MambaShape shape{64, 64, 8, 128, 4};
  const Tensor weight = b.tensor(DType::f32, {4, shape.channels()});
  const Tensor bias = b.floats(shape.channels()), dt_bias = b.floats(64), skip = b.floats(64),
               norm = b.floats(shape.inner());
  Tensor a(DType::f32, {64});
  std::fill_n(a.as<float>(), 64, -0.5f);
  const Tensor device_a = a.to(b.ctx().device().id(), b.queue());
  for (const auto& [sequences, rows] :
       {std::pair<int64_t, int64_t>{1, 1}, {64, 1}, {256, 1}, {1, 2048}, {1, 8192}, {16, 1024}}) {
    const std::string at = fmt::format("B={} rows {}", sequences, rows);
    const int64_t total = sequences * rows, floats = shape.heads * shape.state * shape.head_dim;
    if (!b.wants(label("causal_conv", at)) && !b.wants(label("state_scan", at)) && !b.wants(label("gated_norm", at)))
      continue;
    std::vector<int32_t> row_begin{0}, in, out(static_cast<size_t>(total), -1);
    for (int64_t s = 0; s < sequences; ++s) {
      row_begin.push_back(static_cast<int32_t>((s + 1) * rows));
      in.push_back(static_cast<int32_t>(s));
      out[static_cast<size_t>((s + 1) * rows - 1)] = static_cast<int32_t>(s);
    }
    const auto d_begin = b.ints(row_begin), d_in = b.ints(in), d_out = b.ints(out);
    Batch batch;
    batch.rows = total;
    batch.sequences = sequences;
    batch.row_begin = d_begin.get();
    batch.state_in = d_in.get();
    batch.state_out = d_out.get();
    batch.longest_rows = rows;
    const auto xbc = b.random(total * shape.channels() * 2), mixed = b.random(total * shape.channels() * 2);
    const auto dt = b.random(total * 64 * 2), y = b.random(total * shape.inner() * 4, DType::f32);
    const auto gate = b.random(total * shape.inner() * 2), normed = b.random(total * shape.inner() * 2);
    const auto conv_states = b.random(sequences * 3 * shape.channels() * 4, DType::f32);
    const int sets = static_cast<int>(std::clamp<int64_t>(200'000'000 / (sequences * floats * 4), 1, 16));
    const auto states = b.random(sets * sequences * floats * 4, DType::f32);
    const auto channels = static_cast<double>(total * shape.channels());
    const int calls = rows > 1 ? 4 : 16;
    b.row(label("causal_conv", at), 4 * channels + static_cast<double>(sequences * 6 * shape.channels() * 4), 0, calls,
          [&](int) {
            b.ops().causal_conv(batch, shape, bf16(xbc, total, shape.channels()), weight, bias,
                                {static_cast<float*>(conv_states.get()), 3 * shape.channels()},
                                bf16(mixed, total, shape.channels()));
          });
    const double moved =
        static_cast<double>(sequences * floats * 8) + 2 * channels + static_cast<double>(total * shape.inner() * 4);
    for (const bool row_invariant : {false, true}) {
      if (row_invariant && rows == 1) continue;
      b.row(label(row_invariant ? "state_scan row_invariant" : "state_scan", at), moved, 0, calls, [&](int i) {
        b.ops().state_scan(batch, shape, bf16(mixed, total, shape.channels()), bf16(dt, total, 64),
                           {dt_bias, device_a, skip, row_invariant},
                           {static_cast<float*>(states.get()) + (i % sets) * sequences * floats, floats},
                           f32(y, total, shape.inner()));
      });
    }
    b.row(label("gated_norm", at), static_cast<double>(total * shape.inner() * 8), 0, calls, [&](int) {
      b.ops().gated_group_rms_norm(f32(y, total, shape.inner()), bf16(gate, total, shape.inner()), 8, {norm},
                                   bf16(normed, total, shape.inner()));
    });
  }
}

// --- DeepSeek-V3: 128 heads of 128 + 64, latent 512 ---
void bench_mla(Bench& b) {
  const MlaShape shape{128, 128, 64, 128, 512};
  if (!b.wants("mla")) return;
  const int64_t kv_rows = shape.heads * (shape.nope + shape.value);
  // Each call reads weights of its own, as each layer does: together more than twice the L2 cache.
  std::vector<Tensor> kv_b;
  for (int i = 0; i < 4; ++i) kv_b.push_back(b.tensor(DType::bf16, {kv_rows, shape.latent}));
  for (const int64_t sequences : {1, 8, 16, 32, 64, 128, 256}) {
    const int64_t context = 1024, blocks = context / 64 * sequences;
    const auto q = b.random(sequences * shape.heads * shape.query() * 2);
    const DType type = b.ops().absorbed_type(shape, DType::bf16);
    const auto absorbed = b.random(sequences * shape.heads * shape.cached() * bytes_of(type), type);
    const auto mixed = b.random(sequences * shape.heads * shape.latent * bytes_of(type), type);
    const Matrix queries{absorbed.get(), type, sequences, shape.heads * shape.cached(), shape.heads * shape.cached()};
    const Matrix results{mixed.get(), type, sequences, shape.heads * shape.latent, shape.heads * shape.latent};
    const auto out = b.random(sequences * shape.heads * shape.value * 2);
    const auto keys = b.random(blocks * 64 * shape.cached() * 2);
    std::vector<int32_t> row_begin{0}, block_begin{0}, contexts, list;
    for (int64_t s = 0; s < sequences; ++s) {
      row_begin.push_back(static_cast<int32_t>(s + 1));
      block_begin.push_back(static_cast<int32_t>((s + 1) * context / 64));
      contexts.push_back(static_cast<int32_t>(context - 1));
    }
    for (int64_t i = 0; i < blocks; ++i) list.push_back(static_cast<int32_t>(i));
    const auto d_rows = b.ints(row_begin), d_block = b.ints(block_begin), d_list = b.ints(list),
               d_context = b.ints(contexts);
    Batch batch;
    batch.rows = batch.sequences = sequences;
    batch.row_begin = d_rows.get();
    batch.block_begin = d_block.get();
    batch.blocks = d_list.get();
    batch.contexts = d_context.get();
    batch.longest_rows = 1;
    batch.longest_context = context;
    // Half of the weights, and the rows of one side and the other.
    const auto half = static_cast<double>(shape.heads * shape.nope * shape.latent);
    const auto rows = static_cast<double>(sequences * shape.heads);
    const double narrow = rows * static_cast<double>(shape.query()), wide = rows * static_cast<double>(shape.cached());
    b.row(fmt::format("mla_absorb B={}", sequences), 2 * (half + narrow + wide),
          2 * half * static_cast<double>(sequences), 8, [&](int i) {
            b.ops().mla_absorb(shape, kv_b[static_cast<size_t>(i % 4)], bf16(q, sequences, shape.heads * shape.query()),
                               queries);
          });
    b.row(fmt::format("mla attention B={} context {}", sequences, context),
          static_cast<double>(sequences * context * shape.cached() * 2), 0, 2, [&](int) {
            b.ops().attention(batch, queries, {keys.get(), DType::bf16, blocks, 64, 1, shape.cached()}, {},
                              shape.latent, {0.1f, false}, results);
          });
    b.row(fmt::format("mla_expand B={}", sequences),
          2 * (half + rows * static_cast<double>(shape.latent + shape.value)),
          2 * half * static_cast<double>(sequences), 8, [&](int i) {
            b.ops().mla_expand(shape, kv_b[static_cast<size_t>(i % 4)], results,
                               bf16(out, sequences, shape.heads * shape.value));
          });
  }
}

// Prompts of DeepSeek-V3, kv_b's halves included. The floor is that of the expanded form's products.
void bench_mla_prompt(Bench& b, int64_t sequences, int64_t context, int64_t new_rows) {
  const MlaShape shape{128, 128, 64, 128, 512};
  const std::string name = fmt::format("mla prompt B={} context {} rows {}", sequences, context, new_rows);
  if (!b.wants(name)) return;
  const Tensor kv_b = b.tensor(DType::bf16, {shape.heads * (shape.nope + shape.value), shape.latent});
  const int64_t rows = sequences * new_rows, length = context + new_rows, of_one = ceil_div<int64_t>(length, 64);
  const auto q = b.random(rows * shape.heads * shape.query() * 2), out = b.random(rows * shape.heads * shape.value * 2);
  const auto keys = b.random(sequences * of_one * 64 * shape.cached() * 2);
  std::vector<int32_t> row_begin{0}, block_begin{0}, contexts, list;
  Batch batch;
  for (int64_t s = 0; s < sequences; ++s) {
    row_begin.push_back(static_cast<int32_t>((s + 1) * new_rows));
    block_begin.push_back(static_cast<int32_t>((s + 1) * of_one));
    contexts.push_back(static_cast<int32_t>(context));
    batch.count_prompt(context, new_rows);
  }
  for (int64_t i = 0; i < sequences * of_one; ++i) list.push_back(static_cast<int32_t>(i));
  std::shuffle(list.begin(), list.end(), std::mt19937(3));
  const auto d_rows = b.ints(row_begin), d_block = b.ints(block_begin), d_list = b.ints(list),
             d_context = b.ints(contexts);
  batch.rows = rows;
  batch.sequences = sequences;
  batch.row_begin = d_rows.get();
  batch.block_begin = d_block.get();
  batch.blocks = d_list.get();
  batch.contexts = d_context.get();
  batch.longest_rows = new_rows;
  batch.longest_context = length;
  const auto heads = static_cast<double>(shape.heads * sequences);
  const double pairs =
      static_cast<double>(new_rows) * (static_cast<double>(length) - static_cast<double>(new_rows) / 2);
  const double attended = 2 * heads * pairs * static_cast<double>(shape.query() + shape.value);
  const double moved = 2 * heads * static_cast<double>(length * (shape.nope + shape.value) * shape.latent);
  for (const bool row_invariant : {false, true})
    b.row(name + (row_invariant ? ", row invariant" : ""), 0, attended + moved, 2, [&](int) {
      b.ops().mla_attention(batch, shape, kv_b, bf16(q, rows, shape.heads * shape.query()),
                            {keys.get(), DType::bf16, sequences * of_one, 64, 1, shape.cached()},
                            {0.07f, row_invariant}, bf16(out, rows, shape.heads * shape.value));
    });
}

void bench_mla_prompts(Bench& b) {
  for (const auto& [sequences, context, rows] : {std::array<int64_t, 3>{1, 0, 256},
                                                 {1, 0, 512},
                                                 {1, 0, 2048},
                                                 {1, 0, 8192},
                                                 {16, 0, 1024},
                                                 {1, 2048, 256},
                                                 {1, 16384, 256},
                                                 {1, 16384, 512},
                                                 {1, 16384, 2048},
                                                 {1, 65536, 2048}})
    bench_mla_prompt(b, sequences, context, rows);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  try {
    Bench b(argc > 1 ? argv[1] : "");
    bench_rows(b);
    bench_requantize(b);
    bench_attentions(b);
    bench_linears(b);
    bench_samples(b);
    bench_mamba(b);
    bench_mla(b);
    bench_mla_prompts(b);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ops_sm90: %s\n", e.what());
    return 1;
  }
  return 0;
}
