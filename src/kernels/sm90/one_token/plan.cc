// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/one_token/config.h"
#include "kernels/sm90/tuning.h"
#include "kernels/sm90/visit_operand.h"

namespace sluice::sm90 {

bool one_token_pays(const OneTokenShape& s, WeightOperand operand, int multiprocessors) {
  if (s.top_k > kOneTokenPairs || s.columns[0] % 8 != 0) return false;
  if (int64_t{s.top_k} * s.columns[0] >
      (operand == WeightOperand::bf16 ? tuning::kOneTokenValuesBf16 : tuning::kOneTokenValues))
    return false;
  bool fits = false;
  visit_operand(operand, [&]<WeightOperand op>() {
    const OneTokenPlan p = plan_one_token<op>(s, multiprocessors);
    fits = p.first_bytes <= kOneTokenFirstMemory && p.second_bytes <= kOneTokenSecondMemory;
  });
  return fits;
}

}  // namespace sluice::sm90
