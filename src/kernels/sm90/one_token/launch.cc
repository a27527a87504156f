// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/one_token/one_token.h"
#include "kernels/sm90/visit_operand.h"

namespace sluice::sm90 {

// Compiled by the generated files (sources.cmake).
template <WeightOperand op>
void allow_one_token_of();
template <WeightOperand op>
void launch_one_token_of(const OneTokenArgs& args, int multiprocessors, Stream stream, bool pdl, bool follows_own);

void allow_one_token(WeightOperand operand) {
  visit_operand(operand, []<WeightOperand op>() { allow_one_token_of<op>(); });
}

void launch_one_token(const OneTokenArgs& args, WeightOperand operand, int multiprocessors, Stream stream, bool pdl,
                      bool follows_own) {
  visit_operand(operand,
                [&]<WeightOperand op>() { launch_one_token_of<op>(args, multiprocessors, stream, pdl, follows_own); });
}

}  // namespace sluice::sm90
