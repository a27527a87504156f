/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: one fused mixture-of-experts layer on tensors in host memory, its spec line, its shards. */
#ifndef SLUICE_C_MOE_H
#define SLUICE_C_MOE_H

#include "sluice/c/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sluice_moe sluice_moe;

typedef struct sluice_moe_weights {
  size_t struct_size;
  sluice_matrices up;   /* [L, I, H]; the only first matrix when the activation is not gated */
  sluice_matrices gate; /* [L, I, H]; codes NULL when the activation is not gated */
  sluice_matrices down; /* [L, H, I] */
  /* Decode factors of static input formats, the largest over all E experts; 0 is read as 1. */
  float input_scale1, input_scale2;
  const float *bias_up, *bias_gate, *bias_down; /* [L, I], [L, I], [L, H]; NULL without "bias=1" in the spec */
  const float *alpha, *beta, *limit;            /* [L]; NULL without "act_params=1" */
} sluice_moe_weights;

/* spec: one line, "experts=8 top_k=2 hidden=64 inter=48 weights=bf16 act=swiglu routing=renormalize"
 * (docs/reference.md). backend: "auto", or the name of one; one that cannot run the spec gives SLUICE_UNSUPPORTED and
 * its reason. The weights are copied into the backend's own layout; the caller's memory is free after the call. */
SLUICE_API sluice_status sluice_moe_create(sluice_context* context, const char* spec, const char* backend,
                                           const sluice_moe_weights* weights, sluice_moe** out);
/* The same, by the backend "cpu", with the prepared weights in memory that the caller owns: `memory_size` bytes, at
 * least sluice_moe_prepared_bytes(), aligned to 64 bytes. A refit writes it again, at the same addresses; the caller
 * frees it after the layer is destroyed. Biases and other small tensors are copied elsewhere. */
SLUICE_API sluice_status sluice_moe_prepared_bytes(const char* spec, int64_t* out);
SLUICE_API sluice_status sluice_moe_prepare_into(sluice_context* context, const char* spec,
                                                 const sluice_moe_weights* weights, void* memory, int64_t memory_size,
                                                 sluice_moe** out);
/* Other weights of the same spec into the same memory. Not while a run is under way. */
SLUICE_API sluice_status sluice_moe_refit(sluice_moe* moe, const sluice_moe_weights* weights);
SLUICE_API void sluice_moe_destroy(sluice_moe* moe);
/* The workspace bytes that a call of up to `tokens` tokens needs. */
SLUICE_API sluice_status sluice_moe_workspace_bytes(const sluice_moe* moe, int64_t tokens, int64_t* out);

typedef struct sluice_moe_args {
  size_t struct_size;
  int64_t tokens;     /* T; 0 is allowed */
  const void* hidden; /* spec dtype [T, H] */
  /* Either logits: the call routes ... */
  const void* logits; /* [T, E] */
  sluice_dtype logits_dtype;
  const void* bias; /* [E] or NULL */
  sluice_dtype bias_dtype;
  /* ... or the routing itself ("routed=1"): global ids; -1 and other ranks' ids contribute nothing. */
  const int32_t* topk_ids;  /* [T, K]; (id << 16 | bf16 weight) when topk_weights is NULL */
  const void* topk_weights; /* [T, K] */
  sluice_dtype topk_weights_dtype;
  void* output;           /* spec dtype [T, H]; with "finalize=0" [T, K, H] */
  void* workspace;        /* 64-byte aligned; NULL: allocated and freed by the call */
  int64_t workspace_size; /* its bytes, at least sluice_moe_workspace_bytes() for these tokens */
  int32_t* chosen_ids;    /* [T, K] or NULL: what the routing decided */
  float* chosen_weights;  /* [T, K] or NULL */
} sluice_moe_args;

SLUICE_API sluice_status sluice_moe_run(const sluice_moe* moe, const sluice_moe_args* args);

/* Each backend's answer to a spec, one line each: its name, "chosen", "usable" or "no", and why. Writes at most `size`
 * bytes with the final zero; *needed (may be NULL) is the size of the whole text. SLUICE_BUFFER_TOO_SMALL when it was
 * cut. */
SLUICE_API sluice_status sluice_moe_explain(const char* spec, char* buffer, size_t size, size_t* needed);

/* What a spec line says, defaults filled in. The strings are the library's, for ever. */
typedef struct sluice_moe_spec_info {
  size_t struct_size;
  int64_t experts, top_k, hidden, inter; /* E, K, H, I of this rank */
  int64_t local_offset, local_experts;   /* of this rank; all of them: 0, E */
  const char* weights;                   /* format */
  const char* inputs;                    /* input format */
  sluice_dtype dtype;                    /* of hidden and output */
  int gated, bias, act_params, routed, finalize;
} sluice_moe_spec_info;
SLUICE_API sluice_status sluice_moe_read_spec(const char* spec, sluice_moe_spec_info* out);

/* One rank's part of a layer: tensor parallelism cuts I at whole scale groups, expert parallelism the list of experts;
 * the sum of all ranks' outputs is the layer's. Sizes of 0 are read as 1. A rank that would get nothing is refused. */
typedef struct sluice_shard {
  size_t struct_size;
  int tp_rank, tp_size, ep_rank, ep_size;
} sluice_shard;
typedef struct sluice_moe_shard sluice_moe_shard;
/* spec and weights (host memory) of the whole layer. The part is a copy. */
SLUICE_API sluice_status sluice_moe_shard_create(const char* spec, const sluice_moe_weights* weights,
                                                 const sluice_shard* shard, sluice_moe_shard** out);
SLUICE_API void sluice_moe_shard_destroy(sluice_moe_shard* shard);
/* The rank's spec line, as sluice_moe_explain writes text. */
SLUICE_API sluice_status sluice_moe_shard_spec(const sluice_moe_shard* shard, char* buffer, size_t size,
                                               size_t* needed);
/* Its weights, in the shard's memory. */
SLUICE_API sluice_status sluice_moe_shard_weights(const sluice_moe_shard* shard, sluice_moe_weights* out);

typedef struct sluice_route_args {
  size_t struct_size;
  int64_t tokens;
  const void* logits; /* [T, E] */
  sluice_dtype logits_dtype;
  const void* bias; /* [E] or NULL */
  sluice_dtype bias_dtype;
  int32_t* ids;   /* [T, K] global ids, in descending order of what they were chosen by */
  float* weights; /* [T, K]; rounded to bfloat16 when that is the spec's dtype */
} sluice_route_args;
/* The routing of a spec alone. */
SLUICE_API sluice_status sluice_route(const char* spec, const sluice_route_args* args);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_MOE_H */
