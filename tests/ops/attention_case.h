// SPDX-License-Identifier: Apache-2.0
// Inputs of paged attention on scrambled blocks, and its results held against plain double-precision softmax.
#pragma once

#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {

struct AttentionCase {
  int64_t heads, key_heads, key_width, value_width, block_size;
  bool shared;                                         // values are columns of the keys
  std::vector<std::pair<int64_t, int64_t>> sequences;  // context, rows
  float query_size = 1;                                // large ones make one key win
  float key_scale = 1, value_scale = 1;                // of e4m3 pages
};

// One call's inputs. Pages that belong to no position are NaN.
struct AttentionData {
  TestBatch batch;
  Rows q;
  PagedRows keys, values;
  double lost_probability;
  AttentionData(Conformance& t, DType q_type, DType d, const AttentionCase& s, int64_t gap = 3)
      : batch(*t.queue, sequences_of(s), s.block_size),
        q(t.rows(q_type, batch.rows(), s.heads * s.key_width, gap)),
        keys(*t.queue, d, batch.blocks(), s.block_size, s.key_heads, s.key_width, s.key_scale),
        values(*t.queue, d, batch.blocks(), s.block_size, s.key_heads, s.value_width, s.value_scale),
        lost_probability(t.lost_probability(q_type, d)) {
    q.randomize(s.query_size);
    for (size_t i = 0; i < batch.sequences().size(); ++i)
      for (int64_t p = 0; p < batch.sequences()[i].context + batch.sequences()[i].rows; ++p)
        for (int64_t h = 0; h < s.key_heads; ++h) {
          for (int64_t c = 0; c < s.key_width; ++c) keys.set(batch.slot(i, p), h, c, normal() / s.key_scale);
          for (int64_t c = 0; c < s.value_width; ++c) values.set(batch.slot(i, p), h, c, normal() / s.value_scale);
        }
  }
  static std::vector<SequenceRows> sequences_of(const AttentionCase& s) {
    std::vector<SequenceRows> out;
    for (const auto& [context, rows] : s.sequences) out.push_back({context, rows});
    return out;
  }
};

inline constexpr float kScale = 0.3f;

// rounded: probabilities may be rounded to bfloat16.
inline void check_row(const AttentionCase& s, const AttentionData& data, size_t sequence, int64_t r, const Rows& out,
                      bool rounded = false) {
  const int64_t group = s.heads / s.key_heads, row = data.batch.first_row(sequence) + r;
  const int64_t seen = data.batch.sequences()[sequence].context + r + 1;
  const double value_scale = double{s.shared ? s.key_scale : s.value_scale};
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t kh = h / group;
    std::vector<double> p(static_cast<size_t>(seen));
    double largest = -INFINITY, reach = 0, total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      Sum dot;
      for (int64_t c = 0; c < s.key_width; ++c)
        dot.add(data.q.at(row, h * s.key_width + c) * double{s.key_scale} *
                data.keys.at(data.batch.slot(sequence, j), kh, c));
      p[static_cast<size_t>(j)] = dot.value * double{kScale};
      reach = std::max(reach, dot.size * double{kScale});
      largest = std::max(largest, p[static_cast<size_t>(j)]);
    }
    for (double& v : p) total += v = std::exp(v - largest);
    // A score is off by at most width + 8 half-ulps of its terms in any order of its sum, a probability by that much
    // relative, the sum of `seen` products by as many half-ulps of their sizes.
    const double relative =
        (2 * reach * (static_cast<double>(s.key_width) + 8) + static_cast<double>(seen) + 16) * 0x1p-24 +
        (rounded ? 2 * half_ulp(DType::bf16) : 0);  // probabilities, and partial results
    for (int64_t c = 0; c < s.value_width; ++c) {
      Sum exact;
      double all = 0;
      for (int64_t j = 0; j < seen; ++j) {
        const double value = value_scale * (s.shared ? data.keys : data.values).at(data.batch.slot(sequence, j), kh, c);
        exact.add(p[static_cast<size_t>(j)] / total * value);
        all += std::abs(value);
      }
      // Where all values but unlikely ones are zero, what small probabilities lose is all there is.
      const double lost = data.lost_probability * all / total;
      ASSERT_NEAR(out.at(row, h * s.value_width + c), exact.value,
                  relative * exact.size + std::abs(exact.value) * half_ulp(out.dtype()) + lost)
          << "sequence " << sequence << " row " << r << " head " << h << " column " << c;
    }
  }
}

}  // namespace sluice::ops
