/* SPDX-License-Identifier: Apache-2.0
 *
 * Sluice's C ABI. Every call returns a status; the sentence that explains it is sluice_last_error() of the same thread.
 * Nothing throws across this line. Objects are opaque; the caller destroys what it creates, in any order: a layer or a
 * model keeps what it needs of its context. Structs that a caller fills start with their own size, so that later
 * versions can append fields: SLUICE_INIT(sluice_moe_args) zeroes one and sets it.
 *
 * Letters: T tokens, H hidden, I intermediate, E experts, L experts of this rank, K experts a token.
 */
#ifndef SLUICE_C_H
#define SLUICE_C_H

#include <stddef.h>
#include <stdint.h>

#define SLUICE_API __attribute__((visibility("default")))

#ifdef __cplusplus
template <class Struct>
Struct sluice_init() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}
#define SLUICE_INIT(type) sluice_init<type>()
extern "C" {
#else
#define SLUICE_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1, /* an argument is not accepted */
  SLUICE_BAD_FILE = 2,         /* a file is truncated, corrupt or contradicts another */
  SLUICE_NOT_FOUND = 3,        /* a path or a named thing does not exist */
  SLUICE_UNSUPPORTED = 4,      /* well-formed, but no backend or loader takes it */
  SLUICE_OUT_OF_MEMORY = 5,
  SLUICE_IO = 6,       /* the operating system refused a read or a write */
  SLUICE_CUDA = 7,     /* a CUDA call failed */
  SLUICE_INTERNAL = 8, /* a bug of ours */
  SLUICE_BUFFER_TOO_SMALL = 9
} sluice_status;

/* An integer and not an enum: a caller's value out of range is then an error with a sentence, not undefined. */
typedef int32_t sluice_dtype;
enum { SLUICE_F32 = 0, SLUICE_BF16 = 1 };

SLUICE_API const char* sluice_version(void); /* "0.1.0" */
/* The sentence of this thread's last call that did not return SLUICE_OK; valid until its next such call. */
SLUICE_API const char* sluice_last_error(void);

/* ---- context: threads and callbacks ------------------------------------------------------------------------------ */

typedef struct sluice_context sluice_context;

/* threads = 0: every core that the process may use. A context serves one call at a time. */
SLUICE_API sluice_status sluice_context_create(int threads, sluice_context** out);
SLUICE_API void sluice_context_destroy(sluice_context* context);

/* level: 0 debug, 1 info, 2 warning. Neither string outlives the call. NULL switches a callback off. */
typedef void (*sluice_log_fn)(void* user, int level, const char* line);
typedef void (*sluice_progress_fn)(void* user, const char* what, int64_t done, int64_t total, const char* unit);
SLUICE_API sluice_status sluice_context_set_log(sluice_context* context, sluice_log_fn log, void* user);
SLUICE_API sluice_status sluice_context_set_progress(sluice_context* context, sluice_progress_fn progress, void* user);

/* ---- one fused mixture-of-experts layer -------------------------------------------------------------------------- */

typedef struct sluice_moe sluice_moe;

/* L matrices [N, Kdim] in the spec's weight format, rows and columns in the checkpoint's order, scales linear:
 *   format       codes                    scales                                     global_scales
 *   bf16         bf16 [L,N,Kdim]          -                                          -
 *   fp8_tensor   e4m3 [L,N,Kdim]          f32 [L]                                    -
 *   fp8_channel  e4m3 [L,N,Kdim]          f32 [L,N]                                  -
 *   fp8_block    e4m3 [L,N,Kdim]          f32 [L,ceil(N/128),ceil(Kdim/128)]         -
 *   mxfp8        e4m3 [L,N,Kdim]          e8m0 [L,N,Kdim/32]                         -
 *   mxfp4        u8 [L,N,Kdim/2]          e8m0 [L,N,Kdim/32]                         -
 *   nvfp4        u8 [L,N,Kdim/2]          e4m3 [L,N,Kdim/16]                         f32 [L]
 * Four-bit codes: two a byte, the low half is the even column. value = code * scale * global scale. */
typedef struct sluice_matrices {
  const void* codes;
  const void* scales;
  const float* global_scales;
} sluice_matrices;

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
/* Other weights of the same spec into the same memory. Not while a run is under way. */
SLUICE_API sluice_status sluice_moe_refit(sluice_moe* moe, const sluice_moe_weights* weights);
SLUICE_API void sluice_moe_destroy(sluice_moe* moe);
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
  void* output;        /* spec dtype [T, H]; with "finalize=0" [T, K, H] */
  void* workspace;     /* sluice_moe_workspace_bytes() bytes, 64-byte aligned; NULL: allocated and freed by the call */
  int32_t* chosen_ids; /* [T, K] or NULL: what the routing decided */
  float* chosen_weights; /* [T, K] or NULL */
} sluice_moe_args;

SLUICE_API sluice_status sluice_moe_run(const sluice_moe* moe, const sluice_moe_args* args);

/* Each backend's answer to a spec, one line each, as `sluice explain` prints it. Writes at most `size` bytes with the
 * final zero; *needed (may be NULL) is what all of it takes. SLUICE_BUFFER_TOO_SMALL when it was cut. */
SLUICE_API sluice_status sluice_moe_explain(const char* spec, char* buffer, size_t size, size_t* needed);

/* ---- the same on a GPU: device pointers, stream order -------------------------------------------------------------
 */

/* For engines that live on an NVIDIA Hopper GPU (H100, H200). Every pointer of a call is device memory, every call is
 * ordered in the given stream and returns at once: nothing is allocated, waited for or read back, so a call may be
 * captured in a CUDA graph. A library without CUDA, or a machine without such a device, gives SLUICE_UNSUPPORTED.
 * An object belongs to its device; several streams may use one object at the same time, each with its own workspace. */

typedef struct sluice_cuda_moe sluice_cuda_moe;

/* weights: codes, scales and global_scales in host memory, or in the device's (aligned to 16 bytes, and unchanged until
 * the stream has passed); the other tensors in host memory. stream: a cudaStream_t, NULL is the default stream. */
SLUICE_API sluice_status sluice_cuda_moe_create(const char* spec, int device, const sluice_moe_weights* weights,
                                                void* stream, sluice_cuda_moe** out);
/* Other weights at the same addresses, in stream order: graphs that were captured before run with them. */
SLUICE_API sluice_status sluice_cuda_moe_refit(sluice_cuda_moe* moe, const sluice_moe_weights* weights, void* stream);
SLUICE_API void sluice_cuda_moe_destroy(sluice_cuda_moe* moe);
/* What a call of up to `tokens` tokens needs; the caller owns it, aligned to 256 bytes. */
SLUICE_API sluice_status sluice_cuda_moe_workspace_bytes(const sluice_cuda_moe* moe, int64_t tokens, int64_t* out);

typedef struct sluice_cuda_queue {
  size_t struct_size;
  void* stream;              /* cudaStream_t */
  const int32_t* num_tokens; /* device, at most args.tokens, which is then the captured maximum; NULL: args.tokens */
  int no_pdl;                /* 1: without programmatic dependent launch */
} sluice_cuda_queue;

/* args as for sluice_moe_run; the workspace must be given. */
SLUICE_API sluice_status sluice_cuda_moe_run(const sluice_cuda_moe* moe, const sluice_moe_args* args,
                                             const sluice_cuda_queue* queue);

/* Where the block scale of a row and a group of columns lies. */
typedef int32_t sluice_scale_layout;
enum {
  SLUICE_SCALES_128X4 = 0,
  SLUICE_SCALES_8X4 = 1,
  SLUICE_SCALES_LINEAR = 2,
  SLUICE_SCALES_TRANSPOSED = 3 /* [groups, rows], fp8_group */
};

/* Elements of rows x groups scales, padding included. */
SLUICE_API sluice_status sluice_scale_elements(sluice_scale_layout layout, int64_t rows, int64_t groups, int64_t* out);

typedef struct sluice_cuda_quantize_args {
  size_t struct_size;
  const char* coding; /* fp8_static, fp8_token, fp8_group, mxfp8, nvfp4, nvfp4_token, mxfp4 */
  const void* x;      /* [rows, cols], aligned to 16 bytes */
  sluice_dtype dtype;
  int64_t rows, cols;
  const float* input_scale; /* [1] decode factor of fp8_static and nvfp4; else NULL */
  uint8_t* codes;           /* e4m3 [rows, cols], or two e2m1 a byte [rows, ceil(cols / 2)] */
  /* Of 128 (fp8_group, float32), 32 (mxfp8, mxfp4) or 16 (nvfp4, nvfp4_token) columns: [rows, ceil(cols / group)] in
   * `layout`; its padding becomes zero. NULL for fp8_static and fp8_token. */
  void* scales;
  sluice_scale_layout layout;
  float* row_scales; /* [rows] of fp8_token and nvfp4_token; else NULL */
} sluice_cuda_quantize_args;

/* On the current device. */
SLUICE_API sluice_status sluice_cuda_quantize(const sluice_cuda_quantize_args* args, const sluice_cuda_queue* queue);

/* y [T, N] = x [T, K] W^T + bias with the same formats, for shared experts and projections. */
typedef struct sluice_cuda_gemm sluice_cuda_gemm;

typedef struct sluice_cuda_gemm_options {
  size_t struct_size;
  int64_t rows, cols;  /* N, K */
  const char* weights; /* format of W, as in a spec line */
  const char* inputs;  /* what x is rounded to; NULL: the default of the weights */
  sluice_dtype dtype;  /* of x and y */
  sluice_matrices w;   /* L = 1; device or host memory */
  float input_scale;   /* of static inputs */
  const float* bias;   /* [N] in host memory, or NULL */
} sluice_cuda_gemm_options;

SLUICE_API sluice_status sluice_cuda_gemm_create(const sluice_cuda_gemm_options* options, int device, void* stream,
                                                 sluice_cuda_gemm** out);
SLUICE_API void sluice_cuda_gemm_destroy(sluice_cuda_gemm* gemm);
SLUICE_API sluice_status sluice_cuda_gemm_workspace_bytes(const sluice_cuda_gemm* gemm, int64_t tokens, int64_t* out);

typedef struct sluice_cuda_gemm_args {
  size_t struct_size;
  int64_t tokens;
  const void* x; /* [T, K], rounded by the call; or NULL and, rounded already, as sluice_cuda_quantize leaves it: */
  const uint8_t* codes;
  const void* scales;
  sluice_scale_layout layout;
  const float* row_scales; /* [T]; NULL with static inputs: the input scale */
  void* y;                 /* [T, N] */
  void* workspace;
} sluice_cuda_gemm_args;

SLUICE_API sluice_status sluice_cuda_gemm_run(const sluice_cuda_gemm* gemm, const sluice_cuda_gemm_args* args,
                                              const sluice_cuda_queue* queue);

/* ---- whole models ------------------------------------------------------------------------------------------------ */

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
  int has_draft; /* speculative_steps may be positive */
} sluice_model_info;
SLUICE_API sluice_status sluice_model_get_info(const sluice_model* model, sluice_model_info* out);

/* UTF-8 text of `bytes` bytes to ids; special tokens in the text are read as such. *count is how many there are, also
 * when SLUICE_BUFFER_TOO_SMALL says that only the first `capacity` were written. */
SLUICE_API sluice_status sluice_model_encode(const sluice_model* model, const char* text, size_t bytes, int32_t* ids,
                                             size_t capacity, size_t* count);
/* Ids to UTF-8 text with a final zero; *needed (may be NULL) is what all of it takes. */
SLUICE_API sluice_status sluice_model_decode(const sluice_model* model, const int32_t* ids, size_t count,
                                             int skip_special_tokens, char* buffer, size_t size, size_t* needed);

typedef struct sluice_generate_options {
  size_t struct_size;
  int64_t max_new_tokens;
  double temperature; /* 0: greedy */
  int64_t top_k;      /* 0: all */
  double top_p;       /* 0 is read as 1 */
  uint64_t seed;
  int speculative_steps; /* drafts a step from the model's own head; 0: none. The text is the same. */
  int ignore_eos;        /* 1: only max_new_tokens ends the text */
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
 * character; special tokens have none. Return 0 to go on, anything else to cancel. */
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
 * sequence is as long as before. */
SLUICE_API sluice_status sluice_session_append(sluice_session* session, const int32_t* ids, size_t count,
                                               float* logits);
SLUICE_API int64_t sluice_session_length(const sluice_session* session);
/* Forgets all tokens. */
SLUICE_API void sluice_session_reset(sluice_session* session);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_H */
