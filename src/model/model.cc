// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include "base/error.h"

namespace sluice::model {

void Model::draft(Context&, const Batch&, const void*, Cache&, ops::Workspace&, const Outputs&) const {
  fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info().architecture);
}

}  // namespace sluice::model
