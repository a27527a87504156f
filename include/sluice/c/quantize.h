/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: weights and rows to codes and scales, and back, on the host. */
#ifndef SLUICE_C_QUANTIZE_H
#define SLUICE_C_QUANTIZE_H

#include "sluice/c/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* NVFP4 with each block rounded twice, by the scale that maps its largest value to 6 and by 1.5 times that scale, to 4;
 * the second is kept where the sum of the errors of its columns is strictly smaller. docs/numerics.md, Four over six.
 */
typedef struct sluice_four_over_six {
  size_t struct_size;
  const char* error; /* "mae" (also NULL): sums of absolute errors, or "mse": of squared ones */
  int e4m3_max; /* 448 (also 0) or 256. nvfp4_token: a row's factor is amax / (e4m3_max * 6). nvfp4: input_scale is made
                   so by whoever gives it. */
  int fast_error; /* 1: errors before the tensor's or row's factor is applied */
} sluice_four_over_six;

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
  int encodes; /* 1, with nvfp4: input_scale is the encode factor, 448 * 6 / amax, which others call global scale */
  const sluice_four_over_six* four_over_six; /* with nvfp4 and nvfp4_token; NULL: every block by the usual scale */
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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_QUANTIZE_H */
