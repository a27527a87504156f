// SPDX-License-Identifier: Apache-2.0
// The products of latent attention on tensor cores: values against double, the same bits from every tile and for any
// number of rows.
#include "kernels/sm90/mla/head_product.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"
#include "kernels/sm90/mla/mla.h"
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {
namespace {

using sm90::HeadTile;
constexpr bf16_t kNan = 0x7fc0;

double value(bf16_t v) { return static_cast<double>(bf16_to_float(v)); }

std::vector<bf16_t> noise(int64_t count, float deviation = 1) {
  std::vector<bf16_t> v(static_cast<size_t>(count));
  for (bf16_t& x : v) x = float_to_bf16(normal(deviation));
  return v;
}

struct Shape {
  int heads, nope, rope, value, latent;
};

// Both halves of kv_b for random queries and mixed rows, with eight poisoned values between rows.
class Problem {
 public:
  Problem(const Gpu& gpu, const Shape& s, int rows)
      : gpu_(gpu), s_(s), rows_(rows), kv_b_(noise(int64_t{s.heads} * (s.nope + s.value) * s.latent)) {
    device_kv_b_ = gpu.upload(kv_b_);
    queries_ = with_gaps(width(false, true));
    mixed_ = with_gaps(width(true, true));
    device_queries_ = gpu.upload(queries_);
    device_mixed_ = gpu.upload(mixed_);
  }
  int rows() const { return rows_; }

  // The rows' results by `tile`; `list`: of these rows of the queries, or to these rows of the results.
  std::vector<bf16_t> run(bool expand, HeadTile tile, int rows, const std::vector<int32_t>& list = {}) const {
    const int64_t in = width(expand, true) + 8, out = width(expand, false) + 8;
    const auto y = gpu_.upload(std::vector<bf16_t>(static_cast<size_t>(rows_ * out), kNan));
    const auto indices = gpu_.upload(list.empty() ? std::vector<int32_t>{0} : list);
    sm90::HeadProductArgs p{};
    p.x = expand ? device_mixed_.get() : device_queries_.get();
    p.x_stride = in;
    p.x_head = expand ? s_.latent : s_.nope + s_.rope;
    p.weight = device_kv_b_.get() + (expand ? s_.nope * s_.latent : 0);
    p.weight_head = int64_t{s_.nope + s_.value} * s_.latent;
    p.weight_by_k = !expand;
    p.weight_stride = s_.latent;
    p.y = y.get();
    p.y_stride = out;
    p.y_head = expand ? s_.value : s_.latent + s_.rope;
    p.copy_from = s_.nope;
    p.copy_to = s_.latent;
    p.copied = expand ? 0 : s_.rope;
    if (!list.empty()) (expand ? p.y_rows : p.x_rows) = indices.get();
    p.rows = rows;
    p.heads = s_.heads;
    p.n = expand ? s_.value : s_.latent;
    p.k = expand ? s_.latent : s_.nope;
    launch_head_product(p, tile, gpu_.queue->stream(), true);
    return gpu_.download(y, static_cast<size_t>(rows_ * out));
  }

  // Row `at` of `results` is that of row `of`.
  void check_row(bool expand, const std::vector<bf16_t>& results, int at, int of) const {
    const int64_t in = width(expand, true) + 8, out = width(expand, false) + 8;
    const std::vector<bf16_t>& x = expand ? mixed_ : queries_;
    const int n = expand ? s_.value : s_.latent, k = expand ? s_.latent : s_.nope;
    for (int h = 0; h < s_.heads; ++h) {
      const int64_t from = of * in + h * (expand ? s_.latent : s_.nope + s_.rope);
      const int64_t to = at * out + h * (expand ? s_.value : s_.latent + s_.rope);
      const int64_t w = (int64_t{h} * (s_.nope + s_.value) + (expand ? s_.nope : 0)) * s_.latent;
      for (int c = 0; c < n; ++c) {
        double exact = 0, size = 0;
        for (int i = 0; i < k; ++i) {
          const int64_t weight = w + (expand ? int64_t{c} * s_.latent + i : int64_t{i} * s_.latent + c);
          const double term = value(x[static_cast<size_t>(from + i)]) * value(kv_b_[static_cast<size_t>(weight)]);
          exact += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(value(results[static_cast<size_t>(to + c)]), exact,
                    size * (k / 16.0 + 8) * 0x1p-24 + std::fabs(exact) * 0x1p-8)
            << "row " << of << " head " << h << " column " << c;
      }
      for (int i = 0; i < (expand ? 0 : s_.rope); ++i)
        ASSERT_EQ(results[static_cast<size_t>(to + n + i)], x[static_cast<size_t>(from + k + i)]);
    }
    for (int64_t i = width(expand, false); i < out; ++i) ASSERT_EQ(results[static_cast<size_t>(at * out + i)], kNan);
  }
  // Whether row `a` of `x` has the bits of row `b` of `y`.
  bool same_row(bool expand, const std::vector<bf16_t>& x, int a, const std::vector<bf16_t>& y, int b) const {
    const int64_t out = width(expand, false) + 8;
    return std::equal(x.begin() + a * out, x.begin() + (a + 1) * out, y.begin() + b * out);
  }
  bool poisoned(bool expand, const std::vector<bf16_t>& x, int row) const {
    const int64_t out = width(expand, false) + 8;
    return std::all_of(x.begin() + row * out, x.begin() + (row + 1) * out, [](bf16_t v) { return v == kNan; });
  }

 private:
  int64_t width(bool expand, bool in) const {
    return int64_t{s_.heads} * (expand ? (in ? s_.latent : s_.value) : in ? s_.nope + s_.rope : s_.latent + s_.rope);
  }
  std::vector<bf16_t> with_gaps(int64_t width) const {
    std::vector<bf16_t> v = noise(rows_ * (width + 8));
    for (int r = 0; r < rows_; ++r) std::fill_n(v.begin() + r * (width + 8) + width, 8, kNan);
    return v;
  }

  const Gpu& gpu_;
  Shape s_;
  int rows_;
  std::vector<bf16_t> kv_b_, queries_, mixed_;
  std::shared_ptr<bf16_t> device_kv_b_, device_queries_, device_mixed_;
};

TEST(HeadProduct, OneResultFromEveryTile) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_head_product();
  for (const Shape& s : {Shape{3, 128, 64, 128, 512}, {2, 40, 24, 72, 88}, {5, 8, 0, 8, 8}, {1, 192, 8, 256, 264}})
    for (const int rows : {1, 3, 17, 64, 257}) {
      SCOPED_TRACE(testing::Message() << s.heads << " heads of " << s.nope << " + " << s.rope << ", values " << s.value
                                      << ", latent " << s.latent << ", " << rows << " rows");
      const Problem p(gpu, s, rows);
      for (const bool expand : {false, true}) {
        const auto results = p.run(expand, HeadTile::to_64, rows);
        for (int i = 0; i < std::min(rows, 4); ++i) {
          const int row = i == 0 ? rows - 1 : static_cast<int>(random()() % static_cast<unsigned>(rows));
          p.check_row(expand, results, row, row);
        }
        for (const HeadTile tile : sm90::kHeadTiles) {
          ASSERT_EQ(p.run(expand, tile, rows), results);
          const int fewer = 1 + static_cast<int>(random()() % static_cast<unsigned>(rows));
          const auto some = p.run(expand, tile, fewer);
          for (int r = 0; r < rows; ++r)
            ASSERT_TRUE(r < fewer ? p.same_row(expand, some, r, results, r) : p.poisoned(expand, some, r)) << r;
        }
        if (testing::Test::HasFailure()) return;
      }
    }
}

TEST(HeadProduct, RowsOfAList) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_head_product();
  const Problem p(gpu, {2, 128, 64, 128, 512}, 70);
  std::vector<int32_t> list(70);
  std::iota(list.begin(), list.end(), 0);
  std::shuffle(list.begin(), list.end(), random());
  list.resize(33);
  const auto absorbed = p.run(false, HeadTile::to_64, 70), expanded = p.run(true, HeadTile::to_64, 70);
  for (const HeadTile tile : sm90::kHeadTiles) {
    const auto from = p.run(false, tile, 33, list), to = p.run(true, tile, 33, list);
    for (int r = 0; r < 33; ++r) {
      const int of = list[static_cast<size_t>(r)];
      ASSERT_TRUE(p.same_row(false, from, r, absorbed, of));
      // Row r of the mixed rows gave row `of` of the results.
      ASSERT_TRUE(p.same_row(true, to, of, expanded, r));
    }
    for (int r = 0; r < 70; ++r)
      ASSERT_TRUE(std::find(list.begin(), list.end(), r) != list.end() || p.poisoned(true, to, r));
  }
}

}  // namespace
}  // namespace sluice::test
