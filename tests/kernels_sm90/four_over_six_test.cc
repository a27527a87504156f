// SPDX-License-Identifier: Apache-2.0
// NVFP4 by the better of two scales on the device against the host, bit for bit, in every way and scale layout.
#include "kernels/sm90/quantize/four_over_six.h"

#include "format/quantize_tensor.h"
#include "tests/kernels_sm90/device_problem.h"
#include "tests/kernels_sm90/values.h"

namespace sluice::test {
namespace {

using format::BlockError;
using format::FourOverSix;
using format::ScaleLayout;
using sm90::Coding;

struct Case {
  Coding coding;
  bool encodes;
  ScaleLayout layout;
  FourOverSix how;
  bool bf16, special;
  int64_t rows, cols;
};

struct Coded {
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
};

constexpr float kInputScale = 0.0123f;

Coded on_host(const Case& c, const std::vector<float>& x) {
  const int64_t groups = (c.cols + 15) / 16;
  Coded out{std::vector<uint8_t>(static_cast<size_t>(c.rows * ((c.cols + 1) / 2))),
            std::vector<uint8_t>(static_cast<size_t>(format::scale_elements(c.layout, c.rows, groups))),
            std::vector<float>(c.coding == Coding::nvfp4_token ? static_cast<size_t>(c.rows) : 0)};
  format::CodedTensor to;
  to.coding = c.coding;
  to.rows = c.rows;
  to.cols = c.cols;
  to.input_scale = kInputScale;
  to.encodes = c.encodes;
  to.four_over_six = c.how;
  to.codes = out.codes.data();
  to.scales = out.scales.data();
  to.layout = c.layout;
  to.row_scales = out.row_scales.empty() ? nullptr : out.row_scales.data();
  format::check_coded(to);
  format::quantize_into(to, x.data(), 0, c.rows);
  return out;
}

void check_case(const Case& c, std::mt19937& rng) {
  SCOPED_TRACE(fmt::format("{}{} {} {} {}{} {} [{}, {}]{}", name_of(sm90::kCodings, c.coding),
                           c.encodes ? " by an encode factor" : "", name_of(format::kScaleLayouts, c.layout),
                           name_of(format::kBlockErrors, c.how.error), c.how.e4m3_max, c.how.fast ? " fast" : "",
                           c.bf16 ? "bf16" : "float32", c.rows, c.cols, c.special ? " with NaN" : ""));
  const auto x = values(rng, c.rows, c.cols, c.bf16, c.special);
  const Coded expected = on_host(c, x);
  std::vector<uint16_t> narrow;
  for (float v : x) narrow.push_back(float_to_bf16(v));
  const sm90::DeviceBuffer in =
      c.bf16 ? upload(narrow.data(), static_cast<int64_t>(narrow.size()) * 2) : upload(x.data(), c.rows * c.cols * 4);
  const sm90::DeviceBuffer scale = upload(&kInputScale, 4),
                           codes = poisoned(static_cast<int64_t>(expected.codes.size())),
                           scales = poisoned(static_cast<int64_t>(expected.scales.size())),
                           row_scales = poisoned(c.rows * 4);
  sm90::QuantizeArgs a{};
  a.coding = c.coding;
  a.x = in.data();
  a.x_f32 = !c.bf16;
  a.rows = c.rows;
  a.cols = static_cast<int>(c.cols);
  a.input_scale = scale.as<float>();
  a.encodes = c.encodes;
  a.codes = codes.as<uint8_t>();
  a.scales = scales.data();
  a.layout = c.layout;
  a.row_scales = c.coding == Coding::nvfp4_token ? row_scales.as<float>() : nullptr;
  sm90::launch_quantize_four_over_six(a, c.how, nullptr, true);
  ASSERT_EQ(download<uint8_t>(scales), expected.scales);
  ASSERT_EQ(download<uint8_t>(codes), expected.codes);
  if (a.row_scales == nullptr) return;
  const auto found = download<float>(row_scales);
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_TRUE(found[i] == expected.row_scales[i] || (std::isnan(found[i]) && std::isnan(expected.row_scales[i])))
        << "row " << i;
}

TEST(FourOverSix, EqualsTheHostBitForBit) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  int cases = 0;
  for (const auto& [coding, encodes] :
       {std::pair{Coding::nvfp4, false}, {Coding::nvfp4, true}, {Coding::nvfp4_token, false}})
    for (int e4m3_max : {448, 256})
      for (BlockError error : {BlockError::mae, BlockError::mse})
        for (bool fast : {false, true})
          for (ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4})
            for (bool bf16 : {true, false})
              for (const auto& [rows, cols] :
                   {std::pair<int64_t, int64_t>{1, 32}, {130, 704}, {2, 7168}, {300, 64}, {4, 1000}, {2, 77}, {1, 1}}) {
                const bool special = rng() % 2 == 0;
                check_case({coding, encodes, layout, {true, e4m3_max, error, fast}, bf16, special, rows, cols}, rng);
                ++cases;
                if (HasFatalFailure()) return;
              }
  std::printf("four over six: %d cases equal the host bit for bit\n", cases);
}

}  // namespace
}  // namespace sluice::test
