// SPDX-License-Identifier: Apache-2.0
// A stack of weight matrices [E, N, K] in one number format, canonical: rows and columns in the checkpoint's order,
// scales linear. A single dense matrix is a stack of one.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "format/formats.h"
#include "tensor/tensor.h"

namespace sluice::weights {

struct QuantTensor {
  format::Format format = format::Format::bf16;
  int64_t experts = 0, rows = 0, cols = 0;  // E, N, K

  Tensor codes;   // bf16 [E,N,K] | e4m3 [E,N,K] | u8 [E,N,K/2] (two e2m1, low nibble = even k)
  Tensor scales;  // block scales, decode factors (value = code * scale * global):
                  //   fp8_tensor f32 [E] | fp8_channel f32 [E,N] | fp8_block f32 [E,ceil(N/128),ceil(K/128)]
                  //   mxfp8, mxfp4 e8m0 [E,N,ceil(K/32)] | nvfp4 e4m3 [E,N,ceil(K/16)] | bf16: empty
                  // (the last group may be short: I = 248 or 48 of small models)
  Tensor global;  // f32 [E], only where the format has a global scale (NVFP4's weight_scale_2)
};

// Codes and scales of the right types and shapes, not initialised. K must be even for 4-bit codes. make_codes: where
// the codes' memory comes from.
using MakeTensor = std::function<Tensor(DType, Shape)>;
QuantTensor make_quant_tensor(
    format::Format format, int64_t experts, int64_t rows, int64_t cols,
    const MakeTensor& make_codes = [](DType dtype, Shape shape) { return Tensor(dtype, std::move(shape)); });

// float32 [E, N, K]: code * scale * global, each product in float32. The slow, obvious definition.
Tensor dequantize(const QuantTensor& w);

// The rows of all parts one below another, as one tensor of the same values: float32-exact, never requantised. Parts
// are stacks of as many experts, of one format and K. Nothing when their scales cannot be stored in one tensor of that
// format: unequal scales of a whole matrix, or blocks of 128 rows that would straddle two parts.
// Codes and scales on a GPU are stacked there, enqueued on `queue` of that device; scales of whole matrices lie on the
// host.
std::optional<QuantTensor> concatenate_rows(std::span<const QuantTensor> parts, Queue& queue = host_queue());

}  // namespace sluice::weights
