// SPDX-License-Identifier: Apache-2.0
// HD marks the small functions that CPU loops and CUDA kernels share (formats, activations, routing).
#pragma once

#if defined(__CUDACC__)
#define HD __host__ __device__
#else
#define HD
#endif
