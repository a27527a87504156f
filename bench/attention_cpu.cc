// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU by itself, at every level of instructions that the machine has: the last ROWS rows of a prompt,
// and one decoded row. One line per level and context, best of some runs. GFLOP/s count two products for each query,
// position and column, whatever a level does for them.
//   bench/attention_cpu [qwen3|deepseek] [THREADS] [ROWS] [CONTEXT ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/bf16.h"
#include "ops/cpu/cpu_ops.h"

namespace {
using namespace sluice;
using kernels::cpu::Isa;

struct Shape {
  int64_t heads, key_heads, key_width, value_width;
  bool shared;  // values are columns of the keys
  DType queries;
};
constexpr Shape kQwen3{32, 4, 128, 128, false, DType::bf16}, kDeepseek{128, 1, 576, 512, true, DType::f32};
constexpr int64_t kBlock = 64;

// Values in about [-0.5, 0.5).
Tensor randoms(DType type, int64_t count) {
  Tensor t(type, {count});
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    const float x = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    if (type == DType::bf16)
      t.as<bf16_t>()[i] = float_to_bf16(x);
    else
      t.as<float>()[i] = x;
  }
  return t;
}

struct Problem {
  Shape shape;
  int64_t longest;
  Tensor q, keys, values, out;
  std::vector<int32_t> blocks;
  Problem(const Shape& s, int64_t rows, int64_t context)
      : shape(s),
        longest((context + kBlock - 1) / kBlock),
        q(randoms(s.queries, rows * s.heads * s.key_width)),
        keys(randoms(DType::bf16, longest * kBlock * s.key_heads * s.key_width)),
        values(randoms(DType::bf16, s.shared ? 1 : longest * kBlock * s.key_heads * s.value_width)),
        out(s.queries, {rows * s.heads * s.value_width}),
        blocks(static_cast<size_t>(longest)) {
    std::iota(blocks.begin(), blocks.end(), 0);
  }
};

// Seconds for the rows [context - rows, context).
double measure(ops::cpu::CpuOps& ops, Problem& p, int64_t rows, int64_t context) {
  const Shape& s = p.shape;
  const int32_t row_begin[] = {0, static_cast<int32_t>(rows)}, block_begin[] = {0, static_cast<int32_t>(p.longest)};
  const auto before = static_cast<int32_t>(context - rows);
  ops::Batch batch;
  batch.rows = rows;
  batch.sequences = 1;
  batch.row_begin = row_begin;
  batch.block_begin = block_begin;
  batch.blocks = p.blocks.data();
  batch.contexts = &before;
  const ops::Pages keys{p.keys.data(), DType::bf16, p.longest, kBlock, s.key_heads, s.key_width};
  const ops::Pages values =
      s.shared ? ops::Pages{} : ops::Pages{p.values.data(), DType::bf16, p.longest, kBlock, s.key_heads, s.value_width};
  const ops::ConstMatrix q{p.q.data(), s.queries, rows, s.heads * s.key_width, s.heads * s.key_width};
  const ops::Matrix out{p.out.data(), s.queries, rows, s.heads * s.value_width, s.heads * s.value_width};
  double best = 1e9, total = 0;
  for (int run = 0; run < 3 || (total < 0.5 && run < 1000); ++run) {
    const auto begin = std::chrono::steady_clock::now();
    ops.attention(batch, q, keys, values, s.value_width, {0.1f}, out);
    const std::chrono::duration<double> t = std::chrono::steady_clock::now() - begin;
    best = std::min(best, t.count());
    total += t.count();
  }
  return best;
}

void run(int argc, char** argv) {
  const Shape& shape = argc > 1 && std::string_view(argv[1]) == "deepseek" ? kDeepseek : kQwen3;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const int64_t rows = argc > 3 ? std::atoi(argv[3]) : 128;
  std::vector<int64_t> contexts{512, 4096, 16384};
  if (argc > 4) contexts.clear();
  for (int i = 4; i < argc; ++i) contexts.push_back(std::atoi(argv[i]));
  ThreadPool pool(threads);
  Context ctx{pool};
  for (const int64_t context : contexts) {
    Problem p(shape, rows, context);
    for (const auto& isa : kernels::cpu::kIsas) {
      if (isa.value < Isa::avx2 || !kernels::cpu::supported(isa.value)) continue;
      ops::cpu::CpuOps ops(ctx, isa.value);
      const double prompt = measure(ops, p, rows, context), decode = measure(ops, p, 1, context);
      const double positions =
          static_cast<double>(rows) * (static_cast<double>(context) - static_cast<double>(rows) / 2);
      const double flop = 2.0 * static_cast<double>(shape.heads * (shape.key_width + shape.value_width)) * positions;
      std::printf("%-12s context %6ld: %4ld rows %9.3f ms, %7.1f GFLOP/s; one row %7.1f us\n", isa.name.data(),
                  static_cast<long>(context), static_cast<long>(rows), prompt * 1e3, flop / prompt * 1e-9,
                  decode * 1e6);
      std::fflush(stdout);
    }
  }
}
}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_cpu: %s\n", error.what());
    return 1;
  }
  return 0;
}
