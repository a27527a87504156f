// SPDX-License-Identifier: Apache-2.0
// Prompts of a Mamba-2 mixer against the definition in doubles: lengths on both sides of what a GPU takes at once,
// sizes on both sides of what a CPU keeps in registers. Prompts that are cut give the bits of whole ones.
#include <functional>
#include <numeric>

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
  std::vector<double> value, size, error;  // of every element; error: by log-decays, steps and the state before

  explicit HeadState(int64_t elements)
      : value(static_cast<size_t>(elements)), size(value.size()), error(value.size()) {}
};

// A state_scan with everything that it reads.
struct Scan {
  MambaShape shape;
  Rows xbc, dt, dt_bias, a, skip, states;

  // Values of bfloat16 in x | B | C, as in a run in bfloat16.
  Scan(Conformance& t, const MambaShape& m, const Prompts& p)
      : shape(m),
        xbc(t.rows(t.ops->conv_type(DType::bf16), p.rows(), m.channels(), kGap)),
        dt(t.rows(DType::bf16, p.rows(), m.heads, kGap).randomize(1.5f)),
        dt_bias(t.vector(m.heads, 0.5f, -1)),
        a(t.vector(m.heads, 1, 0)),
        skip(t.vector(m.heads, 0.5f, 1)),
        states(t.rows(DType::f32, p.places, m.heads * m.state * m.head_dim, 0)) {
    for (int64_t r = 0; r < p.rows(); ++r)
      for (int64_t c = 0; c < m.channels(); ++c) xbc.set(r, c, bf16_to_float(float_to_bf16(normal())));
    // Heads that forget nothing, little, much, and all of it now and then.
    const float rates[] = {-1e-5f, -0.02f, -1.5f, -16.0f};
    for (int64_t h = 0; h < m.heads; ++h) a.set(0, h, rates[h % 4]);
    for (int64_t r = 0; r < p.rows(); r += 37) dt.set(r, r % m.heads, r % 2 == 0 ? 30 : -60);
    for (const SequenceRows& s : p.sequences)
      for (int64_t i = 0; s.state_in >= 0 && i < states.cols(); ++i) states.set(s.state_in, i, normal());
  }

  // The given rows of the inputs as one batch.
  Rows run(Conformance& t, const std::vector<SequenceRows>& sequences, const std::vector<int64_t>& from, Rows& places,
           bool row_invariant) {
    const auto count = static_cast<int64_t>(from.size());
    Rows x = t.rows(xbc.dtype(), count, xbc.cols(), kGap), steps = t.rows(dt.dtype(), count, dt.cols(), kGap);
    for (int64_t r = 0; r < count; ++r) {
      x.copy_row(r, xbc, from[static_cast<size_t>(r)]);
      steps.copy_row(r, dt, from[static_cast<size_t>(r)]);
    }
    Rows y = t.rows(DType::f32, count, shape.inner());
    TestBatch batch(*t.queue, sequences);
    const Shape per_head{shape.heads};
    t.ops->state_scan(batch.view(), shape, x.view(), steps.view(),
                      {dt_bias.tensor(per_head), a.tensor(per_head), skip.tensor(per_head), row_invariant},
                      {places.floats(), places.cols()}, y.view());
    EXPECT_TRUE(y.gaps_untouched());
    return y;
  }
};

// What a GPU takes in chunks is computed with 17 bits of what is float32 (docs/numerics.md, "Mamba-2"). A term of a
// state has one such rounding when it enters; of a result, one more. The rest are float32 sums of at most `rows` terms
// and sums on tensor cores, for which the bound has as much again. Returns the largest part of a bound that was needed.
double check_head(const Scan& scan, const SequenceRows& q, int64_t first_row, int64_t h, const Rows& y,
                  const Rows& states) {
  const MambaShape& m = scan.shape;
  const int64_t dim = m.head_dim, n = m.state, at = h * n * dim;
  const double relative = 0x1p-15 + (6 * std::sqrt(2 * static_cast<double>(q.rows)) + 6) * 0x1p-24;
  double worst = 0;
  HeadState s(n * dim);
  for (size_t e = 0; q.state_in >= 0 && e < s.value.size(); ++e) {
    s.value[e] = scan.states.at(q.state_in, at + static_cast<int64_t>(e));
    s.size[e] = std::abs(s.value[e]);
  }
  const int64_t b_at = m.inner() + h / (m.heads / m.groups) * n, c_at = b_at + m.groups * n;
  for (int64_t r = 0; r < q.rows; ++r) {
    const int64_t row = first_row + r;
    const double z = scan.dt.at(row, h) + scan.dt_bias.at(0, h), step = std::log1p(std::exp(z));
    const double log = step * scan.a.at(0, h), decay = std::exp(log), z_error = (8 + std::abs(z)) * 0x1p-24;
    std::vector<double> x(static_cast<size_t>(dim)), sum(x.size()), bound(x.size());
    for (size_t c = 0; c < x.size(); ++c) x[c] = scan.xbc.at(row, h * dim + static_cast<int64_t>(c));
    for (int64_t k = 0; k < n; ++k) {
      const double b = step * scan.xbc.at(row, b_at + k), c = scan.xbc.at(row, c_at + k);
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
      const double skipped = scan.skip.at(0, h) * x[j], got = y.at(row, h * dim + static_cast<int64_t>(j));
      const double most = bound[j] + std::abs(skipped) * 0x1p-22 + 1e-30, off = std::abs(got - sum[j] - skipped);
      EXPECT_LE(off, most) << "row " << r << " of " << q.rows << " head " << h << " column " << j;
      if (!(off <= most)) return INFINITY;
      worst = std::max(worst, off / most);
    }
    const int64_t stored = r - (q.rows - static_cast<int64_t>(q.state_out.size()));
    for (size_t e = 0; stored >= 0 && e < s.value.size(); ++e) {
      const double got = states.at(q.state_out[static_cast<size_t>(stored)], at + static_cast<int64_t>(e));
      const double most = s.error[e] + relative * s.size[e] + 1e-30;
      EXPECT_NEAR(got, s.value[e], most) << "state after row " << r << " of " << q.rows << " head " << h << " element "
                                         << e;
      if (!(std::abs(got - s.value[e]) <= most)) return INFINITY;
    }
  }
  return worst;
}

// Each row as one of a batch.
std::vector<int64_t> all_rows(const Prompts& p) {
  std::vector<int64_t> rows(static_cast<size_t>(p.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

double check_scan(Conformance& t, const MambaShape& shape, const Prompts& p, bool row_invariant) {
  SCOPED_TRACE(
      fmt::format("{} heads of {}, state {}, invariant {}", shape.heads, shape.head_dim, shape.state, row_invariant));
  Scan scan(t, shape, p);
  Rows states = scan.states;
  const Rows y = scan.run(t, p.sequences, all_rows(p), states, row_invariant);
  EXPECT_TRUE(states.row_untouched(0));
  double worst = 0;
  int64_t first = 0;
  for (const SequenceRows& q : p.sequences) {
    for (int64_t h = 0; h < shape.heads; ++h) worst = std::max(worst, check_head(scan, q, first, h, y, states));
    first += q.rows;
  }
  return worst;
}

TEST_P(Conformance, StateScanOfPrompts) {
  for (const bool row_invariant : {true, false}) {
    Prompts p;
    for (const int64_t rows : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300}) p.add(rows, rows % 4 != 0);
    p.add(130, true, 3);
    p.add(75, false, 20);
    p.add(1000, true);
    const double worst = check_scan(*this, kShape, p, row_invariant);
    RecordProperty(row_invariant ? "worst_row_by_row" : "worst_chunked", std::to_string(worst));
  }
}

// Beside blocks of 4 rows and 64 columns of a state and 2 tokens. A GPU takes them all: its threads hold heads of up
// to 256 values with states of up to 64 * (256 / head_dim), at most 512 (scan_fits in kernels/sm90/ssm/ssm.h).
const MambaShape kOddShapes[] = {
    {2, 80, 1, 37, 4}, {3, 67, 3, 18, 4}, {2, 130, 1, 9, 4}, {4, 24, 2, 6, 4}, {1, 3, 1, 2, 4}};
Prompts odd_prompts(int stored) {
  Prompts p;
  for (const int64_t rows : {1, 2, 3, 7, 64, 65})
    for (const bool continues : {false, true}) p.add(rows, continues);
  p.add(9, true, stored);
  p.add(5, false, stored);
  return p;
}

TEST_P(Conformance, StateScanOfOddShapes) {
  for (const MambaShape& shape : kOddShapes) check_scan(*this, shape, odd_prompts(4), true);
}

// What cut() says of the rows that are left of a prompt, until none are: the bits of whole prompts.
void check_cut(Conformance& t, Scan& scan, const Prompts& p, const Rows& whole, const Rows& whole_states,
               const std::function<int64_t(int64_t)>& cut) {
  Rows states = scan.states;
  std::vector<int64_t> done(p.sequences.size());
  for (bool more = true; more;) {
    std::vector<SequenceRows> parts;
    std::vector<int64_t> from;
    int64_t first = 0;
    for (size_t i = 0; i < done.size(); first += p.sequences[i++].rows) {
      const SequenceRows& s = p.sequences[i];
      const int64_t left = s.rows - done[i], rows = std::min(left, cut(left));
      if (left == 0) continue;
      const int32_t place = s.state_out.back();
      parts.push_back({s.context + done[i], rows, done[i] == 0 ? s.state_in : place, {place}});
      for (int64_t r = 0; r < rows; ++r) from.push_back(first + done[i]++);
    }
    more = !parts.empty();
    const Rows y = scan.run(t, parts, from, states, true);
    for (size_t r = 0; r < from.size(); ++r)
      ASSERT_TRUE(y.same_row(static_cast<int64_t>(r), whole, from[r])) << "row " << from[r] << " of the batch";
  }
  EXPECT_TRUE(states.same_bytes(whole_states));
}

// On a GPU as well: in chunks, whose bits depend on the cut, it computes only what need not be row_invariant.
TEST_P(Conformance, StateScanOfCutPrompts) {
  const Prompts p = odd_prompts(1);
  std::vector<MambaShape> shapes(std::begin(kOddShapes), std::end(kOddShapes));
  shapes.push_back(kShape);
  for (const MambaShape& shape : shapes) {
    SCOPED_TRACE(fmt::format("{} heads of {}, state {}", shape.heads, shape.head_dim, shape.state));
    Scan scan(*this, shape, p);
    Rows states = scan.states;
    const Rows whole = scan.run(*this, p.sequences, all_rows(p), states, true);
    for (const int64_t rows : {1, 2, 5}) check_cut(*this, scan, p, whole, states, [&](int64_t) { return rows; });
    check_cut(*this, scan, p, whole, states,
              [](int64_t left) { return 1 + static_cast<int64_t>(random()() % static_cast<uint64_t>(left + 1)); });
  }
}

}  // namespace
}  // namespace sluice::ops
