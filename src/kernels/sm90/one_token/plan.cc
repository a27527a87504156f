// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/one_token/config.h"
#include "kernels/sm90/tuning.h"
#include "kernels/sm90/visit_operand.h"

namespace sluice::sm90 {

namespace {

int64_t most_values(WeightOperand operand) {
  switch (operand) {
    case WeightOperand::bf16:
      return tuning::kOneTokenValuesBf16;
    case WeightOperand::mxfp8:
    case WeightOperand::fp8_f32:
    case WeightOperand::fp8_block:
      return tuning::kOneTokenValuesE4m3;
    default:
      return tuning::kOneTokenValues;
  }
}

}  // namespace

bool one_token_pays(const OneTokenShape& s, WeightOperand operand, int multiprocessors) {
  if (s.top_k > kOneTokenPairs || s.columns[0] % 8 != 0) return false;
  if (int64_t{s.top_k} * s.columns[0] > most_values(operand)) return false;
  bool fits = false;
  visit_operand(operand, [&]<WeightOperand op>() {
    const OneTokenPlan p = plan_one_token<op>(s, multiprocessors);
    fits = p.first_bytes <= kOneTokenFirstMemory && p.second_bytes <= kOneTokenSecondMemory;
  });
  return fits;
}

}  // namespace sluice::sm90
