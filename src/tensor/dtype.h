// SPDX-License-Identifier: Apache-2.0
// Element types of tensors in memory and in safetensors files.
#pragma once

#include <array>
#include <cstdint>

#include "base/named.h"

namespace sluice {

enum class DType : uint8_t { f32, f16, bf16, e4m3, e8m0, u8, i8, i16, i32, i64, boolean, f64 };

inline constexpr std::array<Named<DType>, 12> kDTypes{{{DType::f32, "float32"},
                                                       {DType::f16, "float16"},
                                                       {DType::bf16, "bfloat16"},
                                                       {DType::e4m3, "float8_e4m3fn"},
                                                       {DType::e8m0, "float8_e8m0fnu"},
                                                       {DType::u8, "uint8"},
                                                       {DType::i8, "int8"},
                                                       {DType::i16, "int16"},
                                                       {DType::i32, "int32"},
                                                       {DType::i64, "int64"},
                                                       {DType::boolean, "bool"},
                                                       {DType::f64, "float64"}}};

constexpr std::string_view to_string(DType d) { return name_of(kDTypes, d); }

constexpr int64_t bytes_of(DType d) {
  switch (d) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::i64:
    case DType::f64:
      return 8;
    default:
      return 1;
  }
}

}  // namespace sluice
