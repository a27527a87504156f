// SPDX-License-Identifier: Apache-2.0
// Convolution and state recurrence against the definition in doubles: prompts in chunks, single rows and drafts, with
// states in numbered places.
#include <functional>

#include "tests/ops/conformance.h"
#include "tests/ops/test_batch.h"

namespace sluice::ops {
namespace {

const MambaShape kShapes[] = {{8, 64, 2, 32, 4}, {6, 20, 1, 24, 3},  {4, 7, 4, 5, 1},  {2, 130, 1, 16, 2},
                              {3, 1, 3, 1, 16},  {2, 64, 1, 128, 4}, {2, 80, 1, 37, 4}};

// Rows [first, first + rows) of one stream of inputs, in one step.
struct Chunk {
  int stream = 0;
  int64_t first = 0, rows = 0;
  int32_t state_in = -1;
  std::vector<int32_t> state_out;  // of its last rows
};

constexpr int kStreams = 3;
constexpr int64_t kLength = 12, kPlaces = 9;

// Each inner list is one batch. Place 8 is nobody's.
const std::vector<std::vector<Chunk>> kSteps = {
    // Prompts of several lengths.
    {{0, 0, 5, -1, {2}}, {1, 0, 1, -1, {0}}, {2, 0, 3, -1, {5}}},
    // A decoded row in place, drafts with a place each, a chunk whose state moves and whose last two rows store theirs.
    {{1, 1, 1, 0, {0}}, {0, 5, 3, 2, {4, 6, 3}}, {2, 3, 4, 5, {7, 1}}},
    // Two of the three drafts counted; none of these will. A chunk in place.
    {{0, 7, 2, 6, {2, 3}}, {1, 2, 6, 0, {0}}},
    {{2, 7, 3, 1, {4, 7, 5}}, {0, 7, 5, 6, {6}}},
    {{2, 10, 2, 5, {5}}, {1, 8, 4, 0, {3}}},
};

// One recurrent operation on given inputs.
struct Recurrence {
  int64_t state_floats = 0, outputs = 0;
  // Runs a batch whose row i is the given (stream, position).
  std::function<Rows(const Batch&, const std::vector<std::pair<int, int64_t>>&, const States&)> run;
  std::function<void(int stream, int64_t position, const Rows& y, int64_t row)> check_row;
  std::function<void(int stream, int64_t position, const Rows& states, int64_t place)> check_state;
};

struct Ran {
  Rows y;
  std::vector<std::pair<int, int64_t>> rows;
};
Ran run_chunks(Conformance& t, const Recurrence& op, const std::vector<Chunk>& chunks, Rows& states) {
  std::vector<SequenceRows> sequences;
  std::vector<std::pair<int, int64_t>> rows;
  for (const Chunk& c : chunks) {
    sequences.push_back({c.first, c.rows, c.state_in, c.state_out});
    for (int64_t r = 0; r < c.rows; ++r) rows.push_back({c.stream, c.first + r});
  }
  TestBatch batch(*t.queue, sequences);
  return {op.run(batch.view(), rows, {states.floats(), op.state_floats}), rows};
}

void check_recurrence(Conformance& t, const Recurrence& op) {
  Rows states = t.rows(DType::f32, kPlaces, op.state_floats, 0);  // NaN: a new sequence must not read its place
  std::vector<std::optional<Ran>> first_result(kStreams * kLength);
  std::vector<int64_t> first_row(kStreams * kLength);
  for (const std::vector<Chunk>& step : kSteps) {
    const Rows before = states;
    const Ran ran = run_chunks(t, op, step, states);
    for (size_t i = 0; i < ran.rows.size(); ++i) {
      const auto& [stream, position] = ran.rows[i];
      op.check_row(stream, position, ran.y, static_cast<int64_t>(i));
      // Drafts that did not count are computed again later, in another chunk: the same bits.
      const auto id = static_cast<size_t>(stream * kLength + position);
      if (first_result[id]) {
        ASSERT_TRUE(ran.y.same_row(static_cast<int64_t>(i), first_result[id]->y, first_row[id])) << "computed again";
      }
      first_result[id] = ran;
      first_row[id] = static_cast<int64_t>(i);
    }
    EXPECT_TRUE(ran.y.gaps_untouched());
    std::vector<bool> written(kPlaces);
    for (const Chunk& c : step)
      for (size_t i = 0; i < c.state_out.size(); ++i) {
        const auto back = static_cast<int64_t>(c.state_out.size() - i);
        op.check_state(c.stream, c.first + c.rows - back, states, c.state_out[i]);
        written[static_cast<size_t>(c.state_out[i])] = true;
      }
    for (int64_t p = 0; p < kPlaces; ++p)
      if (!written[static_cast<size_t>(p)]) {
        ASSERT_TRUE(states.same_row(p, before, p)) << "place " << p;
      }
    // Each sequence alone: the same bits.
    Rows alone_states = before;
    int64_t row = 0;
    for (const Chunk& c : step) {
      const Ran alone = run_chunks(t, op, {c}, alone_states);
      for (int64_t r = 0; r < c.rows; ++r) ASSERT_TRUE(alone.y.same_row(r, ran.y, row++)) << "stream " << c.stream;
    }
    ASSERT_TRUE(alone_states.same_bytes(states));
  }
  // However a sequence was cut: the bits of one prompt.
  for (int stream = 0; stream < kStreams; ++stream) {
    const Ran whole = run_chunks(t, op, {{stream, 0, kLength, -1, {7}}}, states);
    for (int64_t p = 0; p < kLength; ++p) {
      const auto id = static_cast<size_t>(stream * kLength + p);
      ASSERT_TRUE(first_result[id].has_value());
      ASSERT_TRUE(whole.y.same_row(p, first_result[id]->y, first_row[id])) << "stream " << stream << " row " << p;
    }
  }
  const Rows before = states;
  EXPECT_EQ(run_chunks(t, op, {}, states).y.rows(), 0);
  EXPECT_TRUE(states.same_bytes(before));
}

TEST_P(Conformance, CausalConv) {
  for (const DType d : kTypes)
    for (const MambaShape& shape : kShapes)
      for (const bool with_bias : {false, true}) {
        // Gaps of 8 keep rows aligned to 16 bytes, which a GPU reads in vectors.
        const int64_t gap = with_bias ? 8 : 3;
        SCOPED_TRACE(
            fmt::format("{} {} channels {} taps bias {}", to_string(d), shape.channels(), shape.taps, with_bias));
        const int64_t n = shape.channels(), taps = shape.taps;
        Rows weight = rows(DType::f32, taps, n, 0), bias = vector(n, 0.5f, 0);
        weight.randomize(0.5f);
        const DType out_type = with_bias ? ops->conv_type(d) : DType::f32;
        std::vector<Rows> streams(kStreams, rows(d, kLength, n));
        for (Rows& s : streams) s.randomize();
        Recurrence op;
        op.state_floats = (taps - 1) * n;
        op.run = [&](const Batch& batch, const auto& from, const States& states) {
          Rows x = rows(d, batch.rows, n, gap), y = rows(out_type, batch.rows, n, gap);
          for (int64_t r = 0; r < batch.rows; ++r) {
            const auto& [stream, position] = from[static_cast<size_t>(r)];
            x.copy_row(r, streams[static_cast<size_t>(stream)], position);
          }
          ops->causal_conv(batch, shape, x.view(), weight.tensor(), with_bias ? bias.tensor({n}) : Tensor{}, states,
                           y.view());
          return y;
        };
        op.check_row = [&](int stream, int64_t position, const Rows& y, int64_t row) {
          for (int64_t c = 0; c < n; ++c) {
            Sum sum;
            if (with_bias) sum.add(bias.at(0, c));
            for (int64_t t = 0; t < taps; ++t) {
              const int64_t from = position - (taps - 1) + t;
              if (from >= 0) sum.add(weight.at(t, c) * streams[static_cast<size_t>(stream)].at(from, c));
            }
            // More taps than 7: more roundings.
            const double slack = sum.size * std::max<double>(8, static_cast<double>(taps) + 1) * 0x1p-24;
            const Interval exact = silu(Interval::around(sum.value, slack).rounded(d)).loosened(8).rounded(d);
            ASSERT_TRUE(exact.holds(y.at(row, c))) << y.at(row, c) << " in [" << exact.low << ", " << exact.high
                                                   << "], stream " << stream << " row " << position << " channel " << c;
          }
        };
        op.check_state = [&](int stream, int64_t position, const Rows& states, int64_t place) {
          for (int64_t t = 0; t + 1 < taps; ++t)
            for (int64_t c = 0; c < n; ++c) {
              const int64_t from = position - (taps - 2) + t;
              ASSERT_EQ(states.at(place, t * n + c), from < 0 ? 0 : streams[static_cast<size_t>(stream)].at(from, c))
                  << "place " << place << " of stream " << stream << " after row " << position;
            }
        };
        check_recurrence(*this, op);
      }
}

TEST_P(Conformance, StateScan) {
  for (const auto& [d, aligned] :
       {std::pair{DType::f32, false}, {DType::f32, true}, {DType::bf16, false}, {DType::bf16, true}})
    for (const MambaShape& shape : kShapes) {
      SCOPED_TRACE(fmt::format("{} {} heads of {}, {} groups, state {}", to_string(d), shape.heads, shape.head_dim,
                               shape.groups, shape.state));
      const DType in_type = aligned ? ops->conv_type(d) : DType::f32;
      const int64_t size = shape.state * shape.head_dim;
      std::vector<Rows> inputs(kStreams, rows(in_type, kLength, shape.channels()));
      std::vector<Rows> steps(kStreams, rows(d, kLength, shape.heads));
      for (Rows& x : inputs) x.randomize();
      for (Rows& x : steps) x.randomize(2.0f);
      steps[0].set(2, 0, 30);   // softplus is the identity
      steps[0].set(3, 0, -60);  // softplus vanishes: nothing decays, nothing is added
      Rows dt_bias = vector(shape.heads, 1, 0), a = vector(shape.heads, 0.5f, 0), skip = vector(shape.heads, 0.5f, 1);
      for (int64_t h = 0; h < shape.heads; ++h) a.set(0, h, -std::exp(a.at(0, h)));

      // By the definition: the states and results of every row, and what float32 may be off by.
      const size_t per_stream = static_cast<size_t>(kLength * shape.heads * size);
      std::vector<double> state(kStreams * per_stream), error(state.size());
      const auto at = [&](int stream, int64_t position, int64_t h, int64_t n, int64_t p) {
        return (static_cast<size_t>(stream * kLength + position) * static_cast<size_t>(shape.heads * size)) +
               static_cast<size_t>(h * size + n * shape.head_dim + p);
      };
      const auto b_at = [&](int s, int64_t r, int64_t h, int64_t n, bool c) {
        const int64_t g = h / (shape.heads / shape.groups);
        return inputs[static_cast<size_t>(s)].at(r, shape.inner() + ((c ? shape.groups : 0) + g) * shape.state + n);
      };
      for (int s = 0; s < kStreams; ++s)
        for (int64_t r = 0; r < kLength; ++r)
          for (int64_t h = 0; h < shape.heads; ++h) {
            const double z = steps[static_cast<size_t>(s)].at(r, h) + dt_bias.at(0, h);
            const double step = std::log1p(std::exp(z)), decay = std::exp(step * a.at(0, h));
            for (int64_t n = 0; n < shape.state; ++n)
              for (int64_t p = 0; p < shape.head_dim; ++p) {
                const double old = r == 0 ? 0 : state[at(s, r - 1, h, n, p)];
                const double old_error = r == 0 ? 0 : error[at(s, r - 1, h, n, p)];
                const double x = inputs[static_cast<size_t>(s)].at(r, h * shape.head_dim + p);
                const double term = step * x * b_at(s, r, h, n, false), kept = old * decay;
                state[at(s, r, h, n, p)] = kept + term;
                // Each step rounds decay, step and three products: some ulp of both terms, carried along.
                error[at(s, r, h, n, p)] =
                    old_error * decay + (std::abs(kept) * (4 + (4 + std::abs(z)) * std::abs(step * a.at(0, h))) +
                                         std::abs(term) * (8 + std::abs(z))) *
                                            0x1p-24;
              }
          }

      Recurrence op;
      op.state_floats = shape.heads * size;
      op.run = [&](const Batch& batch, const auto& from, const States& states) {
        // A gap of 8 keeps rows aligned to 16 bytes, which a GPU reads in vectors.
        Rows xbc = rows(in_type, batch.rows, shape.channels(), aligned ? 8 : 1), dt = rows(d, batch.rows, shape.heads);
        Rows y = rows(DType::f32, batch.rows, shape.inner());
        for (int64_t r = 0; r < batch.rows; ++r) {
          const auto& [stream, position] = from[static_cast<size_t>(r)];
          xbc.copy_row(r, inputs[static_cast<size_t>(stream)], position);
          dt.copy_row(r, steps[static_cast<size_t>(stream)], position);
        }
        const Shape heads{shape.heads};
        ops->state_scan(batch, shape, xbc.view(), dt.view(),
                        {dt_bias.tensor(heads), a.tensor(heads), skip.tensor(heads)}, states, y.view());
        return y;
      };
      op.check_row = [&](int s, int64_t r, const Rows& y, int64_t row) {
        for (int64_t h = 0; h < shape.heads; ++h)
          for (int64_t p = 0; p < shape.head_dim; ++p) {
            const double x = inputs[static_cast<size_t>(s)].at(r, h * shape.head_dim + p);
            double sum = skip.at(0, h) * x, bound = std::abs(sum) * 4 * 0x1p-24;
            for (int64_t n = 0; n < shape.state; ++n) {
              const double c = b_at(s, r, h, n, true), v = state[at(s, r, h, n, p)];
              sum += v * c;
              bound += std::abs(c) * error[at(s, r, h, n, p)] +
                       std::abs(v * c) * (static_cast<double>(shape.state) + 4) * 0x1p-24;
            }
            ASSERT_NEAR(y.at(row, h * shape.head_dim + p), sum, 2 * bound + 1e-30)
                << "stream " << s << " row " << r << " head " << h;
          }
      };
      op.check_state = [&](int s, int64_t r, const Rows& states, int64_t place) {
        for (int64_t h = 0; h < shape.heads; ++h)
          for (int64_t n = 0; n < shape.state; ++n)
            for (int64_t p = 0; p < shape.head_dim; ++p) {
              const size_t i = at(s, r, h, n, p);
              ASSERT_NEAR(states.at(place, h * size + n * shape.head_dim + p), state[i], 2 * error[i] + 1e-30)
                  << "place " << place << " of stream " << s << " after row " << r << " head " << h;
            }
      };
      check_recurrence(*this, op);
    }
}

TEST_P(Conformance, CopyStates) {
  for (const int64_t floats : {1, 77, 5000}) {
    Rows states = rows(DType::f32, 7, floats, 0);
    for (int64_t c = 0; c < floats; ++c) states.set(1, c, normal()), states.set(4, c, normal());
    const Rows before = states;
    // One place may be copied to several.
    const std::vector<std::pair<int32_t, int32_t>> places{{1, 0}, {4, 6}, {1, 3}};
    ops->copy_states({states.floats(), floats}, places);
    queue->wait();
    const int64_t from[] = {1, 1, 2, 1, 4, 5, 4};
    for (int64_t p = 0; p < 7; ++p) ASSERT_TRUE(states.same_row(p, before, from[p])) << "place " << p;
    ops->copy_states({states.floats(), floats}, {});
  }
}

}  // namespace
}  // namespace sluice::ops
