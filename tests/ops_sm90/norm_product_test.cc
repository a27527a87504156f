// SPDX-License-Identifier: Apache-2.0
// A norm that multiplies its rows: the bits of the norm alone, and products within the rounding of float32 sums.
#include <cmath>
#include <cstring>

#include "kernels/sm90/repack/matrix.h"
#include "tests/ops_sm90/gpu.h"
#include "tests/ops_sm90/norm_outcome.h"
#include "weights/quant_tensor.h"

namespace sluice::test {
namespace {

using sm90::RmsNormArgs, sm90::Round;

constexpr bf16_t kNan = 0xffff;

struct Shape {
  int cols, outputs, rows;
  bool second, floats;
  Round round;
};

class Problem {
 public:
  Problem(const Gpu& gpu, const Shape& s) : gpu_(gpu), s_(s), matrix_(size(s.outputs, s.cols)) {
    for (auto* values : {&x_, &change_, &second_}) {
      values->resize(size(s.rows, s.cols));
      for (bf16_t& v : *values) v = float_to_bf16(normal(2));
    }
    weight_.resize(static_cast<size_t>(s.cols));
    for (float& w : weight_) w = 1 + normal(0.3f);
    for (bf16_t& v : matrix_) v = float_to_bf16(normal(0.1f));
    weights::QuantTensor w;
    w.format = format::Format::bf16;
    w.experts = 1, w.rows = s.outputs, w.cols = s.cols;
    w.codes = Tensor(DType::bf16, {1, s.outputs, s.cols});
    std::memcpy(w.codes.data(), matrix_.data(), matrix_.size() * 2);
    const sm90::WeightShape shape{sm90::WeightOperand::bf16, 1, s.outputs, s.cols, false, 0};
    memory_ = sm90::DeviceBuffer(shape.bytes());
    repacked_.place(shape, memory_, {{0, shape.bytes()}, {}, {}});
    repacked_.fill(w, nullptr, gpu.queue->stream());
  }

  struct Outcome {
    NormOutcome norm;
    std::vector<double> z;
  };

  Outcome run(bool multiplies) const {
    const auto rows = static_cast<size_t>(s_.rows), scale_size = rows * scale_bytes(s_.round, s_.cols);
    const auto x = gpu_.upload(x_), change = gpu_.upload(change_), second = gpu_.upload(second_);
    const auto y = gpu_.upload(std::vector<bf16_t>(x_.size(), kNan));
    const auto weight = gpu_.upload(weight_);
    const auto codes = gpu_.upload(std::vector<uint8_t>(x_.size(), 0xff));
    const auto scales = gpu_.upload(std::vector<uint8_t>(scale_size, 0xff));
    const auto row_scales = gpu_.upload(std::vector<float>(rows, NAN));
    // A row of z is wider than the outputs.
    const size_t stride = static_cast<size_t>(s_.outputs) + 3;
    const auto z16 = gpu_.upload(std::vector<bf16_t>(rows * stride, kNan));
    const auto z32 = gpu_.upload(std::vector<float>(rows * stride, NAN));
    RmsNormArgs args{};
    args.x = {x.get(), s_.cols, false};
    args.y = {y.get(), s_.cols, false};
    args.change = {change.get(), s_.cols, false};
    if (s_.second) args.change2 = {second.get(), s_.cols, false};
    args.weight = weight.get();
    args.eps = 1e-5f;
    args.rows = s_.rows;
    args.cols = s_.cols;
    args.rounded = {s_.round, 1 / 0.013f, codes.get(), row_scales.get(), scales.get()};
    if (multiplies) {
      void* z = s_.floats ? static_cast<void*>(z32.get()) : z16.get();
      args.product = {repacked_.weights.as<uint8_t>(), s_.outputs, {z, static_cast<int64_t>(stride), s_.floats}};
      EXPECT_TRUE(multiplies_rows(args));
    }
    launch_rms_norm(args, gpu_.queue->stream(), s_.rows % 2 == 0);
    Outcome o{{gpu_.download(x, x_.size()), gpu_.download(y, x_.size()), gpu_.download(codes, x_.size()),
               gpu_.download(scales, scale_size), gpu_.download(row_scales, rows)},
              {}};
    const std::vector<bf16_t> halves = gpu_.download(z16, rows * stride);
    const std::vector<float> floats = gpu_.download(z32, rows * stride);
    for (size_t i = 0; i < rows * stride; ++i) o.z.push_back(s_.floats ? floats[i] : bf16_to_float(halves[i]));
    return o;
  }

  // Products of y as it was stored. A sum of n terms in float32 is off by at most n 2^-24 of the sum of their sizes; a
  // result in bfloat16 by 2^-9 of itself more.
  void check_products(const Outcome& o) const {
    const auto cols = static_cast<size_t>(s_.cols), outputs = static_cast<size_t>(s_.outputs);
    for (size_t r = 0; r < static_cast<size_t>(s_.rows); ++r)
      for (size_t n = 0; n < outputs + 3; ++n) {
        const double got = o.z[r * (outputs + 3) + n];
        if (n >= outputs) {
          ASSERT_TRUE(std::isnan(got)) << "written beside the row";
          continue;
        }
        double sum = 0, sizes = 0;
        for (size_t c = 0; c < cols; ++c) {
          const double product = static_cast<double>(bf16_to_float(o.norm.y[r * cols + c])) *
                                 static_cast<double>(bf16_to_float(matrix_[n * cols + c]));
          sum += product, sizes += std::abs(product);
        }
        const double room = sizes * s_.cols * 0x1p-24 + (s_.floats ? 0 : std::abs(sum) * 0x1p-8);
        ASSERT_NEAR(got, sum, room) << "row " << r << ", output " << n;
      }
  }

 private:
  static size_t size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }

  const Gpu& gpu_;
  Shape s_;
  std::vector<bf16_t> x_, change_, second_, matrix_;
  std::vector<float> weight_;
  sm90::DeviceBuffer memory_;
  sm90::RepackedMatrix repacked_;
};

TEST(NormProduct, GivesTheBitsOfTheNormAndTheProduct) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  int turn = 0;
  for (const int cols : {8, 136, 1024, 1032, 2048, 2688, 4096})
    for (const int outputs : {1, 60, 127, 128})
      for (const int rows : {1, 2, 5, 16}) {
        const Shape s{cols, outputs, rows, turn % 2 == 0, turn % 3 == 0, kNormRounds[turn % 5]};
        ++turn;
        SCOPED_TRACE(fmt::format("{} columns, {} outputs, {} rows, rounding {}, second change {}, float results {}",
                                 cols, outputs, rows, static_cast<int>(s.round), s.second, s.floats));
        const Problem p(gpu, s);
        const Problem::Outcome fused = p.run(true);
        ASSERT_TRUE(fused.norm == p.run(false).norm);
        ASSERT_NO_FATAL_FAILURE(p.check_products(fused));
      }
}

}  // namespace
}  // namespace sluice::test
