// SPDX-License-Identifier: Apache-2.0
// sluice_quantize_args as the library's own types: what host and device calls read alike.
#pragma once

#include "format/quantize_tensor.h"
#include "sluice/c.h"
#include "tensor/dtype.h"

namespace sluice::capi {

format::ScaleLayout layout_of(sluice_scale_layout layout);

struct QuantizeCall {
  format::CodedTensor to;  // input_scale is not filled in: it may lie in a device's memory
  DType dtype = DType::f32;
};
// Throws invalid_argument when a pointer that the coding needs is null. A tensor without elements needs none.
QuantizeCall read_quantize_args(const sluice_quantize_args& args);

}  // namespace sluice::capi
