/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: one dense matrix on the host. */
#ifndef SLUICE_C_GEMM_H
#define SLUICE_C_GEMM_H

#include "sluice/c/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* The same with the prepared weights in memory that the caller owns: `memory_size` bytes, at least
 * sluice_gemm_prepared_bytes(), aligned to 64 bytes. A refit writes it again, at the same addresses; the caller frees
 * it after the matrix is destroyed. The bias is copied elsewhere. For the bytes options.w, input_scale and bias are not
 * read. */
SLUICE_API sluice_status sluice_gemm_prepared_bytes(const sluice_gemm_options* options, int64_t* out);
SLUICE_API sluice_status sluice_gemm_prepare_into(sluice_context* context, const sluice_gemm_options* options,
                                                  void* memory, int64_t memory_size, sluice_gemm** out);
/* Another matrix of the same format and shape, input scale (0 is read as 1) and bias (given again, or absent again)
 * into the same memory. Not while a run is under way. */
SLUICE_API sluice_status sluice_gemm_refit(sluice_gemm* gemm, const sluice_matrices* w, float input_scale,
                                           const float* bias);
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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_GEMM_H */
