// SPDX-License-Identifier: Apache-2.0
// THE LIST of weight formats, and of the formats that a GEMM's input rows are rounded to.
// A new format adds its header, one enumerator, one row in the type list (docs/adding.md).
#pragma once

#include <array>
#include <cstdint>

#include "base/bf16.h"
#include "base/named.h"
#include "base/typelist.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"

namespace sluice::format {

// How the weights [N, K] of one matrix are stored, as published.
enum class Format : uint8_t { bf16, fp8_tensor, fp8_channel, fp8_block, mxfp8, nvfp4, mxfp4 };

// What a GEMM's input rows [T, K] are rounded to before the product.
enum class InputFormat : uint8_t {
  plain,        // the run's own type (bfloat16 or float32): not rounded further
  fp8_static,   // e4m3 with one calibrated scale for the whole tensor
  fp8_token,    // e4m3 with a float scale per row, from the row itself
  fp8_group,    // e4m3 with a float scale per row and 128 columns
  mxfp8,        // e4m3 with a UE8M0 scale per row and 32 columns
  nvfp4,        // e2m1 with an e4m3 scale per row and 16 columns, one calibrated global scale
  nvfp4_token,  // the same with a global scale per row, from the row itself
};

inline constexpr std::array<Named<InputFormat>, 7> kInputFormats{{{InputFormat::plain, "plain"},
                                                                  {InputFormat::fp8_static, "fp8_static"},
                                                                  {InputFormat::fp8_token, "fp8_token"},
                                                                  {InputFormat::fp8_group, "fp8_group"},
                                                                  {InputFormat::mxfp8, "mxfp8"},
                                                                  {InputFormat::nvfp4, "nvfp4"},
                                                                  {InputFormat::nvfp4_token, "nvfp4_token"}}};

// Columns that share one block scale; 0: none.
constexpr int group_of(InputFormat f) {
  return f == InputFormat::fp8_group                                ? 128
         : f == InputFormat::mxfp8                                  ? 32
         : f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token ? 16
                                                                    : 0;
}

// True where a calibrated scale of the whole tensor must be given.
constexpr bool is_static(InputFormat f) { return f == InputFormat::fp8_static || f == InputFormat::nvfp4; }

enum class ScaleType : uint8_t { none, f32, e8m0, e4m3 };

// One scale covers group_n rows and group_k columns; 0 stands for "all of them".
struct FormatInfo {
  Format id;
  std::string_view name;
  int bits;         // of one code: 16, 8, 4
  ScaleType scale;  // of the block scales
  int group_n, group_k;
  bool global_scale;  // a float for the whole matrix on top (NVFP4's weight_scale_2)
  InputFormat input;  // the default input format
  // The size along which N or K may be cut between ranks (tensor parallel) without splitting a scale.
  constexpr int cut() const { return group_k > 1 ? (group_k > group_n ? group_k : group_n) : 1; }
};

struct Bf16 {
  static constexpr Format kId = Format::bf16;
  static constexpr FormatInfo kInfo{kId, "bf16", 16, ScaleType::none, 0, 0, false, InputFormat::plain};
};
struct Fp8Tensor {
  static constexpr Format kId = Format::fp8_tensor;
  static constexpr FormatInfo kInfo{kId, "fp8_tensor", 8, ScaleType::f32, 0, 0, false, InputFormat::fp8_token};
};
struct Fp8Channel {
  static constexpr Format kId = Format::fp8_channel;
  static constexpr FormatInfo kInfo{kId, "fp8_channel", 8, ScaleType::f32, 1, 0, false, InputFormat::fp8_token};
};
struct Fp8Block {
  static constexpr Format kId = Format::fp8_block;
  static constexpr FormatInfo kInfo{kId, "fp8_block", 8, ScaleType::f32, 128, 128, false, InputFormat::fp8_group};
};
struct Mxfp8 {
  static constexpr Format kId = Format::mxfp8;
  static constexpr FormatInfo kInfo{kId, "mxfp8", 8, ScaleType::e8m0, 1, 32, false, InputFormat::mxfp8};
};
struct Nvfp4 {
  static constexpr Format kId = Format::nvfp4;
  static constexpr FormatInfo kInfo{kId, "nvfp4", 4, ScaleType::e4m3, 1, 16, true, InputFormat::nvfp4};
};
struct Mxfp4 {
  static constexpr Format kId = Format::mxfp4;
  static constexpr FormatInfo kInfo{kId, "mxfp4", 4, ScaleType::e8m0, 1, 32, false, InputFormat::plain};
};

using Formats = TypeList<Bf16, Fp8Tensor, Fp8Channel, Fp8Block, Mxfp8, Nvfp4, Mxfp4>;

// Their names, from the list.
inline constexpr auto kFormats = [] {
  std::array<Named<Format>, Formats::kSize> names{};
  size_t i = 0;
  Formats::for_each([&]<class F> { names[i++] = {F::kId, F::kInfo.name}; });
  return names;
}();

constexpr FormatInfo info(Format f) {
  FormatInfo found{};
  Formats::visit(f, [&]<class F> { found = F::kInfo; });
  return found;
}

// e4m3 codes under float scales.
constexpr bool is_fp8(Format f) {
  return f == Format::fp8_tensor || f == Format::fp8_channel || f == Format::fp8_block;
}

// Whether weights of format `w` are published, or run by anyone, with input rows of format `x`. `plain` goes with all.
constexpr bool fits(Format w, InputFormat x) {
  switch (x) {
    case InputFormat::plain:
      return true;
    case InputFormat::fp8_static:
    case InputFormat::fp8_token:
      return w == Format::fp8_tensor || w == Format::fp8_channel;
    case InputFormat::fp8_group:
      return w == Format::fp8_block;
    case InputFormat::mxfp8:
      return w == Format::mxfp8 || w == Format::mxfp4;
    case InputFormat::nvfp4:
    case InputFormat::nvfp4_token:
      return w == Format::nvfp4;
  }
  return false;
}

}  // namespace sluice::format
