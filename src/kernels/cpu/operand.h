// SPDX-License-Identifier: Apache-2.0
// Input rows in the form that a GEMM kernel reads, in memory that the caller gives.
#pragma once

#include "base/context.h"
#include "kernels/cpu/gemm_choice.h"

namespace sluice::kernels::cpu {

// Hands out pieces of one block, 64-byte aligned. With a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

struct Operand {
  GemmChoice choice;
  int64_t rows = 0, cols = 0, padded = 0;
  int64_t stride = 0;        // bytes between rows
  int64_t group_stride = 0;  // floats
  uint8_t* data = nullptr;
  float* row_scale = nullptr;
  float* group_scale = nullptr;
};

// Carves an operand of [rows, cols]; `padded` = the weights' K'.
Operand carve_operand(Carver& carver, const GemmChoice& choice, int64_t rows, int64_t cols, int64_t padded);

// Where a source row lies and what it is.
struct SourceRow {
  const void* data = nullptr;  // float or bf16 [cols]
  DType dtype = DType::f32;
  bool round_bf16_first = false;
};
// Fills operand row `row`. `staging`: float[padded] of this worker.
void prepare_operand_row(const Operand& operand, int64_t row, const SourceRow& source, float input_scale,
                         float* staging);

// Row `from` of one operand becomes row `to` of another of the same shape.
void copy_operand_row(const Operand& source, int64_t from, const Operand& target, int64_t to);

}  // namespace sluice::kernels::cpu
