/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: matrices in a number format. */
#ifndef SLUICE_C_FORMATS_H
#define SLUICE_C_FORMATS_H

#include "sluice/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_FORMATS_H */
