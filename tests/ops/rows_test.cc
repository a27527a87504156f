// SPDX-License-Identifier: Apache-2.0
// Operations on rows: embedding, gathering, copies, element-wise operations and norms.
#include "tests/ops/conformance.h"

namespace sluice::ops {
namespace {

// Odd sizes, multiples of usual tiles, and longer than a piece of 1024.
constexpr int64_t kWidths[] = {1, 7, 16, 17, 63, 256, 1000, 1024, 1025, 3000};

// An operation that changes rows of `x` in place, given the rows [first, first + count): each row alone gives the bits
// that it gives among the others, and the others stay as they were.
template <class Run>
void expect_rows_alone(const Rows& before, const Rows& after, Run&& run) {
  for (int64_t r = 0; r < before.rows(); ++r) {
    Rows x = before;
    run(x, r);
    for (int64_t i = 0; i < before.rows(); ++i)
      ASSERT_TRUE(x.same_row(i, i == r ? after : before, i)) << "row " << i << " when row " << r << " runs alone";
    ASSERT_TRUE(x.gaps_untouched());
  }
}

TEST_P(Conformance, Embed) {
  for (const DType table_type : kTypes)
    for (const DType d : kTypes)
      for (const int64_t n : {1, 1100}) {
        Rows table = rows(table_type, 9, n, 0), y = rows(d, 4, n);
        table.randomize();
        const std::vector<int32_t> ids{8, 0, 3, 8};
        Values on_device = ints(ids);
        ops->embed(on_device.ints(), table.tensor(), y.view());
        for (int64_t r = 0; r < 4; ++r)
          for (int64_t c = 0; c < n; ++c) {
            const auto v = static_cast<float>(table.at(ids[static_cast<size_t>(r)], c));
            ASSERT_EQ(y.at(r, c), d == DType::f32 ? v : round_to_bf16(v));
          }
        EXPECT_TRUE(y.gaps_untouched());
        ops->embed(nullptr, table.tensor(), y.view(0, 0));
      }
}

TEST_P(Conformance, GatherRowsAndCopy) {
  for (const DType d : kTypes)
    for (const int64_t n : kWidths) {
      Rows x = rows(d, 6, n), y = rows(d, 4, n), z = rows(d, 6, n, 5);
      x.randomize();
      const std::vector<int32_t> from{5, 0, 0, 3};
      Values on_device = ints(from);
      ops->gather_rows(x.view(), on_device.ints(), y.view());
      ops->copy(x.view(), z.view());
      for (int64_t r = 0; r < 4; ++r) ASSERT_TRUE(y.same_row(r, x, from[static_cast<size_t>(r)]));
      for (int64_t r = 0; r < 6; ++r) ASSERT_TRUE(z.same_row(r, x, r));
      EXPECT_TRUE(y.gaps_untouched() && z.gaps_untouched());
      ops->gather_rows(x.view(), nullptr, y.view(0, 0));
      ops->copy(x.view(0, 0), y.view(0, 0));
      ASSERT_TRUE(y.same_row(0, x, 5));
    }
}

TEST_P(Conformance, Add) {
  for (const DType d : kTypes)
    for (const int64_t n : {1, 31, 1024, 2500}) {
      Rows x = rows(d, 5, n), y = rows(d, 5, n, 1);
      x.randomize(), y.randomize();
      const Rows before = x, y_before = y;
      ops->add(x.view(), y.view());
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t c = 0; c < n; ++c) {
          const double sum = before.at(r, c) + y.at(r, c);
          const Interval exact = Interval{sum, sum}.loosened(1).rounded(d);
          ASSERT_TRUE(exact.holds(x.at(r, c))) << x.at(r, c) << " is " << sum;
        }
      EXPECT_TRUE(x.gaps_untouched() && y.same_bytes(y_before));
      expect_rows_alone(before, x, [&](Rows& one, int64_t r) { ops->add(one.view(r, 1), y.view(r, 1)); });
      const Rows after = x;
      ops->add(x.view(0, 0), y.view(0, 0));
      EXPECT_TRUE(x.same_bytes(after));
    }
}

TEST_P(Conformance, SiluMultiply) {
  for (const DType d : kTypes)
    for (const int64_t n : {1, 31, 1024, 2500}) {
      // gate | up in one row, as a fused projection leaves them.
      Rows x = rows(d, 5, 2 * n);
      x.randomize(4.0f);
      x.set(0, 0, -100), x.set(1, 0, -88.75), x.set(2, 0, 100);
      const Rows before = x;
      const auto run = [&](Matrix m) { ops->silu_multiply(m.columns(0, n), m.columns(n, n)); };
      run(x.view());
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t c = 0; c < n; ++c) {
          const double gate = before.at(r, c), up = before.at(r, n + c);
          // exp(-x) overflows where |silu| falls below 89 * 2^-128: then zero will do.
          if (gate < -88) {
            ASSERT_NEAR(x.at(r, c), 0, 0x1p-121 * std::abs(up));
            continue;
          }
          // exp is good to 2 ulp; then a sum and a quotient.
          const Interval exact =
              Interval{silu(gate), silu(gate)}.loosened(6).rounded(d).times(up).loosened(1).rounded(d);
          ASSERT_TRUE(exact.holds(x.at(r, c))) << x.at(r, c) << " in [" << exact.low << ", " << exact.high << "]";
          ASSERT_EQ(x.at(r, n + c), before.at(r, n + c));
        }
      EXPECT_TRUE(x.gaps_untouched());
      expect_rows_alone(before, x, [&](Rows& one, int64_t r) { run(one.view(r, 1)); });
      run(x.view(0, 0));
    }
}

TEST_P(Conformance, ReluSquared) {
  for (const DType d : kTypes)
    for (const int64_t n : {1, 31, 1024, 2500}) {
      Rows x = rows(d, 5, n);
      x.randomize();
      const Rows before = x;
      ops->relu_squared(x.view());
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t c = 0; c < n; ++c) {
          const double v = before.at(r, c), relu = v > 0 ? v * v : 0;
          const Interval exact = Interval{relu, relu}.loosened(1).rounded(d);
          ASSERT_TRUE(exact.holds(x.at(r, c))) << x.at(r, c) << " is " << relu;
        }
      EXPECT_TRUE(x.gaps_untouched());
      expect_rows_alone(before, x, [&](Rows& one, int64_t r) { ops->relu_squared(one.view(r, 1)); });
      ops->relu_squared(x.view(0, 0));
    }
}

TEST_P(Conformance, AmaxIsTheLargestMagnitude) {
  for (const DType d : kTypes)
    for (const int64_t n : kWidths) {
      Rows x = rows(d, 5, n);
      x.randomize();
      EXPECT_EQ(ops->amax(x.view(0, 0)), 0);
      const auto expect_largest = [&](int64_t first, int64_t count) {
        double largest = 0;
        for (int64_t r = first; r < first + count; ++r)
          for (int64_t c = 0; c < n; ++c) largest = std::max(largest, std::abs(x.at(r, c)));
        ASSERT_EQ(ops->amax(x.view(first, count)), largest) << "of rows " << first << " to " << first + count;
      };
      expect_largest(0, 5);
      expect_largest(3, 1);
      // Each place counts: the first, the last, those at the ends of pieces, and some between them.
      for (const int64_t c : kWidths) {
        if (c > n) continue;
        const int64_t r = c % 5;
        const double before = x.at(r, c - 1);
        x.set(r, c - 1, c % 2 == 0 ? 100 : -100);
        expect_largest(0, 5);
        x.set(r, c - 1, INFINITY);
        expect_largest(0, 5);
        x.set(r, c - 1, NAN);
        ASSERT_TRUE(std::isnan(ops->amax(x.view()))) << "row " << r << " column " << c - 1;
        // Whatever lies around it.
        if (n > 1) {
          const int64_t other = (c + n / 2) % n;
          const double at_other = x.at((r + 1) % 5, other);
          x.set((r + 1) % 5, other, -INFINITY);
          ASSERT_TRUE(std::isnan(ops->amax(x.view())));
          x.set((r + 1) % 5, other, at_other);
        }
        x.set(r, c - 1, before);
      }
      // Zeros of both signs, and values below the normal ones.
      Rows small = rows(d, 1, n);
      for (int64_t c = 0; c < n; ++c) small.set(0, c, -0.0);
      EXPECT_EQ(ops->amax(small.view()), 0);
      small.set(0, n - 1, -0x1p-133);
      EXPECT_EQ(ops->amax(small.view()), 0x1p-133f);
      EXPECT_TRUE(x.gaps_untouched() && small.gaps_untouched());
    }
}

TEST_P(Conformance, ElementwiseKeepsNaN) {
  for (const DType d : kTypes) {
    // Broken weights must stay visible up to the logits, where sample() reports them.
    Rows x = rows(d, 1, 5), y = rows(d, 1, 5), gate = rows(d, 1, 5);
    x.randomize(), y.randomize(), gate.randomize();
    x.set(0, 2, NAN), gate.set(0, 2, NAN);
    ops->add(x.view(), y.view());
    ops->silu_multiply(gate.view(), y.view());
    for (int64_t c = 0; c < 5; ++c) {
      EXPECT_EQ(std::isnan(x.at(0, c)), c == 2);
      EXPECT_EQ(std::isnan(gate.at(0, c)), c == 2);
    }
  }
}

TEST_P(Conformance, RmsNorm) {
  for (const DType d : kTypes)
    for (const int64_t n : kWidths) {
      Rows x = rows(d, 3, n), y = rows(d, 3, n), weight = vector(n, 0.5f, 1);
      x.randomize(3.0f);
      const RmsNorm norm{weight.tensor({n}), 1e-5f};
      ops->rms_norm(x.view(), norm, y.view());
      for (int64_t r = 0; r < 3; ++r) {
        const double factor = norm_factor(n, norm.eps, [&](int64_t c) { return x.at(r, c); });
        for (int64_t c = 0; c < n; ++c) {
          const Interval exact = normed(d, n, x.at(r, c), factor, weight.at(0, c));
          ASSERT_TRUE(exact.holds(y.at(r, c)))
              << y.at(r, c) << " in [" << exact.low << ", " << exact.high << "], " << n;
        }
      }
      EXPECT_TRUE(y.gaps_untouched());
      Rows in_place = x;
      ops->rms_norm(in_place.view(), norm, in_place.view());
      for (int64_t r = 0; r < 3; ++r) ASSERT_TRUE(in_place.same_row(r, y, r)) << "y is x, " << n;
      EXPECT_TRUE(in_place.gaps_untouched());
      expect_rows_alone(x, in_place,
                        [&](Rows& one, int64_t r) { ops->rms_norm(one.view(r, 1), norm, one.view(r, 1)); });
      ops->rms_norm(x.view(0, 0), norm, y.view(0, 0));
      ASSERT_TRUE(y.same_row(0, in_place, 0));
    }
}

TEST_P(Conformance, RmsNormOfZerosIsZeroAndEpsCounts) {
  for (const DType d : kTypes) {
    Rows x = rows(d, 2, 20), y = rows(d, 2, 20), weight = vector(20, 0.5f, 1);
    for (int64_t c = 0; c < 20; ++c) x.set(0, c, 0), x.set(1, c, 0x1p-10);
    ops->rms_norm(x.view(), {weight.tensor({20}), 0x1p-16f}, y.view());
    for (int64_t c = 0; c < 20; ++c) {
      EXPECT_EQ(y.at(0, c), 0);
      const double exact = 0x1p-10 / std::sqrt(0x1p-20 + 0x1p-16) * weight.at(0, c);
      EXPECT_NEAR(y.at(1, c), exact, std::abs(exact) * norm_error(d, 20));
    }
  }
}

TEST_P(Conformance, AddRmsNorm) {
  for (const DType d : kTypes)
    for (const int64_t n : kWidths) {
      Rows x = rows(d, 3, n), change = rows(d, 3, n, 1), y = rows(d, 3, n, 4), weight = vector(n, 0.5f, 1);
      x.randomize(3.0f), change.randomize(3.0f);
      const Rows before = x, change_before = change;
      const RmsNorm norm{weight.tensor({n}), 1e-5f};
      ops->add_rms_norm(x.view(), change.view(), norm, y.view());
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          const double sum = before.at(r, c) + change.at(r, c);
          const Interval exact = Interval{sum, sum}.loosened(1).rounded(d);
          ASSERT_TRUE(exact.holds(x.at(r, c))) << x.at(r, c) << " is " << sum;
        }
        // The norm is of the sum as it was rounded.
        const double factor = norm_factor(n, norm.eps, [&](int64_t c) { return x.at(r, c); });
        for (int64_t c = 0; c < n; ++c) {
          const Interval exact = normed(d, n, x.at(r, c), factor, weight.at(0, c));
          ASSERT_TRUE(exact.holds(y.at(r, c)))
              << y.at(r, c) << " in [" << exact.low << ", " << exact.high << "], " << n;
        }
      }
      EXPECT_TRUE(x.gaps_untouched() && y.gaps_untouched() && change.same_bytes(change_before));
      for (int64_t r = 0; r < 3; ++r) {
        Rows alone = before, z = rows(d, 3, n, 4);
        ops->add_rms_norm(alone.view(r, 1), change.view(r, 1), norm, z.view(r, 1));
        for (int64_t i = 0; i < 3; ++i) {
          ASSERT_TRUE(alone.same_row(i, i == r ? x : before, i));
          ASSERT_TRUE(i == r ? z.same_row(i, y, i) : z.row_untouched(i));
        }
      }
      ops->add_rms_norm(x.view(0, 0), change.view(0, 0), norm, y.view(0, 0));
    }
}

TEST_P(Conformance, AddRmsNormOfTwoChanges) {
  for (const DType d : kTypes)
    for (const int64_t n : kWidths) {
      Rows x = rows(d, 3, n), one = rows(d, 3, n, 1), two = rows(d, 3, n, 2), y = rows(d, 3, n);
      Rows weight = vector(n, 0.5f, 1);
      x.randomize(3.0f), one.randomize(3.0f), two.randomize(3.0f);
      const RmsNorm norm{weight.tensor({n}), 1e-5f};
      // One after the other: the same roundings, so the same bits.
      Rows x2 = x, sum = one, y2 = rows(d, 3, n);
      ops->add_rms_norm(x.view(), {one.view(), two.view()}, norm, y.view());
      ops->add(sum.view(), two.view());
      ops->add_rms_norm(x2.view(), sum.view(), norm, y2.view());
      ASSERT_TRUE(x.same_bytes(x2) && y.same_bytes(y2)) << n;
    }
}

TEST_P(Conformance, GatedGroupRmsNorm) {
  for (const DType d : kTypes)
    for (const auto& [n, groups] :
         {std::pair<int64_t, int64_t>{120, 1}, {512, 2}, {2600, 2}, {60, 3}, {1, 1}, {5, 5}, {1025, 1}}) {
      Rows x = rows(DType::f32, 3, n), gate = rows(d, 3, n, 1), y = rows(d, 3, n), weight = vector(n, 0.5f, 1);
      x.randomize(2.0f), gate.randomize(2.0f);
      const RmsNorm norm{weight.tensor({n}), 1e-5f};
      ops->gated_group_rms_norm(x.view(), gate.view(), groups, norm, y.view());
      const int64_t size = n / groups;
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t g = 0; g < groups; ++g) {
          const auto value = [&](int64_t i) { return x.at(r, g * size + i) * silu(gate.at(r, g * size + i)); };
          const double factor = norm_factor(size, norm.eps, value);
          for (int64_t i = 0; i < size; ++i) {
            const double exact = value(i) * factor * weight.at(0, g * size + i);
            ASSERT_NEAR(y.at(r, g * size + i), exact,
                        std::abs(exact) * (1.01 * half_ulp(d) + sum_error(size) + 12 * 0x1p-24));
          }
        }
      EXPECT_TRUE(y.gaps_untouched());
      for (int64_t r = 0; r < 3; ++r) {
        Rows alone = rows(d, 3, n);
        ops->gated_group_rms_norm(x.view(r, 1), gate.view(r, 1), groups, norm, alone.view(r, 1));
        for (int64_t i = 0; i < 3; ++i) ASSERT_TRUE(i == r ? alone.same_row(i, y, i) : alone.row_untouched(i));
      }
      ops->gated_group_rms_norm(x.view(0, 0), gate.view(0, 0), groups, norm, y.view(0, 0));
    }
}

}  // namespace
}  // namespace sluice::ops
