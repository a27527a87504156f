/* SPDX-License-Identifier: Apache-2.0
 *
 * Sluice's C ABI. Every call returns a status; the sentence that explains it is sluice_last_error() of the same thread.
 * No exception leaves a call. Objects are opaque; the caller destroys what it creates, in any order: a layer or a
 * model keeps what it needs of its context. Structs that a caller fills start with their own size, so that later
 * versions can append fields: SLUICE_INIT(sluice_moe_args) zeroes one and sets it.
 *
 * Letters: T tokens, H hidden, I intermediate, E experts, L experts of this rank, K experts per token.
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
  SLUICE_BUFFER_TOO_SMALL = 9,
  SLUICE_BUSY = 10 /* an engine's queue is full, or the engine is stopping; the same call may succeed later */
} sluice_status;

/* An integer and not an enum: a caller's value out of range is then an error with a sentence, not undefined. A zeroed
 * struct says float32. */
typedef int32_t sluice_dtype;
enum { SLUICE_F32 = 0, SLUICE_BF16 = 1 };

SLUICE_API const char* sluice_version(void); /* "0.1.0" */
/* The sentence of this thread's last call that did not return SLUICE_OK; valid until its next such call. */
SLUICE_API const char* sluice_last_error(void);

/* ---- context: threads and callbacks ------------------------------------------------------------------------------ */

typedef struct sluice_context sluice_context;

/* threads: 1 to 4096, or 0 for every core that the process may use. A context serves one call at a time;
 * others wait. A callback (log, progress, on_token) runs inside such a call: what it calls of the same context gives
 * SLUICE_INVALID_ARGUMENT instead of waiting for itself, save functions that run nothing (encode, decode, get_info,
 * session_create, destroy of other objects). It must not wait for a thread that calls the context either. */
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
 * Four-bit codes: two per byte, the low half is the even column. value = code * scale * global scale. */
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

/* Each backend's answer to a spec, one line each, as `sluice explain` prints it. Writes at most `size` bytes with the
 * final zero; *needed (may be NULL) is the size of the whole text. SLUICE_BUFFER_TOO_SMALL when it was cut. */
SLUICE_API sluice_status sluice_moe_explain(const char* spec, char* buffer, size_t size, size_t* needed);

/* ---- specs, shards, and the parts of a layer on the host ----------------------------------------------------------
 */

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

/* What a weight format is made of (the table at sluice_matrices). The strings are the library's, for ever. */
typedef struct sluice_format_info {
  size_t struct_size;
  int bits;                   /* of a code: 16, 8 or 4 */
  const char* code_type;      /* "bfloat16", "float8_e4m3fn", "uint8" (two 4-bit codes) */
  const char* scale_type;     /* "float32", "float8_e8m0fnu", "float8_e4m3fn"; "": no scales */
  int group_rows, group_cols; /* rows and columns of one scale; 0: all */
  int global_scale;           /* 1: a float per matrix on top */
  const char* inputs;         /* what input rows are rounded to unless a spec says otherwise */
} sluice_format_info;
SLUICE_API sluice_status sluice_format_get_info(const char* format, sluice_format_info* out);

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

/* values [L, N, Kdim] -> codes, scales and global_scales of the format, in the shapes of the table at sluice_matrices;
 * scales and global_scales are NULL where the format has none. The loader's bits: each matrix by itself. */
SLUICE_API sluice_status sluice_quantize_weights(sluice_context* context, const char* format, int64_t matrices,
                                                 int64_t rows, int64_t cols, const void* values, sluice_dtype dtype,
                                                 void* codes, void* scales, float* global_scales);
/* values [L, N, Kdim] float32 = code * scale * global scale, each product in float32, in this order. */
SLUICE_API sluice_status sluice_dequantize_weights(sluice_context* context, const char* format, int64_t matrices,
                                                   int64_t rows, int64_t cols, const sluice_matrices* from,
                                                   float* values);

/* Where the block scale of a row and a group of columns lies; a zeroed struct says linear, [rows, groups]. */
typedef int32_t sluice_scale_layout;
enum {
  SLUICE_SCALES_LINEAR = 0,
  SLUICE_SCALES_128X4 = 1,
  SLUICE_SCALES_8X4 = 2,
  SLUICE_SCALES_TRANSPOSED = 3 /* [groups, rows], fp8_group */
};

/* Elements of rows x groups scales, padding included. */
SLUICE_API sluice_status sluice_scale_elements(sluice_scale_layout layout, int64_t rows, int64_t groups, int64_t* out);

typedef struct sluice_quantize_args {
  size_t struct_size;
  const char* coding; /* fp8_static, fp8_token, fp8_group, mxfp8, nvfp4, nvfp4_token, mxfp4 */
  const void* x;      /* [rows, cols]; on a device aligned to 16 bytes, as codes are */
  sluice_dtype dtype;
  int64_t rows, cols;
  const float* input_scale; /* [1] decode factor of fp8_static and nvfp4; else NULL */
  uint8_t* codes;           /* e4m3 [rows, cols], or two e2m1 per byte [rows, ceil(cols / 2)] */
  /* Of 128 (fp8_group, float32), 32 (mxfp8, mxfp4) or 16 (nvfp4, nvfp4_token) columns: [rows, ceil(cols / group)] in
   * `layout`; its padding becomes zero. NULL for fp8_static and fp8_token. */
  void* scales;
  sluice_scale_layout layout;
  float* row_scales; /* [rows] of fp8_token and nvfp4_token; else NULL */
} sluice_quantize_args;
typedef sluice_quantize_args sluice_cuda_quantize_args;

/* Rows to codes and scales, as the layers round their inputs. input_scale is read before the call returns. */
SLUICE_API sluice_status sluice_quantize(sluice_context* context, const sluice_quantize_args* args);

typedef struct sluice_dequantize_args {
  size_t struct_size;
  const char* coding; /* as sluice_quantize_args, as are all fields */
  int64_t rows, cols;
  const uint8_t* codes;
  const void* scales;
  sluice_scale_layout layout;
  const float* row_scales;
  const float* input_scale;
  float* x; /* [rows, cols] float32 = code * block scale * row or input scale, in this order */
} sluice_dequantize_args;
SLUICE_API sluice_status sluice_dequantize(sluice_context* context, const sluice_dequantize_args* args);

/* y [T, N] = x [T, K] W^T + bias, on the host. */
typedef struct sluice_gemm sluice_gemm;

typedef struct sluice_gemm_options {
  size_t struct_size;
  int64_t rows, cols;  /* N, K */
  const char* weights; /* format of W, as in a spec line */
  const char* inputs;  /* what x is rounded to; NULL: the default of the weights */
  sluice_dtype dtype;  /* of x and y */
  sluice_matrices w;   /* L = 1; host memory, or on a device also its memory */
  float input_scale;   /* decode factor of static inputs; 0 is read as 1 */
  const float* bias;   /* [N] in host memory, or NULL */
  int fp8_f32_sums;    /* 1: FP8 weights are summed in float32, as always on the host; else in the 14 bits of Hopper's
                          tensor cores */
  int deterministic;   /* 1: a row of y does not depend on what else is in the batch; always so on the host */
} sluice_gemm_options;
typedef sluice_gemm_options sluice_cuda_gemm_options;

/* The matrix is copied into the layout of the machine's kernels; the caller's memory is free after the call. */
SLUICE_API sluice_status sluice_gemm_create(sluice_context* context, const sluice_gemm_options* options,
                                            sluice_gemm** out);
SLUICE_API void sluice_gemm_destroy(sluice_gemm* gemm);
/* The workspace bytes that a call of up to `tokens` tokens needs. */
SLUICE_API sluice_status sluice_gemm_workspace_bytes(const sluice_gemm* gemm, int64_t tokens, int64_t* out);

typedef struct sluice_gemm_args {
  size_t struct_size;
  int64_t tokens;
  const void* x;          /* [T, K] in options.dtype, rounded by the call */
  void* y;                /* [T, N] in options.dtype */
  void* workspace;        /* 64-byte aligned; NULL: allocated and freed by the call */
  int64_t workspace_size; /* its bytes, at least sluice_gemm_workspace_bytes() for these tokens */
} sluice_gemm_args;
SLUICE_API sluice_status sluice_gemm_run(const sluice_gemm* gemm, const sluice_gemm_args* args);

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
/* The same in memory that the caller owns: `memory_size` bytes of the device, at least
 * sluice_cuda_moe_prepared_bytes(), aligned to 256 bytes. It is written in the stream's order, also by a refit, at
 * addresses that never change; the caller frees it after the layer is destroyed and its calls have passed. With weights
 * in device memory nothing is allocated on the device. Weights in host memory are staged through a buffer of at most
 * 256 MB (of one expert, if that is more), which is freed before the call returns. */
SLUICE_API sluice_status sluice_cuda_moe_prepared_bytes(const char* spec, int64_t* out); /* needs no device */
SLUICE_API sluice_status sluice_cuda_moe_prepare_into(const char* spec, int device, const sluice_moe_weights* weights,
                                                      void* memory, int64_t memory_size, void* stream,
                                                      sluice_cuda_moe** out);
/* Other weights at the same addresses, in stream order: graphs that were captured before run with them. */
SLUICE_API sluice_status sluice_cuda_moe_refit(sluice_cuda_moe* moe, const sluice_moe_weights* weights, void* stream);
SLUICE_API void sluice_cuda_moe_destroy(sluice_cuda_moe* moe);
/* The workspace bytes that a call of up to `tokens` tokens needs; the caller owns the memory, aligned to 256 bytes. */
SLUICE_API sluice_status sluice_cuda_moe_workspace_bytes(const sluice_cuda_moe* moe, int64_t tokens, int64_t* out);

typedef struct sluice_cuda_queue {
  size_t struct_size;
  void* stream;              /* cudaStream_t */
  const int32_t* num_tokens; /* device, 0 to args.tokens, which is then the captured maximum; NULL: args.tokens */
  int no_pdl;                /* 1: without programmatic dependent launch */
} sluice_cuda_queue;

/* args as for sluice_moe_run; the workspace must be given, aligned to 256 bytes and of at least
 * sluice_cuda_moe_workspace_bytes() bytes for these tokens. */
SLUICE_API sluice_status sluice_cuda_moe_run(const sluice_cuda_moe* moe, const sluice_moe_args* args,
                                             const sluice_cuda_queue* queue);

/* As sluice_quantize, on the current device. */
SLUICE_API sluice_status sluice_cuda_quantize(const sluice_cuda_quantize_args* args, const sluice_cuda_queue* queue);

/* y [T, N] = x [T, K] W^T + bias with the same formats, for shared experts and projections. */
typedef struct sluice_cuda_gemm sluice_cuda_gemm;

SLUICE_API sluice_status sluice_cuda_gemm_create(const sluice_cuda_gemm_options* options, int device, void* stream,
                                                 sluice_cuda_gemm** out);
/* The same in memory that the caller owns, as sluice_cuda_moe_prepare_into. For the bytes options.w, input_scale and
 * bias are not read. */
SLUICE_API sluice_status sluice_cuda_gemm_prepared_bytes(const sluice_cuda_gemm_options* options, int64_t* out);
SLUICE_API sluice_status sluice_cuda_gemm_prepare_into(const sluice_cuda_gemm_options* options, int device,
                                                       void* memory, int64_t memory_size, void* stream,
                                                       sluice_cuda_gemm** out);
/* Another matrix, input scale and bias (given again, or absent again) at the same addresses, in stream order. */
SLUICE_API sluice_status sluice_cuda_gemm_refit(sluice_cuda_gemm* gemm, const sluice_matrices* w, float input_scale,
                                                const float* bias, void* stream);
SLUICE_API void sluice_cuda_gemm_destroy(sluice_cuda_gemm* gemm);
/* The workspace bytes that a call of up to `tokens` tokens needs. */
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
  void* workspace;         /* aligned to 256 bytes */
  int64_t workspace_size;  /* its bytes, at least sluice_cuda_gemm_workspace_bytes() for these tokens */
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
  int deterministic;              /* 1: a token's result does not depend on its batch; the CPU always works so */
  const char* quantization_rest;  /* with quantization: the linears that are no routed experts; NULL: the same for 8
                                     bits, BF16 for nvfp4 and mxfp4 */
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
  int64_t max_new_tokens; /* positive */
  double temperature;     /* 0: greedy */
  int64_t top_k;          /* 0: all */
  double top_p;           /* 0 is read as 1 */
  uint64_t seed;
  /* Drafts per step from the model's own head; 0: none. The text is the same, so they need a model that is
   * row_invariant (sluice_model_info); another gives SLUICE_UNSUPPORTED. */
  int speculative_steps;
  int ignore_eos; /* 1: only max_new_tokens ends the text */
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

/* ---- an engine: many requests through one model -------------------------------------------------------------------
 */

/* The checkpoint of a folder, its threads and its cache of keys and values, run by a thread of its own. Any thread may
 * call anything. */
typedef struct sluice_engine sluice_engine;

typedef struct sluice_engine_options {
  size_t struct_size;
  int threads;                       /* as sluice_context_create */
  const char* device;                /* "cpu" (also NULL), "cuda", "cuda:N"; "auto": a Hopper GPU, else the CPU */
  const sluice_model_options* model; /* NULL: all defaults */
  /* While weights are loaded, by create and by update_weights, which wait for it; on any thread. NULL: none. */
  sluice_log_fn log;
  sluice_progress_fn progress;
  void* user;
  /* 0 is each one's default. */
  int64_t context_length; /* the longest prompt with its answer, in tokens: the model's */
  int max_running;        /* answers that are worked on at once: 32 */
  int max_queued;         /* answers that may wait: 256; a call is taken whole while fewer wait */
  int64_t prefill_chunk;  /* prompt tokens per step: 512 */
  int64_t cache_tokens;   /* tokens of keys and values: as many as max_running contexts, at most 65536 or one context */
  int64_t block_size;     /* tokens that the prefix cache shares at a time: 64 */
  int no_prefix_cache;    /* 1: no prefix is found again */
  int state_snapshots;    /* states of recurrent layers (Mamba) kept for the prefix cache: 16; -1: none */
  int speculative_steps;  /* drafts per step from the model's own head: none; see sluice_generate_options */
} sluice_engine_options;

/* options NULL: all defaults. */
SLUICE_API sluice_status sluice_engine_create(const char* folder, const sluice_engine_options* options,
                                              sluice_engine** out);
/* Ends what runs: its streams get last events that say cancelled. */
SLUICE_API void sluice_engine_destroy(sluice_engine* engine);

typedef struct sluice_engine_info {
  size_t struct_size;
  int64_t context_length, cache_tokens, cache_bytes;
  int max_running, max_queued;
  int64_t running, queued; /* answers, now */
  int64_t weight_updates;  /* how often the weights were replaced */
} sluice_engine_info;
SLUICE_API sluice_status sluice_engine_get_info(const sluice_engine* engine, sluice_engine_info* out);
/* As the functions of a model. */
SLUICE_API sluice_status sluice_engine_get_model_info(const sluice_engine* engine, sluice_model_info* out);
SLUICE_API sluice_status sluice_engine_encode(const sluice_engine* engine, const char* text, size_t bytes, int32_t* ids,
                                              size_t capacity, size_t* count);
SLUICE_API sluice_status sluice_engine_decode(const sluice_engine* engine, const int32_t* ids, size_t count,
                                              int skip_special_tokens, char* buffer, size_t size, size_t* needed);
/* The ids of a chat by the checkpoint's template. messages: a JSON array of objects with role and content. variables: a
 * JSON object of further variables of the template ("tools", "enable_thinking"), or NULL. Special tokens that a message
 * spells out are plain text. generation_prompt: 1 opens the assistant's message. Ids as sluice_model_encode. */
SLUICE_API sluice_status sluice_engine_encode_chat(const sluice_engine* engine, const char* messages,
                                                   const char* variables, int generation_prompt, int32_t* ids,
                                                   size_t capacity, size_t* count);

/* What the text of an answer must be. An integer, as sluice_dtype. */
typedef int32_t sluice_grammar;
enum {
  SLUICE_GRAMMAR_NONE = 0,
  SLUICE_GRAMMAR_JSON_SCHEMA = 1,
  SLUICE_GRAMMAR_REGEX = 2,         /* the whole text matches */
  SLUICE_GRAMMAR_EBNF = 3,          /* as llama.cpp writes it; the first rule is root */
  SLUICE_GRAMMAR_STRUCTURAL_TAG = 4 /* xgrammar's JSON: free text with structured parts between tags */
};

typedef struct sluice_request {
  size_t struct_size;
  const int32_t* prompt; /* at least one id */
  size_t prompt_count;
  int64_t n;              /* answers to this prompt; 0 is read as 1 */
  int64_t max_new_tokens; /* 0: to the end of the context */
  int64_t min_new_tokens; /* before them nothing ends the answer */
  int score_only;         /* 1: no new tokens: the prompt is read, and with prompt_logprobs scored */
  double temperature;     /* 0: greedy */
  int64_t top_k;          /* 0: all */
  double top_p;           /* 0 is read as 1 */
  double min_p;
  double repetition_penalty; /* 0 is read as 1 */
  double frequency_penalty, presence_penalty;
  uint64_t seed; /* with equal seeds the same text, whatever else runs (sluice_model_info, row_invariant) */
  const int32_t* bias_tokens; /* with bias_values[i] added to the logit of bias_tokens[i] */
  const float* bias_values;
  size_t bias_count;
  const char* const* stop; /* texts that end an answer, each with a final zero */
  size_t stop_count;
  const int32_t* stop_tokens; /* beside the model's own */
  size_t stop_token_count;
  int ignore_eos;                /* 1: the model's end tokens do not end the answer */
  int include_stop;              /* 1: what ended the answer stays in the text */
  int keep_special_tokens;       /* 1: in the text */
  int logprobs;                  /* 1: of each new token, before penalties and temperature */
  int top_logprobs;              /* number of the most likely tokens to report, also for the prompt */
  const int32_t* logprob_tokens; /* tokens to report, also for the prompt */
  size_t logprob_token_count;
  int prompt_logprobs; /* 1: of the prompt's tokens from position prompt_logprobs_from on; position 0 has none */
  int64_t prompt_logprobs_from;
  sluice_grammar grammar_kind;
  const char* grammar; /* the schema, pattern or grammar; compiled by the call, and kept for the next that has it */
} sluice_request;

typedef struct sluice_logprob {
  int32_t token;
  float logprob; /* natural logarithm */
} sluice_logprob;

typedef struct sluice_token_logprobs {
  sluice_logprob chosen;
  const sluice_logprob* top; /* the most likely first, ties by id */
  size_t top_count;
  const sluice_logprob* asked; /* of logprob_tokens, in their order */
  size_t asked_count;
} sluice_token_logprobs;

/* An integer, as sluice_dtype. */
typedef int32_t sluice_finish;
enum {
  SLUICE_FINISH_NONE = 0,      /* more will come */
  SLUICE_FINISH_STOP = 1,      /* a stop token or string */
  SLUICE_FINISH_LENGTH = 2,    /* max_new_tokens, or the context is full */
  SLUICE_FINISH_CANCELLED = 3, /* by sluice_stream_cancel, an update of the weights, or the engine's end */
  SLUICE_FINISH_TIMED_OUT = 4, /* a limit of time passed; `error` says which */
  SLUICE_FINISH_ERROR = 5      /* `error` says what went wrong */
};

/* What came of one answer since its last event. Texts and tokens of its events one after the other are the answer. */
typedef struct sluice_event {
  size_t struct_size;
  size_t request; /* index of the request in its call */
  int choice;     /* 0 to n - 1 */
  const int32_t* tokens;
  size_t token_count; /* the stop token and a stop string's tokens included */
  const char* text;   /* whole characters, with a final zero */
  size_t text_bytes;
  const sluice_token_logprobs* logprobs; /* one per token when they were asked for */
  size_t logprob_count;
  const sluice_token_logprobs* prompt_logprobs; /* before the first token; of choice 0 */
  size_t prompt_logprob_count;
  sluice_finish finish;    /* of exactly one event of an answer, the last, not NONE */
  int32_t stop_token;      /* what ended it, or -1 */
  const char* stop_string; /* what ended it, or NULL */
  const char* error;       /* or NULL */
  /* Complete in the last event; the first two are right from the first token on. */
  int64_t prompt_tokens, cached_tokens; /* cached: of the prompt, found in the prefix cache */
  int64_t completion_tokens;
  int64_t drafted, accepted, verify_rounds; /* tokens guessed ahead, and right; steps that checked some */
  int64_t preemptions;
  double queue_seconds, first_token_seconds, total_seconds;
  int64_t weight_updates; /* of the engine, when the last token was made */
} sluice_event;

/* The answers to the requests of one call, read by one thread at a time. */
typedef struct sluice_stream sluice_stream;

/* All requests or none. SLUICE_BUSY: max_queued answers wait already. wake_fd: 0, or a non-blocking descriptor (an
 * eventfd, a pipe) that gets 8 bytes, the integer 1, when there is something to read: for event loops. It stays open
 * until the stream is destroyed. Nothing of the requests is needed after the call. */
SLUICE_API sluice_status sluice_engine_submit(sluice_engine* engine, const sluice_request* requests, size_t count,
                                              int wake_fd, sluice_stream** out);
/* Waits at most timeout_ms for the next event. *state: SLUICE_STREAM_EVENT, it is in *out, whose pointers are valid
 * until the next call with this stream; SLUICE_STREAM_WAITING, none has come; SLUICE_STREAM_DONE, all have been read.
 */
enum { SLUICE_STREAM_WAITING = 0, SLUICE_STREAM_EVENT = 1, SLUICE_STREAM_DONE = 2 };
SLUICE_API sluice_status sluice_stream_next(sluice_stream* stream, int64_t timeout_ms, sluice_event* out,
                                            int32_t* state);
/* Ends what is unfinished, of all requests; returns at once, and the last events say cancelled. */
SLUICE_API void sluice_stream_cancel(sluice_stream* stream);
/* Cancels what is unfinished, too. */
SLUICE_API void sluice_stream_destroy(sluice_stream* stream);

/* Forgets every cached prefix that no request uses. */
SLUICE_API sluice_status sluice_engine_flush_cache(sluice_engine* engine);
/* Holds the engine between two steps, for an update of the weights; requests are taken and wait. What runs is cancelled
 * (SLUICE_PAUSE_ABORT), waits again and is computed anew afterwards (_RETRACT), or keeps its keys and values and goes
 * on
 * (_IN_PLACE). */
typedef int32_t sluice_pause;
enum { SLUICE_PAUSE_ABORT = 0, SLUICE_PAUSE_RETRACT = 1, SLUICE_PAUSE_IN_PLACE = 2 };
SLUICE_API sluice_status sluice_engine_pause(sluice_engine* engine, sluice_pause mode);
SLUICE_API sluice_status sluice_engine_continue(sluice_engine* engine);
/* All calls that replace weights do so between two steps, and forget cached prefixes. What runs is cancelled, but in an
 * engine that is paused it goes on with the new weights, unless `abort` is 1. They need memory for both. After an error
 * the old weights stay, all of them.
 *
 * The weights of another checkpoint of the same model. */
SLUICE_API sluice_status sluice_engine_update_weights(sluice_engine* engine, const char* folder);

/* A tensor in host memory, as the checkpoint has it: its name, its type, its shape, row by row without gaps. */
typedef struct sluice_tensor {
  size_t struct_size;
  const char* name;
  const char* dtype; /* "bfloat16", "float32", "float16", "float8_e4m3fn", "float8_e8m0fnu", "uint8", "int8", "int16",
                        "int32", "int64", "bool", "float64" */
  const int64_t* shape; /* [rank] */
  size_t rank;
  const void* data;
} sluice_tensor;
/* Some tensors of the checkpoint, of its types and shapes; all of them or none. In an engine with
 * sluice_model_options.quantization they are quantised here, to the bits of the loader. Copied: the caller's memory is
 * free after the call. Between begin_update and end_update tensors are only kept, and end_update puts all of them in
 * place at once. SLUICE_BUSY while the weights are released. */
SLUICE_API sluice_status sluice_engine_update_tensors(sluice_engine* engine, const sluice_tensor* tensors, size_t count,
                                                      int abort);
SLUICE_API sluice_status sluice_engine_begin_update(sluice_engine* engine);
SLUICE_API sluice_status sluice_engine_end_update(sluice_engine* engine, int abort);

/* Gives memory back to the system for a while: the weights, the cache of keys and values, or both with |. Nothing may
 * run: SLUICE_BUSY. Weights come back from the checkpoint's files. Until all is back, and every tensor that
 * sluice_engine_update_tensors had brought has been brought again, submit gives SLUICE_BUSY. */
typedef int32_t sluice_memory;
enum { SLUICE_MEMORY_WEIGHTS = 1, SLUICE_MEMORY_KV_CACHE = 2 };
SLUICE_API sluice_status sluice_engine_release_memory(sluice_engine* engine, sluice_memory memory);
SLUICE_API sluice_status sluice_engine_resume_memory(sluice_engine* engine, sluice_memory memory);

/* The tensors that the running weights were made of, in the order of their names; later updates do not change them.
 * SLUICE_BAD_FILE: a file of the checkpoint was written to since it was loaded. */
typedef struct sluice_weights sluice_weights;
SLUICE_API sluice_status sluice_engine_get_weights(const sluice_engine* engine, sluice_weights** out);
SLUICE_API void sluice_weights_destroy(sluice_weights* weights);
SLUICE_API sluice_status sluice_weights_count(const sluice_weights* weights, size_t* out);
/* SLUICE_NOT_FOUND: no tensor has this name. */
SLUICE_API sluice_status sluice_weights_find(const sluice_weights* weights, const char* name, size_t* index);
/* The pointers are valid until the next such call and the weights' end; data may be a view of the file. */
SLUICE_API sluice_status sluice_weights_get(sluice_weights* weights, size_t index, sluice_tensor* out);
/* The SHA-256 of its bytes in hexadecimal, 65 bytes with the final zero. */
SLUICE_API sluice_status sluice_weights_checksum(const sluice_weights* weights, size_t index, char* buffer,
                                                 size_t size);
/* `count` elements from `first` on, in the order of their bytes; exact but for integers beyond 2^53. */
SLUICE_API sluice_status sluice_weights_values(const sluice_weights* weights, size_t index, int64_t first,
                                               int64_t count, double* values);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_H */
