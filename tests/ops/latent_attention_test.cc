// SPDX-License-Identifier: Apache-2.0
// Latent attention: of absorbed queries against plain double-precision softmax, the products before and after it
// against their definitions, and whole prompts against attention over the keys and values that kv_b makes.
#include "tests/ops/attention_case.h"

namespace sluice::ops {
namespace {

// Latent attention in the type that the device prefers, in aligned rows: one row, drafts, a chunk of a prompt, long
// contexts.
TEST_P(Conformance, AttentionOfAbsorbedQueries) {
  for (const int64_t heads : {1, 16, 128}) {
    const DType type = ops->absorbed_type({heads, 128, 64, 128, 512}, DType::bf16);
    const AttentionCase s{
        heads, 1, 576, 512, 64, true, {{0, 1}, {63, 1}, {64, 2}, {heads == 1 ? 1500 : 100, 1}, {66, 5}}, 0.3f};
    for (const bool row_invariant : {true, false}) {
      SCOPED_TRACE(fmt::format("{} heads, {}", heads, row_invariant));
      AttentionData data(*this, type, DType::bf16, s, 16);
      Rows out = rows(type, data.batch.rows(), heads * 512, 8), alone = out;
      const auto run = [&](TestBatch& batch, int64_t first, Rows& to) {
        ops->attention(batch.view(), data.q.view(first, batch.rows()), data.keys.view(), {}, 512,
                       {kScale, row_invariant}, to.view(first, batch.rows()));
      };
      run(data.batch, 0, out);
      for (size_t i = 0; i < s.sequences.size(); ++i)
        for (int64_t r = 0; r < s.sequences[i].second; r += 4) {
          check_row(s, data, i, r, out, type == DType::bf16);
          TestBatch one = data.batch.part(i, r, 1);
          run(one, data.batch.first_row(i) + r, alone);
          if (row_invariant)
            ASSERT_TRUE(alone.same_row(data.batch.first_row(i) + r, out, data.batch.first_row(i) + r));
          else
            check_row(s, data, i, r, alone, type == DType::bf16);
        }
      EXPECT_TRUE(out.gaps_untouched() && alone.gaps_untouched());
    }
  }
}

const MlaShape kMlaShapes[] = {
    {6, 32, 16, 32, 64}, {3, 20, 12, 28, 36}, {2, 5, 2, 7, 1}, {1, 70, 4, 1, 1030}, {2, 128, 64, 128, 512}};

TEST_P(Conformance, MlaAbsorbAndExpandAreTheTwoHalvesOfKvB) {
  constexpr int64_t kRows = 5;
  for (const DType weight_type : kTypes)
    for (const DType d : kTypes)
      for (const MlaShape& shape : kMlaShapes) {
        Rows kv_b = rows(weight_type, shape.heads * (shape.nope + shape.value), shape.latent, 0);
        Rows q = rows(d, kRows, shape.heads * shape.query());
        const DType type = ops->absorbed_type(shape, d);
        Rows absorbed = rows(type, kRows, shape.heads * shape.cached());
        Rows mixed = rows(type, kRows, shape.heads * shape.latent, 1);
        Rows out = rows(d, kRows, shape.heads * shape.value);
        kv_b.randomize(), q.randomize(), mixed.randomize();
        ops->mla_absorb(shape, kv_b.tensor(), q.view(), absorbed.view());
        ops->mla_expand(shape, kv_b.tensor(), mixed.view(), out.view());
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t h = 0; h < shape.heads; ++h) {
            const int64_t first = h * (shape.nope + shape.value);
            for (int64_t c = 0; c < shape.latent; ++c) {
              Sum exact;
              for (int64_t i = 0; i < shape.nope; ++i)
                exact.add(q.at(r, h * shape.query() + i) * kv_b.at(first + i, c));
              ASSERT_NEAR(
                  absorbed.at(r, h * shape.cached() + c), exact.value,
                  exact.size * static_cast<double>(shape.nope) * 0x1p-24 + std::abs(exact.value) * half_ulp(type));
            }
            for (int64_t i = 0; i < shape.rope; ++i)
              ASSERT_EQ(absorbed.at(r, h * shape.cached() + shape.latent + i),
                        q.at(r, h * shape.query() + shape.nope + i));
            for (int64_t i = 0; i < shape.value; ++i) {
              Sum exact;
              for (int64_t c = 0; c < shape.latent; ++c)
                exact.add(mixed.at(r, h * shape.latent + c) * kv_b.at(first + shape.nope + i, c));
              ASSERT_NEAR(out.at(r, h * shape.value + i), exact.value,
                          exact.size * (static_cast<double>(shape.latent) / 16 + 8) * 0x1p-24 +
                              std::abs(exact.value) * half_ulp(d));
            }
          }
        EXPECT_TRUE(absorbed.gaps_untouched() && out.gaps_untouched());
        Rows absorbed_alone = rows(type, kRows, shape.heads * shape.cached());
        Rows out_alone = rows(d, kRows, shape.heads * shape.value);
        for (int64_t r = 0; r < kRows; ++r) {
          ops->mla_absorb(shape, kv_b.tensor(), q.view(r, 1), absorbed_alone.view(r, 1));
          ops->mla_expand(shape, kv_b.tensor(), mixed.view(r, 1), out_alone.view(r, 1));
        }
        EXPECT_TRUE(absorbed_alone.same_bytes(absorbed) && out_alone.same_bytes(out));
        ops->mla_absorb(shape, kv_b.tensor(), q.view(0, 0), absorbed.view(0, 0));
        ops->mla_expand(shape, kv_b.tensor(), mixed.view(0, 0), out.view(0, 0));
      }
}

// Whole latent attention of one head of one sequence, from the keys and values that kv_b makes of its latent rows.
class LatentHead {
 public:
  LatentHead(const MlaShape& shape, const Rows& kv_b, int64_t head, const PagedRows& pages, const TestBatch& batch,
             size_t sequence)
      : s_(shape), kv_b_(kv_b), first_(head * (shape.nope + shape.value)), length_(length_of(batch, sequence)) {
    for (int64_t p = 0; p < length_; ++p) {
      for (int64_t c = 0; c < s_.cached(); ++c) latent_.push_back(pages.at(batch.slot(sequence, p), 0, c));
      const double* row = latent_.data() + p * s_.cached();
      for (int64_t i = 0; i < s_.nope + s_.value; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < s_.latent; ++c) sum += kv_b.at(first_ + i, c) * row[c];
        expanded_.push_back(sum);
      }
    }
  }

  // The last `rows` rows of the sequence are new. q: of the head of new row r. check(i, exact, error) for its values.
  template <class Check>
  void row(const std::vector<double>& q, int64_t seen, float scale, DType d, Check&& check) const {
    const double unit = d == DType::bf16 ? half_ulp(d) : 0;
    std::vector<double> p, off;
    double largest = -INFINITY, total = 0;
    std::vector<double> absorbed(static_cast<size_t>(s_.latent));
    for (int64_t c = 0; c < s_.latent; ++c)
      for (int64_t i = 0; i < s_.nope; ++i)
        absorbed[static_cast<size_t>(c)] += q[static_cast<size_t>(i)] * kv_b_.at(first_ + i, c);
    for (int64_t j = 0; j < seen; ++j) {
      Sum dot;
      double keys = 0, latents = 0, size = 0;
      const double *key = expanded_.data() + j * (s_.nope + s_.value), *latent = latent_.data() + j * s_.cached();
      for (int64_t i = 0; i < s_.query(); ++i) {
        const double term = q[static_cast<size_t>(i)] * (i < s_.nope ? key[i] : latent[s_.latent + i - s_.nope]);
        dot.add(term);
        keys += term * term;
      }
      for (int64_t c = 0; c < s_.latent; ++c) {
        const double term = absorbed[static_cast<size_t>(c)] * latent[c];
        latents += term * term;
        size += std::abs(term);
      }
      p.push_back(dot.value * double{scale});
      // Keys or absorbed queries are rounded: by Hoeffding's inequality within 7 roots of the sum of squares but for
      // one score in 2e10. Sums in float32: of the sizes of their terms.
      off.push_back((unit * 7 * std::sqrt(std::max(keys, latents)) +
                     (dot.size + size) * (static_cast<double>(s_.latent + s_.query())) * 0x1p-24) *
                    double{scale});
      largest = std::max(largest, p.back());
    }
    for (double& v : p) total += v = std::exp(v - largest);
    std::vector<double> mixed(static_cast<size_t>(s_.latent)), sizes = mixed;
    for (int64_t j = 0; j < seen; ++j)
      for (int64_t c = 0; c < s_.latent; ++c) {
        const double term = p[static_cast<size_t>(j)] / total * latent_[static_cast<size_t>(j * s_.cached() + c)];
        mixed[static_cast<size_t>(c)] += term;
        sizes[static_cast<size_t>(c)] += std::abs(term);
      }
    for (int64_t i = 0; i < s_.value; ++i) {
      double exact = 0, size = 0, squares = 0, shifted = 0, halves = 0;
      const auto value = [&](int64_t j) {
        return expanded_[static_cast<size_t>(j * (s_.nope + s_.value) + s_.nope + i)];
      };
      for (int64_t j = 0; j < seen; ++j) exact += p[static_cast<size_t>(j)] / total * value(j);
      for (int64_t j = 0; j < seen; ++j) {
        const double weight = p[static_cast<size_t>(j)] / total;
        squares += weight * weight * value(j) * value(j);
        shifted += weight * std::expm1(off[static_cast<size_t>(j)]) * std::abs(value(j) - exact);
      }
      for (int64_t c = 0; c < s_.latent; ++c) {
        const double weight = kv_b_.at(first_ + s_.nope + i, c), term = mixed[static_cast<size_t>(c)] * weight;
        halves += term * term;
        size += sizes[static_cast<size_t>(c)] * std::abs(weight);
      }
      // Probabilities, values or the latent results, and these once more where positions are cut.
      const double rounding = unit * 7 * (2 * std::sqrt(squares) + 2 * std::sqrt(halves));
      check(i, exact,
            2 * shifted + rounding + size * static_cast<double>(2 * s_.latent + seen) * 0x1p-24 +
                std::abs(exact) * half_ulp(d));
    }
  }

 private:
  static int64_t length_of(const TestBatch& batch, size_t sequence) {
    return batch.sequences()[sequence].context + batch.sequences()[sequence].rows;
  }
  MlaShape s_;
  const Rows& kv_b_;
  int64_t first_, length_;
  std::vector<double> latent_, expanded_;
};

// Prompts that are computed in another form where bits need not be the same, cold and after a cached prefix, beside
// new tokens and short chunks.
TEST_P(Conformance, MlaAttentionOfPromptsAndTokens) {
  constexpr float kMlaScale = 0.07f;
  const MlaShape shape{16, 128, 64, 128, 512};
  for (const DType d : kTypes)
    for (const std::vector<SequenceRows>& sequences :
         {std::vector<SequenceRows>{{40, 1}, {0, 300}, {130, 257}, {5, 3}, {200, 256}, {64, 1}}, {{0, 401}}}) {
      Rows kv_b = rows(d, shape.heads * (shape.nope + shape.value), shape.latent, 0);
      kv_b.randomize(0.044f);  // keys and values of about one
      TestBatch batch(*queue, sequences, 64);
      Rows q = rows(d, batch.rows(), shape.heads * shape.query(), 8);
      q.randomize(3);
      PagedRows pages(*queue, d, batch.blocks(), 64, 1, shape.cached());
      for (size_t s = 0; s < sequences.size(); ++s)
        for (int64_t p = 0; p < sequences[s].context + sequences[s].rows; ++p)
          for (int64_t c = 0; c < shape.cached(); ++c) pages.set(batch.slot(s, p), 0, c, normal());
      for (const bool row_invariant : {true, false}) {
        Rows out = rows(d, batch.rows(), shape.heads * shape.value, 8);
        ops->mla_attention(batch.view(), shape, kv_b.tensor(), q.view(), pages.view(), {kMlaScale, row_invariant},
                           out.view());
        EXPECT_TRUE(out.gaps_untouched());
        for (size_t s = 0; s < sequences.size(); ++s) {
          const auto head = static_cast<int64_t>(random()() % static_cast<uint32_t>(shape.heads));
          const LatentHead exact(shape, kv_b, head, pages, batch, s);
          for (const int64_t r : {int64_t{0}, sequences[s].rows / 2, sequences[s].rows - 1}) {
            const int64_t row = batch.first_row(s) + r;
            std::vector<double> query;
            for (int64_t i = 0; i < shape.query(); ++i) query.push_back(q.at(row, head * shape.query() + i));
            exact.row(query, sequences[s].context + r + 1, kMlaScale, d, [&](int64_t i, double value, double error) {
              ASSERT_NEAR(out.at(row, head * shape.value + i), value, error)
                  << "sequence " << s << " row " << r << " head " << head << " column " << i;
            });
          }
        }
        for (int64_t r = 0; r < batch.rows(); ++r)
          for (int64_t c = 0; c < shape.heads * shape.value; ++c) ASSERT_TRUE(std::isfinite(out.at(r, c)));
      }
    }
}

}  // namespace
}  // namespace sluice::ops
