// SPDX-License-Identifier: Apache-2.0
// Every way of computing attention on one GPU, side by side: microseconds per call (replays of a graph of some calls,
// median), and the time of its bytes or products.
//   attention_sm90 [part of a row's name]
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "base/math.h"
#include "device/cuda.h"
#include "event_time.h"
#include "kernels/sm90/attention/prefill.h"
#include "kernels/sm90/mla/latent_attention.h"
#include "kernels/sm90/rope/rope.h"
#include "ops/ops.h"

namespace sluice::bench {
namespace {

constexpr double kDenseTflops = 780, kCopyTbs = 4.24;  // of an H200

class Bench {
 public:
  explicit Bench(std::string only) : only_(std::move(only)), values_(4 << 20) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (bf16_t& x : values_) x = float_to_bf16(normal(rng));
    std::printf("%-58s %10s %10s %7s\n", "way", "us", "floor us", "ratio");
  }
  Context& ctx() { return ctx_; }
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }
  void* stream() { return queue_->stream(); }

  std::shared_ptr<void> random(int64_t bytes) {
    auto memory = device_->allocate(bytes);
    const auto piece = static_cast<int64_t>(values_.size()) * 2;
    for (int64_t at = 0; at < bytes; at += piece)
      queue_->copy(static_cast<char*>(memory.get()) + at, values_.data(), std::min(piece, bytes - at));
    queue_->wait();
    return memory;
  }
  std::shared_ptr<int32_t> ints(const std::vector<int32_t>& v) {
    auto memory = device_->allocate(static_cast<int64_t>(v.size()) * 4);
    queue_->copy(memory.get(), v.data(), static_cast<int64_t>(v.size()) * 4);
    queue_->wait();
    return {memory, static_cast<int32_t*>(memory.get())};
  }

  // call(i): one call on the i-th set of pages.
  void row(const std::string& name, double bytes, double flops, int calls, const std::function<void(int)>& call) {
    if (!wants(name)) return;
    try {
      for (int i = 0; i < std::min(calls, 3); ++i) call(i);
      queue_->wait();
      const auto graph = queue_->capture([&] {
        for (int i = 0; i < calls; ++i) call(i);
      });
      const double us = time([&] { graph->launch(); }) / calls;
      const double memory = bytes / kCopyTbs / 1e6, math = flops / kDenseTflops / 1e6, floor = std::max(memory, math);
      std::printf("%-58s %10.2f %10.2f %7.2f%s\n", name.c_str(), us, floor, us / floor,
                  math > memory ? fmt::format(" {:.0f} TFLOP/s", flops / us / 1e6).c_str() : "");
    } catch (const std::exception& e) {
      std::printf("%-58s %s\n", name.c_str(), e.what());
    }
    std::fflush(stdout);
  }

 private:
  double time(const std::function<void()>& run) { return median_us(*queue_, 25e3, run); }

  std::string only_;
  std::vector<bf16_t> values_;  // random
  std::unique_ptr<Device> device_ = make_cuda_device(0);
  std::unique_ptr<Queue> queue_ = device_->make_queue();
  ThreadPool pool_{2};
  Context ctx_{.pool = pool_, .queue = *queue_};
};

// Sequences in blocks of 64, dealt in random order: contexts of one length, or of `spread` lengths from it on.
struct Sequences {
  int count, context, rows, spread = 1;
  int context_of(int i) const { return context + i * 37 % spread; }
  int length() const { return context + spread - 1 + rows; }  // of the longest, at most
  int blocks() const {
    int n = 0;
    for (int i = 0; i < count; ++i) n += ceil_div(context_of(i) + rows, 64);
    return n;
  }
  int64_t positions() const {
    int64_t n = 0;
    for (int i = 0; i < count; ++i) n += context_of(i) + rows;
    return n;
  }
};

struct Arrays {
  std::shared_ptr<int32_t> row_begin, block_begin, contexts, blocks, slots;
  Arrays(Bench& b, const Sequences& s) {
    std::vector<int32_t> rows{0}, begin{0}, context, list, slot;
    for (int i = 0; i < s.blocks(); ++i) list.push_back(i);
    std::shuffle(list.begin(), list.end(), std::mt19937(3));
    for (int i = 0; i < s.count; ++i) {
      context.push_back(s.context_of(i));
      for (int p = context.back(); p < context.back() + s.rows; ++p)
        slot.push_back(list[static_cast<size_t>(begin.back() + p / 64)] * 64 + p % 64);
      rows.push_back(rows.back() + s.rows);
      begin.push_back(begin.back() + ceil_div(context.back() + s.rows, 64));
    }
    row_begin = b.ints(rows), block_begin = b.ints(begin), contexts = b.ints(context), blocks = b.ints(list);
    slots = b.ints(slot);
  }
};

// All but the pages and the plan.
sm90::AttentionArgs arguments(const Sequences& s, const Arrays& arrays, const sm90::AttentionShape& shape, float scale,
                              void* q, void* out) {
  sm90::AttentionArgs a{};
  a.q = {q, int64_t{shape.heads} * shape.key_width, false};
  a.out = {out, int64_t{shape.heads} * shape.value_width, false};
  a.shape = shape;
  a.block_size = 64;
  a.scale = scale;
  a.rows = int64_t{s.count} * s.rows;
  a.sequences = s.count;
  a.one_row_each = s.rows == 1;
  a.row_begin = arrays.row_begin.get();
  a.block_begin = arrays.block_begin.get();
  a.blocks = arrays.blocks.get();
  a.contexts = arrays.contexts.get();
  return a;
}

void bench_prompts(Bench& b, const sm90::AttentionShape& shape, const Sequences& s) {
  const std::string name = fmt::format("prompt {}/{}x{} B={} context {} rows {}", shape.heads, shape.key_heads,
                                       shape.key_width, s.count, s.context, s.rows);
  if (!b.wants(name)) return;
  const Arrays arrays(b, s);
  const int64_t rows = int64_t{s.count} * s.rows, width = int64_t{shape.heads} * shape.key_width;
  const int64_t page_bytes = int64_t{s.blocks()} * 64 * shape.key_heads * shape.key_width * 2;
  const auto keys = b.random(page_bytes), values = b.random(page_bytes), q = b.random(rows * width * 2),
             out = b.random(rows * width * 2);
  sm90::AttentionArgs a = arguments(s, arrays, shape, 0.088f, q.get(), out.get());
  a.keys = keys.get();
  a.values = values.get();
  a.plan = plan_attention(shape, true, {rows, s.count, s.rows, s.length()}, true, 132);
  const auto partial = b.random(partial_bytes(shape, a.plan) + 256),
             stats = b.random(partial_stats_bytes(shape, a.plan) + 256);
  a.partial = static_cast<float*>(partial.get());
  a.partial_stats = static_cast<float*>(stats.get());
  const double seen = s.context + (s.rows + 1) / 2.0, flops = 4.0 * static_cast<double>(rows * width) * seen;
  const double bytes = 2.0 * static_cast<double>(page_bytes) + 4.0 * static_cast<double>(rows * width);
  const int calls = flops > 1e12 ? 2 : 8;
  b.row(name + ", own", bytes, flops, calls, [&](int) { launch_attention(a, b.stream(), true); });
  for (const bool lists : {false, true}) {
    sm90::PrefillArgs p{};
    p.attention = &a;
    p.rows = rows;
    p.min_rows = 1;
    p.plan = plan_prefill(shape, rows, s.count, s.rows, 132, lists);
    const auto work = b.ints(std::vector<int32_t>(static_cast<size_t>(prefill_work_ints(p.plan))));
    p.work = prefill_work(p.plan, work.get());
    b.row(name + (lists ? ", FlashInfer in lists" : ", FlashInfer"), bytes, flops, calls,
          [&](int) { launch_prefill(p, b.stream(), true); });
    if (lists) b.row(name + ", its work arrays", 1, 0, calls, [&](int) { launch_prefill_work(p, b.stream(), true); });
  }
}

// Rotates queries and keys and stores new keys and values: the kernel ahead of attention in a model.
sm90::HeadsArgs rotation(const sm90::AttentionArgs& a, const Arrays& arrays, void* qkv, const float* angles) {
  const int width = a.shape.key_width;
  sm90::HeadsArgs h{};
  h.num_groups = 3;
  int64_t first = 0;
  for (int i = 0; i < 3; ++i) {
    h.groups[i].x = {static_cast<bf16_t*>(qkv) + first * width, a.q.stride, false};
    h.groups[i].heads = i == 0 ? a.shape.heads : a.shape.key_heads;
    h.groups[i].dim = width;
    h.groups[i].half = i < 2 ? width / 2 : 0;
    first += h.groups[i].heads;
  }
  h.groups[1].pages = const_cast<void*>(a.keys);
  h.groups[2].pages = const_cast<void*>(a.values);
  h.rows = a.rows;
  h.cosine = h.sine = angles;
  h.kv_slots = arrays.slots.get();
  h.block_size = a.block_size;
  for (sm90::HeadGroup& g : h.groups) g.e4m3 = a.pages_e4m3, g.scale = 1;
  return h;
}

// New tokens of sequences: how many blocks share the sequences, parts of the positions folded by a second kernel, or
// clusters; and the planned way after the kernel that precedes it in a model.
void bench_tokens(Bench& b, const sm90::AttentionShape& shape, const Sequences& s, bool e4m3 = false) {
  const std::string name = fmt::format("tokens{} {}/{}x{} B={} context {}{} rows {}", e4m3 ? " e4m3" : "", shape.heads,
                                       shape.key_heads, shape.key_width, s.count, s.context,
                                       s.spread > 1 ? fmt::format("-{}", s.context + s.spread - 1) : "", s.rows);
  if (!b.wants(name)) return;
  const Arrays arrays(b, s);
  const int64_t rows = int64_t{s.count} * s.rows, width = int64_t{shape.heads} * shape.key_width;
  const int64_t page_bytes = int64_t{s.blocks()} * 64 * shape.key_heads * shape.key_width * (e4m3 ? 1 : 2);
  const int64_t stride = width + 2 * int64_t{shape.key_heads} * shape.key_width;
  // Each call reads pages of its own, as each layer does: of long contexts together eight times the L2 cache.
  const int sets = static_cast<int>(std::clamp<int64_t>(ceil_div<int64_t>(200'000'000, page_bytes), 1, 24));
  const auto keys = b.random(page_bytes * sets), values = b.random(page_bytes * sets), q = b.random(rows * stride * 2),
             out = b.random(rows * width * 2);
  const std::shared_ptr<int32_t> angles =
      b.ints(std::vector<int32_t>(static_cast<size_t>(rows * shape.key_width), 0x3f000000));  // 0.5
  sm90::AttentionArgs a = arguments(s, arrays, shape, 0.088f, q.get(), out.get());
  a.q.stride = stride;
  const auto plan_of = [&](bool row_invariant, int64_t bound) {
    return plan_attention(shape, true, {rows, s.count, s.rows, bound}, row_invariant, 132);
  };
  const sm90::AttentionPlan planned = plan_of(false, s.length()), invariant = plan_of(true, s.length());
  sm90::AttentionPlan most = planned;  // of parts: partial results have room for as many
  most.parts = most.results = std::max<int64_t>(invariant.results, 264 / (s.count * shape.key_heads) * 2);
  const auto partial = b.random(partial_bytes(shape, most) + 256),
             stats = b.random(partial_stats_bytes(shape, most) + 256);
  a.partial = static_cast<float*>(partial.get());
  a.partial_stats = static_cast<float*>(stats.get());
  const double bytes =
      static_cast<double>((e4m3 ? 2 : 4) * s.positions() * shape.key_heads * shape.key_width + 4 * rows * width);
  a.pages_e4m3 = e4m3;
  const auto set_pages = [&](int i) {
    a.keys = static_cast<const char*>(keys.get()) + (i % sets) * page_bytes;
    a.values = static_cast<const char*>(values.get()) + (i % sets) * page_bytes;
  };
  const auto row = [&](const std::string& way, const sm90::AttentionPlan& p) {
    a.plan = p;
    b.row(name + ", " + way, bytes, 0, std::max(sets, 8), [&](int i) {
      set_pages(i);
      launch_attention(a, b.stream(), true);
    });
  };
  const auto rotate = [&](int i) {
    set_pages(i);
    launch_heads(rotation(a, arrays, q.get(), reinterpret_cast<const float*>(angles.get())), b.stream(), true);
  };
  b.row(name + ", rotation alone", 1, 0, std::max(sets, 8), rotate);
  a.plan = planned;
  b.row(name + ", rotation and planned way", bytes, 0, std::max(sets, 8), [&](int i) {
    rotate(i);
    launch_attention(a, b.stream(), true);
  });
  // The planned way with the rotation in it.
  const auto together = [&](int i) {
    set_pages(i);
    const sm90::HeadsArgs h = rotation(a, arrays, q.get(), reinterpret_cast<const float*>(angles.get()));
    sm90::AttentionArgs fused = a;
    sm90::ProjectedHeads& p = fused.projected;
    p.keys = static_cast<const bf16_t*>(h.groups[1].x.data);
    p.values = static_cast<const bf16_t*>(h.groups[2].x.data);
    p.cosine = h.cosine, p.sine = h.sine;
    p.kv_slots = h.kv_slots;
    p.key_pages = h.groups[1].pages, p.value_pages = h.groups[2].pages;
    p.key_scale = 1;
    launch_attention(fused, b.stream(), true);
  };
  set_pages(0);
  if (takes_projected(a)) b.row(name + ", planned way that rotates", bytes, 0, std::max(sets, 8), together);
  row("planned way", planned);
  // As a recorded launch has it.
  row("planned way, twice the bound", plan_of(false, 2 * s.length()));
  row("row invariant", invariant);
  if (planned.tokens && !planned.split() && planned.cluster == 0)
    for (const int tiles : {2, 3}) {
      sm90::AttentionPlan p = planned;
      const int64_t items = int64_t{s.count} * shape.key_heads;
      const int64_t at_once = 132 * sm90::token_blocks_per_multiprocessor(tiles);
      p.token_tiles = tiles;
      p.token_blocks = items;
      row(fmt::format("{} tiles", tiles), p);
      p.token_blocks = at_once;
      if (at_once < items && items <= at_once * sm90::kTokenItems) row(fmt::format("{} tiles, together", tiles), p);
    }
  if (planned.split() || planned.cluster > 0)
    for (const int blocks : {132, 264, 396, 528})
      for (const int tiles : {2, 3}) {
        sm90::AttentionPlan p = planned;
        p.cluster = 0;
        p.parts = p.results = blocks / (s.count * shape.key_heads);
        p.token_tiles = tiles;
        p.token_blocks = s.count * shape.key_heads * p.parts;
        if (p.parts > 1 && p.parts <= most.parts && p.parts * 2 <= ceil_div(s.length(), 64))
          row(fmt::format("{} parts, {} tiles", p.parts, tiles), p);
      }
  for (const int cluster : {2, 4, 8, 16}) {
    if (cluster * s.count * shape.key_heads > 2 * 132 || cluster >= 2 * ceil_div(s.length(), 64)) continue;
    if (s.rows * shape.group() > sm90::kAttentionFewRows) continue;
    sm90::AttentionPlan p = planned;
    p.parts = 1, p.cluster = cluster;
    row(fmt::format("clusters of {}{}", cluster, cluster == planned.cluster ? " *" : ""), p);
  }
}

void bench_all_tokens(Bench& b) {
  sm90::allow_attention();
  const sm90::AttentionShape qwen{32, 4, 128, 128}, nemotron{32, 2, 128, 128}, wide{64, 4, 128, 128};
  for (const auto& shape : {qwen, nemotron, wide})
    for (const int count : {1, 8, 64, 256}) {
      if (shape.heads == qwen.heads) bench_tokens(b, shape, {count, 64, 1, 129});
      for (const int context : {64, 128, 1023, 8191})
        if (count * context <= 64 * 8192) bench_tokens(b, shape, {count, context, 1});
    }
  for (const int count : {2, 4, 16, 32}) bench_tokens(b, qwen, {count, 8191, 1});
  for (const int count : {1, 2, 4, 8})
    for (const int context : {300, 511, 2047, 4095}) bench_tokens(b, qwen, {count, context, 1});
  for (const int count : {1, 8}) bench_tokens(b, qwen, {count, 32767, 1});
  bench_tokens(b, qwen, {8, 8192, 1, 600});
  for (const int count : {1, 8, 64, 256}) {
    bench_tokens(b, qwen, {count, 64, 1, 129}, true);
    for (const int context : {1023, 8191})
      if (count * context <= 64 * 8192) bench_tokens(b, qwen, {count, context, 1}, true);
  }
  for (const int count : {2, 4, 16, 32}) bench_tokens(b, qwen, {count, 1023, 1});
  bench_tokens(b, qwen, {8, 1020, 2});
  for (const int count : {1, 8, 64})
    for (const int context : {128, 1016}) bench_tokens(b, qwen, {count, context, 8});
}

void bench_all_prompts(Bench& b) {
  sm90::allow_attention();
  sm90::allow_flash();
  const sm90::AttentionShape qwen{32, 4, 128, 128}, nemotron{32, 2, 128, 128};
  for (const Sequences& s : {Sequences{1, 0, 2048}, {1, 0, 8192}, {1, 0, 16384}, {8, 0, 1024}, {1, 16384, 2048}})
    bench_prompts(b, qwen, s);
  // From how many rows on it is the faster one.
  for (const int rows : {64, 128, 192, 256, 384, 512})
    for (const int context : {0, 2048, 16384}) bench_prompts(b, qwen, {1, context, rows});
  for (const int rows : {64, 128, 256}) bench_prompts(b, qwen, {8, 0, rows});
  bench_prompts(b, nemotron, {1, 0, 8192});
}

// Absorbed latent attention of DeepSeek: 512 + 64 values.
void bench_latent(Bench& b, int heads, const Sequences& s) {
  const std::string name = fmt::format("latent {} heads B={} context {} rows {}", heads, s.count, s.context, s.rows);
  if (!b.wants(name)) return;
  const Arrays arrays(b, s);
  const int64_t rows = int64_t{s.count} * s.rows, page_bytes = int64_t{s.blocks()} * 64 * sm90::kLatentCached * 2;
  // Each call reads pages of its own, as each layer does: together four times the L2 cache.
  const int sets = static_cast<int>(std::clamp<int64_t>(200'000'000 / page_bytes, 1, 24));
  const auto keys = b.random(page_bytes * sets), q = b.random(rows * heads * sm90::kLatentCached * 2),
             out = b.random(rows * heads * sm90::kLatent * 2);
  const sm90::AttentionShape shape{heads, 1, sm90::kLatentCached, sm90::kLatent};
  sm90::AttentionArgs a = arguments(s, arrays, shape, 0.07f, q.get(), out.get());
  const double seen = s.context + (s.rows + 1) / 2.0;
  const double flops = 2.0 * static_cast<double>(rows * heads * (sm90::kLatentCached + sm90::kLatent)) * seen;
  const double bytes = static_cast<double>(page_bytes + 2 * rows * heads * (sm90::kLatentCached + sm90::kLatent));
  for (const bool row_invariant : {false, true}) {
    sm90::LatentCall call{};
    call.attention = &a;
    call.plan = sm90::plan_latent(heads, {rows, s.count, s.rows, s.length()}, row_invariant, 132);
    const auto work = b.ints(std::vector<int32_t>(static_cast<size_t>(latent_work_ints(call.plan))));
    const auto partial = b.random(latent_partial_bytes(call.plan) + 256),
               stats = b.random(latent_stats_bytes(call.plan) + 256);
    call.work = work.get();
    call.partial = partial.get();
    call.partial_stats = static_cast<float*>(stats.get());
    b.row(name + (row_invariant ? ", row invariant" : ""), bytes, flops, flops > 1e12 ? 2 : std::max(sets, 8),
          [&](int i) {
            a.keys = static_cast<const char*>(keys.get()) + (i % sets) * page_bytes;
            launch_latent_attention(call, b.stream(), true);
          });
  }
}

void bench_all_latent(Bench& b) {
  sm90::allow_latent();
  for (const int heads : {128, 16})
    for (const int count : {1, 8, 64})
      for (const int context : {1024, 8192}) bench_latent(b, heads, {count, context - 1, 1});
  bench_latent(b, 128, {1, 0, 1024});
  bench_latent(b, 16, {1, 0, 1024});
  bench_latent(b, 16, {1, 0, 4096});
  bench_latent(b, 16, {8, 1020, 4});
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  try {
    Bench b(argc > 1 ? argv[1] : "");
    bench_all_tokens(b);
    bench_all_prompts(b);
    bench_all_latent(b);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "attention_sm90: %s\n", e.what());
    return 1;
  }
  return 0;
}
