/* SPDX-License-Identifier: Apache-2.0
 *
 * Sluice's C ABI. Every call returns a status; the sentence that explains it is sluice_last_error() of the same thread.
 * No exception leaves a call. Objects are opaque; the caller destroys what it creates, in any order: a layer or a
 * model keeps what it needs of its context. Structs that a caller fills start with their own size, so that later
 * versions can append fields: SLUICE_INIT(sluice_moe_args) zeroes one and sets it. In an array of them every element
 * has the same struct_size, which is also how far apart they lie. A field of zero means the default that is stated
 * beside it.
 *
 * After fork() no object of the parent may be used in the child, not even to destroy it: the library's threads do not
 * exist there, and a call that waits for them never returns. The child calls exec, or ends with _exit. What it creates
 * itself it may use, but no GPU that its parent has used.
 *
 * Letters: T tokens, H hidden, I intermediate, E experts, L experts of this rank, K experts per token.
 */
#ifndef SLUICE_C_H
#define SLUICE_C_H

#include "sluice/c/base.h"     /* statuses, the context */
#include "sluice/c/cuda.h"     /* layers, quantisers and dense matrices on a GPU */
#include "sluice/c/engine.h"   /* many requests through one model */
#include "sluice/c/formats.h"  /* matrices in a number format */
#include "sluice/c/gemm.h"     /* a dense matrix on the host */
#include "sluice/c/model.h"    /* a whole model, one sequence at a time */
#include "sluice/c/moe.h"      /* a fused mixture-of-experts layer on the host, specs, shards */
#include "sluice/c/quantize.h" /* numbers to codes and back, on the host */
#include "sluice/c/weights.h"  /* other weights for an engine that runs */

#endif /* SLUICE_C_H */
