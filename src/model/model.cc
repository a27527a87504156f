// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include "base/error.h"

namespace sluice::model {

void Model::draft(ops::Ops&, const Batch&, ops::ConstMatrix, Cache&, const Outputs&) const {
  fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info().architecture);
}

}  // namespace sluice::model
