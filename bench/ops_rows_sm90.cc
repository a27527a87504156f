// SPDX-License-Identifier: Apache-2.0
// ops_sm90: operations on rows, those between the GEMMs of FP8 experts, and the choice of tokens.
#include <algorithm>
#include <random>

#include "base/math.h"
#include "kernels/sm90/finalize/finalize.h"
#include "kernels/sm90/quantize/rows.h"
#include "ops_sm90.h"

namespace sluice::bench {

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
    if (rows <= 256) {  // the sum of experts in the norm, and in a kernel before it
      constexpr int kExperts = 8;
      const auto results = b.random(rows * kExperts * hidden * 2), weights = b.random(rows * kExperts * 4, DType::f32);
      const auto* factors = static_cast<const float*>(weights.get());
      b.row(label("add_rms_norm of 8 experts", at), (2 * kExperts + 6) * d, 0, calls, [&](int) {
        b.ops().add_rms_norm(bf16(x, rows, hidden), {{results.get(), factors, nullptr, kExperts}, {}}, norm,
                             bf16(z, rows, hidden));
      });
      b.row(label("finalize, add_rms_norm", at), (2 * kExperts + 10) * d, 0, calls, [&](int) {
        sluice::sm90::launch_finalize(
            {results.get(), factors, nullptr, y.get(), false, rows, nullptr, static_cast<int>(hidden), kExperts},
            b.ops().ctx().queue.stream(), true);
        b.ops().add_rms_norm(bf16(x, rows, hidden), bf16(y, rows, hidden), norm, bf16(z, rows, hidden));
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

}  // namespace sluice::bench
