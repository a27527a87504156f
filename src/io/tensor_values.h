// SPDX-License-Identifier: Apache-2.0
// Single values of tensors of every type that files have, and checksums of their bytes.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace sluice::io {

// Exact but for 64-bit integers beyond 2^53. Host memory.
double value_at(const Tensor& tensor, int64_t element);
// The SHA-256 of its bytes, as a safetensors file has them, in hexadecimal.
std::string checksum(const Tensor& tensor);

}  // namespace sluice::io
