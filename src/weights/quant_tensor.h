// SPDX-License-Identifier: Apache-2.0
// A stack of weight matrices [E, N, K] in one number format, canonical: rows and columns in the checkpoint's order,
// scales linear. A single dense matrix is a stack of one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "format/formats.h"
#include "tensor/tensor.h"

namespace sluice::io {
class Checkpoint;
}

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

  // In place of `codes`: those of each matrix, [N, K], where a checkpoint has them (Codes::in_place in load.h).
  std::vector<Tensor> apart{};
  // Set where codes may be views of its mapped files. begin_rows() and end_rows() are for these.
  std::shared_ptr<const io::Checkpoint> file{};

  bool empty() const { return codes.empty() && apart.empty(); }
  int64_t row_bytes() const { return cols * info(format).bits / 8; }
  // Codes of a row on the host; the matrix's other rows come after it.
  const std::byte* code_row(int64_t expert, int64_t row) const {
    return apart.empty() ? static_cast<const std::byte*>(codes.data()) + (expert * rows + row) * row_bytes()
                         : static_cast<const std::byte*>(apart[static_cast<size_t>(expert)].data()) + row * row_bytes();
  }
  // Called by who reads all of rows [begin, end) of a matrix once, before and after it, from any thread: a file that is
  // not in memory is read in large pieces, and its pages do not stay in the process beside what was made of them. Both
  // are hints, and nothing happens where the codes are not a file's.
  void begin_rows(int64_t expert, int64_t begin, int64_t end) const;
  void end_rows(int64_t expert, int64_t begin, int64_t end) const;
};

// Codes and scales of the right types and shapes, not initialised. K must be even for 4-bit codes. make_codes: where
// the codes' memory comes from.
using MakeTensor = std::function<Tensor(DType, Shape)>;
inline Tensor make_tensor(DType dtype, Shape shape) { return {dtype, std::move(shape)}; }
QuantTensor make_quant_tensor(format::Format format, int64_t experts, int64_t rows, int64_t cols,
                              const MakeTensor& make_codes = make_tensor);

// float32 [E, N, K]: code * scale * global, each product in float32. The slow, obvious definition.
Tensor dequantize(const QuantTensor& w);

// The rows of all parts one below another, as one tensor of the same values: float32-exact, never requantised. Parts
// are stacks of as many experts, of one format and K. Nothing when their scales cannot be stored in one tensor of that
// format: unequal scales of a whole matrix, or blocks of 128 rows that would straddle two parts.
// Codes and scales on a GPU are stacked there, enqueued on `queue` of that device; scales of whole matrices lie on the
// host.
std::optional<QuantTensor> concatenate_rows(std::span<const QuantTensor> parts, Queue& queue = host_queue());

}  // namespace sluice::weights
