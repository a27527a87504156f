// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/few_rows/launch.h"

#include "base/error.h"
#include "kernels/sm90/visit_operand.h"

namespace sluice::sm90 {

// Compiled by the generated files (sources.cmake).
template <WeightOperand op>
void allow_few_rows_of();
template <WeightOperand op>
void launch_few_rows_of(const FewRowsArgs& args, int multiprocessors, Stream stream, bool pdl);

void allow_few_rows(WeightOperand operand) {
  visit_operand(operand, []<WeightOperand op>() { allow_few_rows_of<op>(); });
}

void launch_few_rows(const FewRowsArgs& args, WeightOperand operand, int multiprocessors, Stream stream, bool pdl) {
  check(args.rows > 0 && args.rows <= kMaxFewRows, "rows is {}; 1 to {} are possible", args.rows, kMaxFewRows);
  visit_operand(operand, [&]<WeightOperand op>() { launch_few_rows_of<op>(args, multiprocessors, stream, pdl); });
}

}  // namespace sluice::sm90
