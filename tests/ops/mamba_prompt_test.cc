// SPDX-License-Identifier: Apache-2.0
// Prompts of a Mamba-2 mixer against the definition in doubles: lengths on both sides of what a GPU takes at once.
#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {
namespace {

// Nemotron's heads, fewer of them: what has kernels of its own on a GPU.
const MambaShape kShape{4, 64, 2, 128, 4};

// Sequences with states before, in place and elsewhere, and with states of several last rows; place 0 is nobody's.
struct Prompts {
  std::vector<SequenceRows> sequences;
  int32_t places = 1;

  void add(int64_t rows, bool continues, int stored = 1) {
    SequenceRows s{continues ? 7 : 0, rows, continues ? places++ : -1, {}};
    while (static_cast<int>(s.state_out.size()) < stored) s.state_out.push_back(places++);
    if (continues && rows % 2 == 1) s.state_out.back() = s.state_in;
    sequences.push_back(s);
  }
  int64_t rows() const {
    int64_t n = 0;
    for (const SequenceRows& s : sequences) n += s.rows;
    return n;
  }
};

// Rows whose beginnings are aligned to 16 bytes.
constexpr int64_t kGap = 8;

TEST_P(Conformance, CausalConvOfPrompts) {
  const int64_t n = kShape.channels(), taps = kShape.taps;
  for (const DType d : kTypes)
    for (const DType out_type : {DType::f32, ops->conv_type(d)}) {
      Prompts p;
      for (const int64_t rows : {1, 2, 3, 4, 5, 31, 32, 33, 64, 65, 130}) p.add(rows, rows % 3 != 0);
      p.add(100, true, 70);
      p.add(35, false, 3);
      Rows weight = rows(DType::f32, taps, n, 0).randomize(0.5f), bias = vector(n, 0.5f, 0);
      Rows x = rows(d, p.rows(), n, kGap).randomize(), y = rows(out_type, p.rows(), n, kGap);
      Rows states = rows(DType::f32, p.places, (taps - 1) * n, 0);
      for (const SequenceRows& s : p.sequences)
        for (int64_t i = 0; s.state_in >= 0 && i < (taps - 1) * n; ++i) states.set(s.state_in, i, normal());
      const Rows before = states;
      TestBatch batch(*queue, p.sequences);
      ops->causal_conv(batch.view(), kShape, x.view(), weight.tensor(), bias.tensor({n}),
                       {states.floats(), (taps - 1) * n}, y.view());
      EXPECT_TRUE(y.gaps_untouched());
      EXPECT_TRUE(states.row_untouched(0));
      for (size_t i = 0; i < p.sequences.size(); ++i) {
        const SequenceRows& s = p.sequences[i];
        const int64_t begin = batch.first_row(i);
        const auto input = [&](int64_t r, int64_t c) {
          if (r >= 0) return x.at(begin + r, c);
          return s.state_in < 0 ? 0.0 : before.at(s.state_in, (taps - 1 + r) * n + c);
        };
        for (int64_t r = 0; r < s.rows; ++r)
          for (int64_t c = 0; c < n; ++c) {
            Sum sum;
            sum.add(bias.at(0, c));
            for (int64_t t = 0; t < taps; ++t) sum.add(weight.at(t, c) * input(r - taps + 1 + t, c));
            const Interval exact =
                silu(Interval::around(sum.value, sum.size * 8 * 0x1p-24).rounded(d)).loosened(8).rounded(d);
            ASSERT_TRUE(exact.holds(y.at(begin + r, c))) << to_string(d) << " row " << r << " of " << s.rows;
          }
        for (size_t k = 0; k < s.state_out.size(); ++k) {
          const int64_t r = s.rows - static_cast<int64_t>(s.state_out.size() - k);
          for (int64_t t = 0; t + 1 < taps; ++t)
            for (int64_t c = 0; c < n; ++c)
              ASSERT_EQ(states.at(s.state_out[k], t * n + c), input(r - taps + 2 + t, c)) << r << " of " << s.rows;
        }
      }
    }
}

// The recurrence of one head in double, with the sizes that its error is measured by.
struct HeadState {
  static constexpr size_t kSize = 128 * 64;
  std::vector<double> value, size, error;  // of every element; error: by log-decays, steps and the state before

  HeadState() : value(kSize), size(kSize), error(kSize) {}
};

// Values of bfloat16 in x | B | C, as in a run in bfloat16: then a GPU computes prompts with 17 bits of what is float32
// (docs/numerics.md, "Mamba-2"). A term of a state has one such rounding when it enters; of a result, one more. The
// rest are float32 sums of at most `rows` terms and sums on tensor cores, for which the bound has as much again.
TEST_P(Conformance, StateScanOfPrompts) {
  const int64_t heads = kShape.heads, dim = kShape.head_dim, n = kShape.state;
  for (const bool row_invariant : {true, false}) {
    Prompts p;
    for (const int64_t rows : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300}) p.add(rows, rows % 4 != 0);
    p.add(130, true, 3);
    p.add(75, false, 20);
    p.add(1000, true);
    const Shape per_head{heads};
    Rows xbc = rows(ops->conv_type(DType::bf16), p.rows(), kShape.channels(), kGap);
    for (int64_t r = 0; r < p.rows(); ++r)
      for (int64_t c = 0; c < kShape.channels(); ++c) xbc.set(r, c, bf16_to_float(float_to_bf16(normal())));
    // Heads that forget nothing, little, much, and all of it now and then.
    Rows dt = rows(DType::bf16, p.rows(), heads, kGap).randomize(1.5f), a = vector(heads, 1, 0);
    const float rates[] = {-1e-5f, -0.02f, -1.5f, -16.0f};
    for (int64_t h = 0; h < heads; ++h) a.set(0, h, rates[h]);
    for (int64_t r = 0; r < p.rows(); r += 37) dt.set(r, r % heads, r % 2 == 0 ? 30 : -60);
    Rows dt_bias = vector(heads, 0.5f, -1), skip = vector(heads, 0.5f, 1);
    Rows states = rows(DType::f32, p.places, heads * n * dim, 0);
    for (const SequenceRows& s : p.sequences)
      for (int64_t i = 0; s.state_in >= 0 && i < states.cols(); ++i) states.set(s.state_in, i, normal());
    const Rows before = states;
    Rows y = rows(DType::f32, p.rows(), kShape.inner());
    TestBatch batch(*queue, p.sequences);
    ops->state_scan(batch.view(), kShape, xbc.view(), dt.view(),
                    {dt_bias.tensor(per_head), a.tensor(per_head), skip.tensor(per_head), row_invariant},
                    {states.floats(), heads * n * dim}, y.view());
    EXPECT_TRUE(y.gaps_untouched());
    EXPECT_TRUE(states.row_untouched(0));
    double worst = 0;
    for (size_t i = 0; i < p.sequences.size(); ++i) {
      const SequenceRows& q = p.sequences[i];
      const double relative = 0x1p-15 + (6 * std::sqrt(2 * static_cast<double>(q.rows)) + 6) * 0x1p-24;
      for (int64_t h = 0; h < heads; ++h) {
        HeadState s;
        for (size_t e = 0; q.state_in >= 0 && e < HeadState::kSize; ++e) {
          s.value[e] = before.at(q.state_in, h * n * dim + static_cast<int64_t>(e));
          s.size[e] = std::abs(s.value[e]);
        }
        const int64_t b_at = kShape.inner() + h / (heads / kShape.groups) * n, c_at = b_at + kShape.groups * n;
        for (int64_t r = 0; r < q.rows; ++r) {
          const int64_t row = batch.first_row(i) + r;
          const double z = dt.at(row, h) + dt_bias.at(0, h), step = std::log1p(std::exp(z));
          const double log = step * a.at(0, h), decay = std::exp(log), z_error = (8 + std::abs(z)) * 0x1p-24;
          std::vector<double> x(static_cast<size_t>(dim)), sum(x.size()), bound(x.size());
          for (size_t c = 0; c < x.size(); ++c) x[c] = xbc.at(row, h * dim + static_cast<int64_t>(c));
          for (int64_t k = 0; k < n; ++k) {
            const double b = step * xbc.at(row, b_at + k), c = xbc.at(row, c_at + k);
            for (size_t j = 0; j < x.size(); ++j) {
              const size_t e = static_cast<size_t>(k * dim) + j;
              const double term = std::abs(b * x[j]);
              s.error[e] = s.error[e] * decay + s.size[e] * decay * std::abs(log) * z_error + term * z_error;
              s.value[e] = s.value[e] * decay + b * x[j];
              s.size[e] = s.size[e] * decay + term;
              sum[j] += c * s.value[e];
              bound[j] += std::abs(c) * (s.error[e] + 2 * relative * s.size[e]);
            }
          }
          for (size_t j = 0; j < x.size(); ++j) {
            const double skipped = skip.at(0, h) * x[j], got = y.at(row, h * dim + static_cast<int64_t>(j));
            const double most = bound[j] + std::abs(skipped) * 0x1p-22 + 1e-30;
            ASSERT_NEAR(got, sum[j] + skipped, most) << "row " << r << " of " << q.rows << " head " << h << " column "
                                                     << j << " invariant " << row_invariant;
            worst = std::max(worst, std::abs(got - sum[j] - skipped) / most);
          }
          const int64_t stored = r - (q.rows - static_cast<int64_t>(q.state_out.size()));
          for (size_t e = 0; stored >= 0 && e < HeadState::kSize; ++e)
            ASSERT_NEAR(states.at(q.state_out[static_cast<size_t>(stored)], h * n * dim + static_cast<int64_t>(e)),
                        s.value[e], s.error[e] + relative * s.size[e] + 1e-30)
                << "state after row " << r << " of " << q.rows << " head " << h << " element " << e;
        }
      }
    }
    RecordProperty(row_invariant ? "worst_row_by_row" : "worst_chunked", std::to_string(worst));
  }
}

}  // namespace
}  // namespace sluice::ops
