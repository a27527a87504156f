// SPDX-License-Identifier: Apache-2.0
// Four neighbours at once, from and to float32 or bfloat16.
#pragma once

#include "kernels/sm90/elements.cuh"

namespace sluice::sm90 {

__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ float4 load4(const bf16_t* from) {
  const uint2 w = *reinterpret_cast<const uint2*>(from);
  return {__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u), __uint_as_float(w.y << 16),
          __uint_as_float(w.y & 0xffff0000u)};
}
__device__ __forceinline__ void store4(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ __forceinline__ void store4(bf16_t* to, float4 v) {
  *reinterpret_cast<uint2*>(to) = {ptx::cvt_bf16x2_f32(v.y, v.x), ptx::cvt_bf16x2_f32(v.w, v.z)};
}

}  // namespace sluice::sm90
