/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: a whole model, one sequence at a time. */
#ifndef SLUICE_C_MODEL_H
#define SLUICE_C_MODEL_H

#include "sluice/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A checkpoint folder of Hugging Face: weights and tokenizer. Immutable after loading. */
typedef struct sluice_model sluice_model;

typedef struct sluice_model_options {
  size_t struct_size;
  const char* dtype;              /* of activations: "bfloat16" (also NULL) or "float32" */
  const char* quantization;       /* BF16 weights are quantised to this format while loading; NULL: as stored */
  const char* moe_backend;        /* NULL: "auto" */
  int nvfp4_per_token_activation; /* 1: scales from each token, the checkpoint's input scales are ignored */
  int fp8_block_trtllm;           /* 1: FP8 block rounds GEMM1's result before the activation */
  int fp8_tensor_core_sums;       /* 1: FP8 experts may sum in the 14 bits of Hopper's tensor cores; else float32 */
  int deterministic;              /* 1: a token's result does not depend on its batch; the CPU always works so */
  const char* quantization_rest;  /* with quantization: the linears that are no routed experts; NULL: the same for 8
                                     bits, BF16 for nvfp4 and mxfp4 */
  const char* kv_cache_dtype;     /* of cached keys and values: "auto" (also NULL) for dtype, "bfloat16", "fp8_e4m3" */
  const char* quantization_head;  /* with quantization: the output head; NULL: BF16 */
  const char* load_format;        /* "auto" (also NULL): the folder's tensors; "dummy": random weights, always the same,
                                     for which the folder needs only config.json and the tokenizer's files. Such tensors
                                     cannot be read; an engine runs them until it is given others (weights.h) */
} sluice_model_options;

/* options NULL: all defaults. */
SLUICE_API sluice_status sluice_model_load(sluice_context* context, const char* folder,
                                           const sluice_model_options* options, sluice_model** out);
SLUICE_API void sluice_model_destroy(sluice_model* model);

typedef struct sluice_model_info {
  size_t struct_size;
  int64_t vocab, hidden, layers;
  int64_t max_positions; /* the longest sequence */
  int64_t weight_bytes;
  int has_draft;     /* speculative_steps may be positive */
  int row_invariant; /* a token's result does not depend on its batch, bit for bit */
} sluice_model_info;
SLUICE_API sluice_status sluice_model_get_info(const sluice_model* model, sluice_model_info* out);

/* UTF-8 text of `bytes` bytes to ids; special tokens in the text are read as such. *count is how many there are, also
 * when SLUICE_BUFFER_TOO_SMALL says that only the first `capacity` were written. */
SLUICE_API sluice_status sluice_model_encode(const sluice_model* model, const char* text, size_t bytes, int32_t* ids,
                                             size_t capacity, size_t* count);
/* Ids to UTF-8 text with a final zero; *needed (may be NULL) is the size of the whole text. */
SLUICE_API sluice_status sluice_model_decode(const sluice_model* model, const int32_t* ids, size_t count,
                                             int skip_special_tokens, char* buffer, size_t size, size_t* needed);

typedef struct sluice_generate_options {
  size_t struct_size;
  int64_t max_new_tokens; /* positive; with the prompt at most max_positions (sluice_model_info) */
  double temperature;     /* 0: greedy */
  int64_t top_k;          /* 0: all */
  double top_p;           /* 0 is read as 1 */
  uint64_t seed;
  /* The most drafts per step from the model's own head; 0: none. Each step makes as many as measured times and right
   * drafts make pay. The text is the same, so they need a model that is row_invariant (sluice_model_info); another
   * gives SLUICE_UNSUPPORTED. */
  int speculative_steps;
  int ignore_eos;              /* 1: only max_new_tokens ends the text */
  int speculative_fixed_steps; /* 1: always speculative_steps drafts */
} sluice_generate_options;

typedef struct sluice_generated {
  size_t struct_size;
  int64_t tokens; /* new ones */
  int stopped;    /* 1: an end-of-text token, the last id given out */
  int cancelled;  /* 1: the callback said so */
  double prefill_seconds, decode_seconds;
  double accept_rate; /* of drafts; 0 without */
} sluice_generated;

/* Called for each new token as soon as it is certain. text: the whole characters that it completes, often "" inside a
 * character; special tokens have none. Return 0 to go on, anything else to cancel.
 * It may not run anything with the model's context: see sluice_context_create. */
typedef int (*sluice_token_fn)(void* user, int32_t id, const char* text);

/* Continues `count` ids (at least 1). on_token and result may be NULL. */
SLUICE_API sluice_status sluice_model_generate(const sluice_model* model, const int32_t* ids, size_t count,
                                               const sluice_generate_options* options, sluice_token_fn on_token,
                                               void* user, sluice_generated* result);

/* One sequence with its cache, for callers with a sampler of their own. Keeps what it needs of its model. */
typedef struct sluice_session sluice_session;
SLUICE_API sluice_status sluice_session_create(const sluice_model* model, int64_t max_tokens, sluice_session** out);
SLUICE_API void sluice_session_destroy(sluice_session* session);
/* Appends `count` tokens; logits (may be NULL) takes the float32 [vocab] that follow the last one. After an error the
 * sequence is as long as before, and after SLUICE_INVALID_ARGUMENT it goes on. Any other error of a model with
 * recurrent layers (Mamba) loses the state of what was appended: further calls are refused until
 * sluice_session_reset(). */
SLUICE_API sluice_status sluice_session_append(sluice_session* session, const int32_t* ids, size_t count,
                                               float* logits);
SLUICE_API int64_t sluice_session_length(const sluice_session* session);
/* Forgets all tokens. */
SLUICE_API void sluice_session_reset(sluice_session* session);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_MODEL_H */
