// SPDX-License-Identifier: Apache-2.0
// Prompts of latent attention in its expanded form: the keys and values of each head are computed from the latent rows
// in the pages, the new ones and those before them, and attended by FlashInfer's kernel. That takes 2 (192 + 128)
// operations for each pair of positions and head instead of 2 (576 + 512). Heads are taken some at a time, so that
// memory is bounded and a row needs no merging of partial results.
//
// Keys, values and probabilities are rounded to bfloat16, queries and results are not: the bits are not those of the
// absorbed form (latent_attention.h). A row's do not depend on how its prompt is cut.
#pragma once

#include "kernels/sm90/attention/attention.h"
#include "kernels/sm90/mla/expanded_plan.h"
#include "kernels/sm90/mla/mla.h"

namespace sluice::sm90 {

// Where prompts begin in the expanded rows, and the batch without them: in device memory.
struct ExpandedWork {
  int32_t* first;    // [sequences + 1]: first expanded row of a prompt; for another sequence, of the next prompt
  int32_t* lengths;  // [sequences]: positions of a prompt
  // The other sequences' rows, and row_begin of the batch that they make. All its other arrays are the batch's.
  int32_t* other_rows;   // [other_rows of expanded_work_ints]
  int32_t* other_begin;  // [sequences + 1]
};
int64_t expanded_work_ints(int64_t sequences, int64_t other_rows);
ExpandedWork expanded_work(int32_t* ints, int64_t sequences);

struct ExpandedCall {
  // q [rows, heads * 192], keys: the pages, out [rows, heads * 128]; its plan and partial results are not used.
  const AttentionArgs* attention;
  MlaWeights weights;
  int min_rows;  // sequences with at least as many new rows are prompts
  PromptBounds bounds;
  ExpandedPlan plan;
  ExpandedWork work;
  int64_t other_rows;  // rows of the other sequences, exactly
  void* expanded;      // [expanded_bytes]
  PrefillPlan tiles;   // of plan_expanded_tiles
  int32_t* tile_work;  // [prefill_work_ints(tiles)]
  int multiprocessors;
};
// Whether this build's kernels take this shape and these matrices.
bool expanded_fits(const MlaWeights& weights, const AttentionArgs& attention);
PrefillPlan plan_expanded_tiles(const ExpandedPlan& plan, const PromptBounds& bounds, int64_t longest_rows,
                                int multiprocessors);
// Fills call.work, then computes the prompts. Needs allow_expanded() and allow_key_values().
void launch_expanded_work(const ExpandedCall& call, Stream stream, bool pdl);
void launch_expanded_attention(const ExpandedCall& call, Stream stream, bool pdl);

}  // namespace sluice::sm90
