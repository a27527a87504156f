/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: layers, quantisers and dense matrices on device pointers, in stream order.
 *
 * For engines that run on an NVIDIA Hopper GPU (H100, H200). Every pointer of a call is device memory, every call is
 * ordered in the given stream and returns at once: nothing is allocated, waited for or read back, so a call may be
 * captured in a CUDA graph. A library without CUDA, or a machine without such a device, gives SLUICE_UNSUPPORTED.
 * An object belongs to its device; several streams may use one object at the same time, each with its own workspace. */
#ifndef SLUICE_C_CUDA_H
#define SLUICE_C_CUDA_H

#include "sluice/c/gemm.h"
#include "sluice/c/moe.h"
#include "sluice/c/quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* With programmatic dependent launch the library's kernels let the kernel after them begin before they have ended, and
 * wait for all kernels ahead of them. A kernel of yours that is launched with that attribute beside them must call
 * cudaGridDependencySynchronize() in at least one thread, and before it reads or writes what kernels ahead of it use.
 */
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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_CUDA_H */
