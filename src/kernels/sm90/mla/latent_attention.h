// SPDX-License-Identifier: Apache-2.0
// Latent attention on tensor cores, in its absorbed form: bfloat16 queries of 512 + 64 values for each head, one page
// row of as many for all heads. FlashInfer's kernel computes; the arrays that it finds its work in are filled on the
// GPU, so that a recorded launch serves every batch within its bounds.
//
// Probabilities are rounded to bfloat16 before they are multiplied with the values, and so are the partial results of a
// row that is cut into pieces. How a row is cut depends on all rows and positions of the batch, unless the plan is one
// for row_invariant.
#pragma once

#include "kernels/sm90/attention/attention.h"
#include "kernels/sm90/mla/latent_plan.h"

namespace sluice::sm90 {

struct LatentCall {
  const AttentionArgs* attention;  // its plan and its partial results are not used
  LatentPlan plan;
  int32_t* work;         // [latent_work_ints]
  void* partial;         // [latent_partial_bytes]
  float* partial_stats;  // [latent_stats_bytes]
};

// Whether this build's kernel takes this shape and these matrices.
bool latent_fits(const AttentionArgs& args);
// Two launches, or three where rows may be cut. Needs allow_latent().
void launch_latent_attention(const LatentCall& call, Stream stream, bool pdl);

}  // namespace sluice::sm90
