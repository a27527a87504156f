// SPDX-License-Identifier: Apache-2.0
// ops_sm90: attention over pages, and DeepSeek-V3's latent attention.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/math.h"
#include "ops_sm90.h"

namespace sluice::bench {

namespace {
constexpr int64_t kBlock = 64;  // positions
int64_t blocks_of(int64_t positions) { return ceil_div(positions, kBlock); }

// Sequences of one length, each with `rows` new rows after `context` positions, in pages of their own.
struct PagedBatch {
  std::shared_ptr<int32_t> row_begin, block_begin, blocks, contexts;
  Batch batch;

  // shuffled: the blocks of all sequences lie in any order, else in that of their positions.
  PagedBatch(Bench& b, int64_t sequences, int64_t context, int64_t rows, bool shuffled) {
    const int64_t of_one = blocks_of(context + rows);
    std::vector<int32_t> rows_from{0}, blocks_from{0}, before, list;
    for (int64_t s = 0; s < sequences; ++s) {
      rows_from.push_back(static_cast<int32_t>((s + 1) * rows));
      blocks_from.push_back(static_cast<int32_t>((s + 1) * of_one));
      before.push_back(static_cast<int32_t>(context));
    }
    for (int64_t i = 0; i < sequences * of_one; ++i) list.push_back(static_cast<int32_t>(i));
    if (shuffled) std::shuffle(list.begin(), list.end(), std::mt19937(3));
    row_begin = b.ints(rows_from), block_begin = b.ints(blocks_from), blocks = b.ints(list), contexts = b.ints(before);
    batch.rows = sequences * rows;
    batch.sequences = sequences;
    batch.row_begin = row_begin.get();
    batch.block_begin = block_begin.get();
    batch.blocks = blocks.get();
    batch.contexts = contexts.get();
    batch.longest_rows = rows;
    batch.longest_context = context + rows;
  }
};

struct AttentionShape {
  const char* name;
  int64_t heads, kv, dim;
};

void bench_attention(Bench& b, const AttentionShape& shape, int64_t sequences, int64_t context, int64_t rows) {
  const std::string name = fmt::format("attention {} B={} context {} rows {}", shape.name, sequences, context, rows);
  if (!b.wants(name)) return;
  const int64_t length = context + rows, blocks = blocks_of(length) * sequences;
  const int64_t bytes = blocks * 64 * shape.kv * shape.dim * 2;
  // Each call reads pages of its own, as each layer does: together four times the L2 cache.
  const int sets = static_cast<int>(std::clamp<int64_t>(200'000'000 / (2 * bytes), 1, 24));
  const auto keys = b.random(bytes * sets), values = b.random(bytes * sets);
  const PagedBatch pages(b, sequences, context, rows, true);
  const Batch& batch = pages.batch;
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
}  // namespace

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

// --- DeepSeek-V3: 128 heads of 128 + 64, latent 512 ---
void bench_mla(Bench& b) {
  const MlaShape shape{128, 128, 64, 128, 512};
  if (!b.wants("mla")) return;
  const int64_t kv_rows = shape.heads * (shape.nope + shape.value);
  // Each call reads weights of its own, as each layer does: together more than twice the L2 cache.
  std::vector<Tensor> kv_b;
  for (int i = 0; i < 4; ++i) kv_b.push_back(b.tensor(DType::bf16, {kv_rows, shape.latent}));
  for (const int64_t sequences : {1, 8, 16, 32, 64, 128, 256}) {
    const int64_t context = 1024, blocks = blocks_of(context) * sequences;
    const auto q = b.random(sequences * shape.heads * shape.query() * 2);
    const DType type = b.ops().absorbed_type(shape, DType::bf16);
    const auto absorbed = b.random(sequences * shape.heads * shape.cached() * bytes_of(type), type);
    const auto mixed = b.random(sequences * shape.heads * shape.latent * bytes_of(type), type);
    const Matrix queries{absorbed.get(), type, sequences, shape.heads * shape.cached(), shape.heads * shape.cached()};
    const Matrix results{mixed.get(), type, sequences, shape.heads * shape.latent, shape.heads * shape.latent};
    const auto out = b.random(sequences * shape.heads * shape.value * 2);
    const auto keys = b.random(blocks * 64 * shape.cached() * 2);
    const PagedBatch pages(b, sequences, context - 1, 1, false);
    const Batch& batch = pages.batch;
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

namespace {
// Prompts of DeepSeek-V3, kv_b's halves included. The floor is that of the expanded form's products.
void bench_mla_prompt(Bench& b, int64_t sequences, int64_t context, int64_t new_rows) {
  const MlaShape shape{128, 128, 64, 128, 512};
  const std::string name = fmt::format("mla prompt B={} context {} rows {}", sequences, context, new_rows);
  if (!b.wants(name)) return;
  const Tensor kv_b = b.tensor(DType::bf16, {shape.heads * (shape.nope + shape.value), shape.latent});
  const int64_t rows = sequences * new_rows, length = context + new_rows, of_one = blocks_of(length);
  const auto q = b.random(rows * shape.heads * shape.query() * 2), out = b.random(rows * shape.heads * shape.value * 2);
  const auto keys = b.random(sequences * of_one * 64 * shape.cached() * 2);
  PagedBatch pages(b, sequences, context, new_rows, true);
  Batch& batch = pages.batch;
  for (int64_t s = 0; s < sequences; ++s) batch.count_prompt(context, new_rows);
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
}  // namespace

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

}  // namespace sluice::bench
