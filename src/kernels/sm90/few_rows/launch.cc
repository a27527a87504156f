// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/few_rows/launch.h"

#include "base/error.h"

namespace sluice::sm90 {

// Compiled by the generated files (sources.cmake).
template <WeightOperand op>
void allow_few_rows_of();
template <WeightOperand op>
void launch_few_rows_of(const FewRowsArgs& args, int multiprocessors, Stream stream, bool pdl);

namespace {
template <class F>
void visit(WeightOperand operand, F&& f) {
  using enum WeightOperand;
  switch (operand) {
    case bf16:
      return f.template operator()<bf16>();
    case fp8:
      return f.template operator()<fp8>();
    case fp8_block:
      return f.template operator()<fp8_block>();
    case mxfp8:
      return f.template operator()<mxfp8>();
    case nvfp4:
      return f.template operator()<nvfp4>();
    case mxfp4:
      return f.template operator()<mxfp4>();
    case fp8_f32:
      return f.template operator()<fp8_f32>();
    case fp8_block_f32:
      return f.template operator()<fp8_block_f32>();
  }
}
}  // namespace

void allow_few_rows(WeightOperand operand) {
  visit(operand, []<WeightOperand op>() { allow_few_rows_of<op>(); });
}

void launch_few_rows(const FewRowsArgs& args, WeightOperand operand, int multiprocessors, Stream stream, bool pdl) {
  check(args.rows > 0 && args.rows <= kMaxFewRows, "rows is {}; 1 to {} are possible", args.rows, kMaxFewRows);
  visit(operand, [&]<WeightOperand op>() { launch_few_rows_of<op>(args, multiprocessors, stream, pdl); });
}

}  // namespace sluice::sm90
