// SPDX-License-Identifier: Apache-2.0
// Paged attention and latent attention against plain double-precision softmax, on scrambled block tables.
#include <algorithm>
#include <numeric>

#include "ops/attention.h"
#include "ops/mla.h"
#include "tests/ops/reference.h"

namespace sluice::ops {
namespace {

// The pages of some sequences, blocks dealt out in random order; unused memory is NaN.
struct Paged {
  Pages pages;
  std::vector<float> f32;
  std::vector<bf16_t> bf16;

  Paged(DType d, int64_t blocks, int64_t block_size, int64_t heads, int64_t width) {
    const auto n = static_cast<size_t>(blocks * block_size * heads * width);
    f32.assign(n, NAN);
    bf16.assign(n, 0x7fc0);
    pages = {nullptr, d, blocks, block_size, heads, width};
  }
  const Pages& view() {
    pages.data = pages.dtype == DType::f32 ? static_cast<void*>(f32.data()) : bf16.data();
    return pages;
  }
};

struct Setup {
  DType dtype;
  int64_t heads, key_heads, key_width, value_width, block_size;
  bool shared;                                         // values are columns of the keys
  std::vector<std::pair<int64_t, int64_t>> sequences;  // context, rows
};

void check_attention(const Setup& s) {
  Context ctx = test_context();
  int64_t rows = 0, blocks = 0;
  for (const auto& [context, n] : s.sequences) {
    rows += n;
    blocks += (context + n + s.block_size - 1) / s.block_size;
  }
  std::vector<int32_t> deck(static_cast<size_t>(blocks));
  std::iota(deck.begin(), deck.end(), 0);
  std::shuffle(deck.begin(), deck.end(), random());

  Paged keys(s.dtype, blocks, s.block_size, s.key_heads, s.key_width);
  Paged values(s.dtype, blocks, s.block_size, s.key_heads, s.value_width);
  Rows q(s.dtype, rows, s.heads * s.key_width), out(s.dtype, rows, s.heads * s.value_width);
  q.randomize();
  std::vector<Sequence> sequences;
  std::vector<Rows> all_keys, all_values;  // of every position
  size_t dealt = 0;
  int64_t first = 0;
  for (const auto& [context, n] : s.sequences) {
    const auto needed = static_cast<size_t>((context + n + s.block_size - 1) / s.block_size);
    Sequence seq{0, first, n, context, {deck.data() + dealt, needed}, false};
    dealt += needed;
    Rows k(s.dtype, context + n, s.key_heads * s.key_width), v(s.dtype, context + n, s.key_heads * s.value_width);
    k.randomize(), v.randomize();
    // All positions at once, as one prompt.
    const Sequence prompt{0, 0, context + n, 0, seq.blocks, false};
    write_pages(k.view(), {&prompt, 1}, keys.view());
    if (!s.shared) write_pages(v.view(), {&prompt, 1}, values.view());
    sequences.push_back(seq);
    all_keys.push_back(k);
    all_values.push_back(v);
    first += n;
  }
  const float scale = 0.3f;
  Workspace workspace;
  attention(ctx, workspace, q.view(), keys.view(), s.shared ? Pages{} : values.view(), s.value_width, sequences, scale,
            out.view());

  const int64_t group = s.heads / s.key_heads;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& seq = sequences[i];
    for (int64_t r = 0; r < seq.rows; ++r)
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t row = seq.first_row + r, kh = h / group, seen = seq.context + r + 1;
        std::vector<double> p(static_cast<size_t>(seen));
        double largest = -INFINITY, reach = 0;
        for (int64_t j = 0; j < seen; ++j) {
          double dot = 0, size = 0;
          for (int64_t c = 0; c < s.key_width; ++c) {
            const double term = q.at(row, h * s.key_width + c) * all_keys[i].at(j, kh * s.key_width + c);
            dot += term;
            size += std::abs(term);
          }
          p[j] = dot * scale;
          reach = std::max(reach, size * scale);
          largest = std::max(largest, p[j]);
        }
        double total = 0;
        for (double& v : p) total += v = std::exp(v - largest);
        for (int64_t c = 0; c < s.value_width; ++c) {
          double exact = 0, size = 0;
          for (int64_t j = 0; j < seen; ++j) {
            const double v =
                s.shared ? all_keys[i].at(j, kh * s.key_width + c) : all_values[i].at(j, kh * s.value_width + c);
            exact += p[j] / total * v;
            size += p[j] / total * std::abs(v);
          }
          // A score is off by at most (width / 16 + 8) ulp of its terms, a probability by that much relative, the sum
          // of `seen` products by as many ulp of their sizes.
          const double relative =
              (2 * reach * (static_cast<double>(s.key_width) / 16 + 8) + static_cast<double>(seen) + 16) * 0x1p-24;
          ASSERT_NEAR(out.at(row, h * s.value_width + c), exact, relative * size + std::abs(exact) * half_ulp(s.dtype))
              << "sequence " << i << " row " << r << " head " << h << " column " << c;
        }
      }
  }
  EXPECT_TRUE(out.gaps_untouched());
}

TEST(Attention, GroupedQueries) {
  for (const DType d : kTypes) {
    check_attention({d, 4, 2, 64, 64, 16, false, {{0, 1}, {0, 70}, {63, 1}, {64, 1}, {200, 3}}});
    check_attention({d, 6, 2, 18, 18, 64, false, {{5, 40}, {130, 2}}});
    check_attention({d, 6, 3, 20, 20, 48, false, {{47, 5}, {0, 48}}});  // blocks that straddle tiles
    check_attention({d, 8, 8, 128, 128, 16, false, {{300, 1}}});
    check_attention({d, 40, 1, 16, 16, 64, false, {{33, 17}}});  // more heads than one job takes
    check_attention({d, 1, 1, 1, 1, 1, false, {{0, 3}, {9, 1}}});
  }
}

TEST(Attention, ValuesInsideTheKeys) {
  for (const DType d : kTypes) {
    check_attention({d, 6, 1, 80, 64, 64, true, {{0, 20}, {100, 1}}});
    check_attention({d, 3, 1, 48, 36, 16, true, {{7, 66}}});
    check_attention({d, 33, 1, 576, 512, 64, true, {{70, 2}}});
  }
}

TEST(Mla, AbsorbAndExpandAreTheTwoHalvesOfKvB) {
  Context ctx = test_context();
  Workspace workspace;
  for (const DType d : kTypes)
    for (const MlaShape& shape : {MlaShape{6, 32, 16, 32, 64}, MlaShape{3, 20, 12, 28, 36}, MlaShape{2, 5, 2, 7, 1}}) {
      Rows kv_b(d, shape.heads * (shape.nope + shape.value), shape.latent, 0);
      kv_b.randomize();
      const Tensor weights(d, {kv_b.rows, kv_b.cols}, kv_b.view().data, nullptr);
      Rows q(d, 5, shape.heads * shape.query()), absorbed(DType::f32, 5, shape.heads * shape.cached());
      Rows mixed(DType::f32, 5, shape.heads * shape.latent), out(d, 5, shape.heads * shape.value);
      q.randomize(), mixed.randomize();
      mla_absorb(ctx, workspace, shape, weights, q.view(), absorbed.view());
      mla_expand(ctx, workspace, shape, weights, mixed.view(), out.view());
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t h = 0; h < shape.heads; ++h) {
          const int64_t first = h * (shape.nope + shape.value);
          for (int64_t c = 0; c < shape.latent; ++c) {
            double exact = 0, size = 0;
            for (int64_t i = 0; i < shape.nope; ++i) {
              const double term = q.at(r, h * shape.query() + i) * kv_b.at(first + i, c);
              exact += term, size += std::abs(term);
            }
            ASSERT_NEAR(absorbed.at(r, h * shape.cached() + c), exact,
                        size * static_cast<double>(shape.nope) * 0x1p-24);
          }
          for (int64_t i = 0; i < shape.rope; ++i)
            ASSERT_EQ(absorbed.at(r, h * shape.cached() + shape.latent + i),
                      q.at(r, h * shape.query() + shape.nope + i));
          for (int64_t i = 0; i < shape.value; ++i) {
            double exact = 0, size = 0;
            for (int64_t c = 0; c < shape.latent; ++c) {
              const double term = mixed.at(r, h * shape.latent + c) * kv_b.at(first + shape.nope + i, c);
              exact += term, size += std::abs(term);
            }
            ASSERT_NEAR(out.at(r, h * shape.value + i), exact,
                        size * (static_cast<double>(shape.latent) / 16 + 8) * 0x1p-24 + std::abs(exact) * half_ulp(d));
          }
        }
      EXPECT_TRUE(absorbed.gaps_untouched() && out.gaps_untouched());
    }
}

}  // namespace
}  // namespace sluice::ops
