// SPDX-License-Identifier: Apache-2.0
// Attention of prompts: FlashInfer's form of FlashAttention-3 (warp-specialised wgmma, keys and values gathered from
// pages by cp.async) for bfloat16 heads of 128 values. It takes the sequences of a batch that have at least
// `min_rows` new rows; attention.h computes the others (AttentionArgs::prefill_rows).
//
// Probabilities are rounded to bfloat16 before they are multiplied with the values, which attention.h does not do. A
// row's result depends on its position, its query and the sequence's pages alone, bit for bit, however its prompt is
// cut: positions are read in tiles at multiples of kFlashPositions, from the last one down, and a tile of which a row
// sees nothing changes none of its sums. But the bits are not those of attention.h.
#pragma once

#include "kernels/sm90/attention/attention.h"
#include "kernels/sm90/flashinfer/kernels.h"

namespace sluice::sm90 {

struct PrefillArgs {
  const AttentionArgs* attention;  // its plan and its partial results are not used
  int64_t rows;                    // of the batch
  int min_rows;                    // sequences with fewer new rows are left to attention.h
  PrefillPlan plan;
  FlashWork work;
};

// Whether this build's kernel takes this shape and these matrices: it reads queries and writes rows in pieces of 16
// bytes.
bool prefill_fits(const AttentionArgs& args);
// `ints` of prefill_work_ints(plan) values.
FlashWork prefill_work(const PrefillPlan& plan, int32_t* ints);

// Fills args.work from the batch's arrays, then computes. Two launches; the second needs allow_flash().
void launch_prefill(const PrefillArgs& args, Stream stream, bool pdl);

// The launches of launch_prefill.
void launch_prefill_work(const PrefillArgs& args, Stream stream, bool pdl);
void launch_prefill_kernel(const PrefillArgs& args, Stream stream);

}  // namespace sluice::sm90
