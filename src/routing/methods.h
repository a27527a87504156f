// SPDX-License-Identifier: Apache-2.0
// THE LIST of routing methods. A new one adds its header with one policy type, its enumerator and name in method.h, and
// its row in the type list (docs/adding.md).
//
// A policy M, all in float32, for host and device; x is a logit:
//   M::kBias        the bias takes part in the choice        M::kRowSoftmax  RowSoftmax must be filled before use
//   M::key(x, bias, row)     what the choice compares
//   M::term(x, best, row)    what a chosen expert's weight starts from; `best` is the first chosen expert's logit
//   M::weight(term, sum, p)  the weight; `sum` adds the terms in the order of choice
#pragma once

#include "base/typelist.h"
#include "routing/deepseek_v3.h"
#include "routing/llama4.h"
#include "routing/method.h"
#include "routing/minimax2.h"
#include "routing/renormalize.h"
#include "routing/sigmoid.h"
#include "routing/softmax.h"
#include "routing/topk.h"

namespace sluice::routing {

using Methods = TypeList<Softmax, Renormalize, DeepseekV3, Llama4, RenormalizeNaive, Topk, SigmoidRenorm, Minimax2,
                         Sigmoid, TopkSigmoid>;

constexpr bool takes_bias(Method m) {
  bool bias = false;
  Methods::visit(m, [&]<class M> { bias = M::kBias; });
  return bias;
}

}  // namespace sluice::routing
