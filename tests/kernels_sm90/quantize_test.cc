// SPDX-License-Identifier: Apache-2.0
// Device quantisers against the host's, bit for bit, in every scale layout.
#include "format/quantize.h"
#include "format/quantize_rows.h"
#include "kernels/sm90/quantize/tensor.h"
#include "tests/kernels_sm90/device_problem.h"
#include "tests/kernels_sm90/values.h"
#include "tests/support/scale_layout.h"

namespace sluice::test {
namespace {

using format::InputFormat;
using format::ScaleLayout;
using sm90::Coding;

struct Expected {
  std::vector<uint8_t> codes, scales;
  std::vector<float> group_scales, row_scales;
};

Expected on_host(Coding c, const std::vector<float>& x, int64_t rows, int64_t cols, float input_scale) {
  if (c == Coding::mxfp4) {
    Expected e;
    e.codes.resize(static_cast<size_t>(rows * ((cols + 1) / 2)));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < cols; k += 32)
        e.scales.push_back(format::quantize_group_mxfp4(x.data() + r * cols + k,
                                                        static_cast<int>(std::min<int64_t>(32, cols - k)),
                                                        e.codes.data() + r * ((cols + 1) / 2) + k / 2));
    return e;
  }
  const auto f = parse_name(format::kInputFormats, "coding", name_of(sm90::kCodings, c));
  format::QuantRows q = format::quantize_rows(f, x.data(), rows, cols, input_scale);
  return {q.codes, q.scales, q.group_scales, q.row_scales};
}

void check_case(Coding c, ScaleLayout layout, bool bf16, bool special, int64_t rows, int64_t cols, std::mt19937& rng) {
  SCOPED_TRACE(fmt::format("{} {} {} [{}, {}]{}", name_of(sm90::kCodings, c), name_of(format::kScaleLayouts, layout),
                           bf16 ? "bf16" : "float32", rows, cols, special ? " with NaN" : ""));
  const auto x = values(rng, rows, cols, bf16, special);
  const float input_scale = 0.0123f;
  const Expected e = on_host(c, x, rows, cols, input_scale);
  std::vector<uint16_t> narrow;
  for (float v : x) narrow.push_back(float_to_bf16(v));
  const sm90::DeviceBuffer in =
      bf16 ? upload(narrow.data(), static_cast<int64_t>(narrow.size()) * 2) : upload(x.data(), rows * cols * 4);
  const sm90::DeviceBuffer scale = upload(&input_scale, 4), codes = poisoned(static_cast<int64_t>(e.codes.size()));
  const int group = sm90::coding_group(c);
  const int64_t groups = group > 0 ? (cols + group - 1) / group : 0;
  const int64_t elements = format::scale_elements(layout, rows, groups);
  const sm90::DeviceBuffer scales = poisoned(elements * (c == Coding::fp8_group ? 4 : 1)),
                           row_scales = poisoned(rows * 4);
  sm90::QuantizeArgs a{};
  a.coding = c;
  a.x = in.data();
  a.x_f32 = !bf16;
  a.rows = rows;
  a.cols = static_cast<int>(cols);
  a.input_scale = scale.as<float>();
  a.codes = codes.as<uint8_t>();
  a.scales = group > 0 ? scales.data() : nullptr;
  a.layout = layout;
  a.row_scales = c == Coding::fp8_token || c == Coding::nvfp4_token ? row_scales.as<float>() : nullptr;
  sm90::launch_quantize(a, nullptr, true);
  const auto got = download<uint8_t>(codes);
  const auto is_nan = [&](uint8_t code) { return !sm90::is_four_bit(c) && (code & 0x7f) == 0x7f; };
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(got[i] == e.codes[i] || (is_nan(got[i]) && is_nan(e.codes[i])))
        << "code byte " << i << " is " << int{got[i]} << ", on the host " << int{e.codes[i]};
  if (!e.scales.empty()) {
    std::vector<uint8_t> placed(static_cast<size_t>(elements));
    scales_from_linear(layout, e.scales.data(), rows, groups, placed.data());
    ASSERT_EQ(download<uint8_t>(scales), placed);
  }
  if (!e.group_scales.empty()) {
    std::vector<float> placed(static_cast<size_t>(elements));
    scales_from_linear(layout, e.group_scales.data(), rows, groups, placed.data());
    const auto found = download<float>(scales);
    for (size_t i = 0; i < placed.size(); ++i)
      ASSERT_TRUE(found[i] == placed[i] || (std::isnan(found[i]) && std::isnan(placed[i]))) << "scale " << i;
  }
  if (a.row_scales != nullptr) {
    const auto found = download<float>(row_scales);
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_TRUE(found[i] == e.row_scales[i] || (std::isnan(found[i]) && std::isnan(e.row_scales[i]))) << "row " << i;
  }
}

TEST(Quantize, EqualsTheHostBitForBit) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  int cases = 0;
  for (const auto& [c, name] : sm90::kCodings)
    for (const auto& [layout, layout_name] : format::kScaleLayouts) {
      const bool floats = c == Coding::fp8_group, transposed = layout == ScaleLayout::transposed;
      if (layout != ScaleLayout::linear && (sm90::coding_group(c) == 0 || transposed != floats)) continue;
      for (bool bf16 : {true, false})
        for (bool special : {false, true})
          for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 32},
                                           {3, 128},
                                           {5, 2688},
                                           {130, 704},
                                           {9, 96},
                                           {2, 7168},
                                           {300, 64},
                                           {4, 1000},
                                           {2, 77},
                                           {1, 1}}) {
            check_case(c, layout, bf16, special, rows, cols, rng);
            ++cases;
            if (HasFatalFailure()) return;
          }
    }
  std::printf("quantisers: %d cases equal the host bit for bit\n", cases);
}

// amax = 448 * 2^n and 6 * 2^n get exactly 2^n.
TEST(Quantize, PowersOfTwoAtTheBoundary) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  for (const auto& [c, largest] : {std::pair{Coding::mxfp8, 448.0f}, {Coding::mxfp4, 6.0f}})
    for (int n = -100; n <= 100; n += 4) {
      const std::vector<float> x(32, std::ldexp(largest, n));
      const sm90::DeviceBuffer in = upload(x.data(), 128), codes = poisoned(32), scales = poisoned(1);
      sm90::QuantizeArgs a{};
      a.coding = c;
      a.x = in.data();
      a.x_f32 = true;
      a.rows = 1;
      a.cols = 32;
      a.codes = codes.as<uint8_t>();
      a.scales = scales.data();
      a.layout = ScaleLayout::linear;
      sm90::launch_quantize(a, nullptr, true);
      ASSERT_EQ(download<uint8_t>(scales)[0], 127 + n);
    }
}

}  // namespace
}  // namespace sluice::test
