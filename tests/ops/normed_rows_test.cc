// SPDX-License-Identifier: Apache-2.0
// What a norm does beside the norm: codes of its rows, and the sum of experts' results before it.
#include "tests/ops/conformance.h"

namespace sluice::ops {
namespace {

// A rounding for every format that norms make codes for.
std::vector<Rounding> roundings() {
  using format::InputFormat;
  return {{InputFormat::fp8_static, 0.013f}, {InputFormat::fp8_token}, {InputFormat::fp8_group}, {InputFormat::mxfp8}};
}

// The codes and scales of y against docs/numerics.md in double.
void check_codes(const Rows& y, const Rounding& rounding, const Memory& codes, const Memory& row_scales,
                 const Memory& scales) {
  const int64_t n = y.cols(), group = test::reference_group(rounding.format);
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes.host());
  const auto amax = [&](int64_t r, int64_t begin, int64_t end) {
    double largest = 0;
    for (int64_t c = begin; c < end; ++c) largest = std::max(largest, std::abs(y.at(r, c)));
    return largest;
  };
  for (int64_t r = 0; r < y.rows(); ++r) {
    const double whole = amax(r, 0, n);
    double largest = whole;  // of c's group
    for (int64_t c = 0; c < n; ++c) {
      if (group > 0 && c % group == 0) largest = amax(r, c, std::min(c + group, n));
      const test::ReferenceCode q =
          test::reference_code(rounding.format, y.at(r, c), largest, whole, double{rounding.scale});
      ASSERT_EQ(test::e4m3_value(bytes[r * n + c]), test::e4m3_value(static_cast<uint8_t>(q.code))) << r << " " << c;
      const int64_t at = r * ((n + group - 1) / std::max<int64_t>(group, 1)) + c / std::max<int64_t>(group, 1);
      if (rounding.format == format::InputFormat::fp8_token) {
        ASSERT_EQ(reinterpret_cast<const float*>(row_scales.host())[r], static_cast<float>(q.row_scale));
      } else if (rounding.format == format::InputFormat::fp8_group) {
        ASSERT_EQ(reinterpret_cast<const float*>(scales.host())[at], static_cast<float>(q.scale));
      } else if (rounding.format == format::InputFormat::mxfp8) {
        ASSERT_EQ(test::e8m0_value(static_cast<uint8_t>(scales.host()[at])), q.scale);
      }
    }
  }
}

TEST_P(Conformance, NormedRowsComeWithCodes) {
  for (const DType d : kTypes)
    for (const Rounding& rounding : roundings())
      for (const int64_t n : {8, 72, 256, 1000, 1024, 2048, 2056, 3000, 4104, 9000}) {
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(d), name_of(format::kInputFormats, rounding.format), n));
        Rows x = rows(d, 3, n, 8), change = rows(d, 3, n, 8), y = rows(d, 3, n, 8), plain = rows(d, 3, n, 8);
        Rows weight = vector(n, 0.5f, 1);
        x.randomize(3.0f), change.randomize(3.0f);
        for (int64_t c = 0; c < n; ++c) x.set(1, c, 0), change.set(1, c, 0);  // a row of zeros
        for (int64_t c = 0; c < std::min<int64_t>(n, 128); ++c)
          x.set(2, c, 0), change.set(2, c, 0);  // a group of zeros
        const RmsNorm norm{weight.tensor({n}), 1e-5f};
        Memory codes(*queue, 3 * n), row_scales(*queue, 12), scales(*queue, 3 * group_scale_bytes(rounding, n));
        const auto rounded = [&]() -> RoundedRows {
          return {rounding, static_cast<uint8_t*>(codes.device()), static_cast<float*>(row_scales.device()),
                  scales.device()};
        };
        ops->rms_norm(x.view(), norm, y.view(), rounded());
        check_codes(y, rounding, codes, row_scales, scales);
        ops->rms_norm(x.view(), norm, plain.view());
        ASSERT_TRUE(y.same_bytes(plain)) << "y with codes";
        // A row alone, after a change.
        Rows x2 = x;
        ops->add_rms_norm(x.view(), change.view(), norm, y.view(), rounded());
        check_codes(y, rounding, codes, row_scales, scales);
        ops->add_rms_norm(x2.view(), change.view(), norm, plain.view());
        ASSERT_TRUE(x.same_bytes(x2) && y.same_bytes(plain)) << "x and y with codes";
        if (HasFatalFailure()) return;
      }
}

// The results of experts in rows that follow each other, random weights, and some experts that are absent: their rows
// are zeros, whatever their weight is. Rows from num_rows on are poison.
struct Experts {
  Experts(Conformance& suite, DType d, int64_t rows, int64_t each, int64_t cols, int32_t count)
      : results(suite.rows(d, rows * each, cols, 0)),
        weights(suite.rows(DType::f32, rows, each, 0)),
        counted(suite.ints({count})),
        top_k(each),
        num_rows(count) {
    for (int64_t r = 0; r < std::min<int64_t>(count, rows); ++r)
      for (int64_t k = 0; k < each; ++k) {
        weights.set(r, k, normal(0.2f, 0.5f));
        const bool absent = (r * 5 + k) % 7 == 3;
        for (int64_t c = 0; c < cols; ++c) results.set(r * each + k, c, absent ? 0.0f : normal(0, 3));
      }
  }
  // weighted, counts: with weights and the number of rows; else the weights are 1, and all rows count.
  ExpertResults view(bool weighted, bool counts) {
    return {results.view().data, weighted ? weights.floats() : nullptr, counts ? counted.ints() : nullptr, top_k};
  }
  // What column c of the sum of row r may be.
  Interval sum(int64_t r, int64_t c, bool weighted) const {
    if (r >= num_rows) return {0, 0};
    Sum exact;
    for (int64_t k = 0; k < top_k; ++k) exact.add((weighted ? weights.at(r, k) : 1.0) * results.at(r * top_k + k, c));
    // Each of the multiply-adds is rounded once.
    return Interval::around(exact.value, exact.size * static_cast<double>(top_k) * 0x1p-24).rounded(results.dtype());
  }

  Rows results, weights;
  Values counted;
  int64_t top_k, num_rows;
};

// Row widths for the GPU's kernel that adds results itself, and for those after a kernel of the sum.
TEST_P(Conformance, AddRmsNormOfExpertResults) {
  constexpr int64_t kRows = 4;
  for (const DType d : kTypes)
    for (const auto& [n, gap] : {std::pair<int64_t, int64_t>{1, 3},
                                 {17, 3},
                                 {64, 3},
                                 {64, 8},
                                 {1000, 8},
                                 {1024, 8},
                                 {2048, 8},
                                 {2688, 8},
                                 {4104, 8},
                                 {8200, 8}})
      for (const auto& [top_k, num_rows] : {std::pair<int64_t, int32_t>{1, 4}, {2, 3}, {7, 2}, {8, 9}, {22, 4}, {9, 0}})
        for (const bool two : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} columns, {} experts, {} rows, {} changes", to_string(d), n, top_k, num_rows,
                                   two ? 2 : 1));
          const bool weighted = top_k != 7, counts = num_rows < kRows;
          Rows x = rows(d, kRows, n, gap), second = rows(d, kRows, n, gap), y = rows(d, kRows, n, gap);
          Rows weight = vector(n, 0.5f, 1);
          x.randomize(3.0f), second.randomize(3.0f);
          Experts experts(*this, d, kRows, top_k, n, num_rows);
          const Rows before = x, second_before = second, results_before = experts.results;
          const RmsNorm norm{weight.tensor({n}), 1e-5f};
          const auto change = [&](int64_t first, int64_t count) -> Change {
            return {experts.view(weighted, counts), two ? second.view(first, count) : Matrix{}};
          };
          ops->add_rms_norm(x.view(), change(0, kRows), norm, y.view());
          for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t c = 0; c < n; ++c) {
              Interval exact = experts.sum(r, c, weighted);
              const auto add = [&](double v) {
                exact = Interval{exact.low + v, exact.high + v}.loosened(1).rounded(d);
              };
              if (two) add(second.at(r, c));
              add(before.at(r, c));
              ASSERT_TRUE(exact.holds(x.at(r, c)))
                  << x.at(r, c) << " in [" << exact.low << ", " << exact.high << "], row " << r << " column " << c;
            }
            const double factor = norm_factor(n, norm.eps, [&](int64_t c) { return x.at(r, c); });
            for (int64_t c = 0; c < n; ++c) {
              const Interval exact = normed(d, n, x.at(r, c), factor, weight.at(0, c));
              ASSERT_TRUE(exact.holds(y.at(r, c)))
                  << y.at(r, c) << " in [" << exact.low << ", " << exact.high << "], row " << r << " column " << c;
            }
          }
          EXPECT_TRUE(x.gaps_untouched() && y.gaps_untouched() && second.same_bytes(second_before) &&
                      experts.results.same_bytes(results_before));
          // The first row alone.
          Rows alone = before, z = rows(d, kRows, n, gap);
          ops->add_rms_norm(alone.view(0, 1), change(0, 1), norm, z.view(0, 1));
          for (int64_t i = 0; i < kRows; ++i) {
            ASSERT_TRUE(alone.same_row(i, i == 0 ? x : before, i));
            ASSERT_TRUE(i == 0 ? z.same_row(i, y, i) : z.row_untouched(i));
          }
          ops->add_rms_norm(x.view(0, 0), change(0, 0), norm, y.view(0, 0));
          if (HasFatalFailure()) return;
        }
}

TEST_P(Conformance, NormedRowsOfExpertResultsComeWithCodes) {
  for (const DType d : kTypes)
    for (const Rounding& rounding : roundings())
      for (const int64_t n : {8, 72, 1000, 1024, 2048, 2688, 3000, 4104, 9000}) {
        SCOPED_TRACE(fmt::format("{} {} {}", to_string(d), name_of(format::kInputFormats, rounding.format), n));
        Rows x = rows(d, 3, n, 8), second = rows(d, 3, n, 8), y = rows(d, 3, n, 8), plain = rows(d, 3, n, 8);
        Rows weight = vector(n, 0.5f, 1);
        x.randomize(3.0f), second.randomize(3.0f);
        Experts experts(*this, d, 3, 6, n, 2);
        const RmsNorm norm{weight.tensor({n}), 1e-5f};
        Memory codes(*queue, 3 * n), row_scales(*queue, 12), scales(*queue, 3 * group_scale_bytes(rounding, n));
        Rows x2 = x;
        ops->add_rms_norm(x.view(), {experts.view(true, true), second.view()}, norm, y.view(),
                          {rounding, static_cast<uint8_t*>(codes.device()), static_cast<float*>(row_scales.device()),
                           scales.device()});
        check_codes(y, rounding, codes, row_scales, scales);
        ops->add_rms_norm(x2.view(), {experts.view(true, true), second.view()}, norm, plain.view());
        ASSERT_TRUE(x.same_bytes(x2) && y.same_bytes(plain)) << "x and y with codes";
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace sluice::ops
