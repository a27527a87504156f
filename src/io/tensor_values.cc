// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_values.h"

#include "base/bf16.h"
#include "base/f16.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "io/sha256.h"

namespace sluice::io {

double value_at(const Tensor& t, int64_t i) {
  switch (t.dtype()) {
    case DType::f32:
      return t.as<float>()[i];
    case DType::bf16:
      return bf16_to_float(t.as<bf16_t>()[i]);
    case DType::f16:
      return f16_to_float(t.as<uint16_t>()[i]);
    case DType::f64:
      return t.as<double>()[i];
    case DType::e4m3:
      return format::e4m3_to_float(t.as<uint8_t>()[i]);
    case DType::e8m0:
      return format::e8m0_to_float(t.as<uint8_t>()[i]);
    case DType::u8:
    case DType::boolean:
      return t.as<uint8_t>()[i];
    case DType::i8:
      return t.as<int8_t>()[i];
    case DType::i16:
      return t.as<int16_t>()[i];
    case DType::i32:
      return t.as<int32_t>()[i];
    case DType::i64:
      return static_cast<double>(t.as<int64_t>()[i]);
  }
  return 0;
}

std::string checksum(const Tensor& t) {
  return sha256({static_cast<const std::byte*>(t.data()), static_cast<size_t>(t.bytes())});
}

}  // namespace sluice::io
