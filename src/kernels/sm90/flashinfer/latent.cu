// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/flashinfer/latent.h"

#include <flashinfer/attention/mla_hopper.cuh>

#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

namespace fi = flashinfer;
using Bf16 = __nv_bfloat16;
using Params = fi::MLAParams<Bf16, Bf16, Bf16, int32_t>;
// Where an item has one row, which sees all positions up to LatentWork::last, not the causal form: that takes heads to
// be a divisor of kLatentRows.
template <bool kCausal>
using Traits = fi::mla::hopper::HopperKernelTraits<kCausal, /*NUM_STAGES=*/2, kLatent, kLatentRope, kLatentRows,
                                                   kLatentTile, Bf16, Bf16, Bf16, int32_t>;
constexpr int kSharedBytes = sizeof(Traits<false>::SharedStorage);
template <bool kCausal>
constexpr auto kernel() {
  return fi::mla::hopper::BatchMLAPageAttentionHopperKernel<Traits<kCausal>, Params>;
}

}  // namespace

void allow_latent() {
  allow_shared_memory(kernel<false>(), kSharedBytes);
  allow_shared_memory(kernel<true>(), kSharedBytes);
}

void launch_latent(const LatentArgs& a, void* stream) {
  Params p{};
  p.q_nope = static_cast<Bf16*>(const_cast<void*>(a.q));
  p.q_pe = p.q_nope + kLatent;
  p.ckv = static_cast<Bf16*>(const_cast<void*>(a.pages));
  p.kpe = p.ckv + kLatent;
  p.partial_o = static_cast<Bf16*>(a.partial);
  p.partial_lse = a.partial_stats;
  p.final_o = static_cast<Bf16*>(a.out);
  p.final_lse = nullptr;
  const LatentWork& w = a.work;
  p.work_indptr = w.begin;
  p.q_indptr = w.row;
  p.kv_indptr = w.first_block;
  p.partial_indptr = w.partial;
  p.q_len = w.rows;
  p.kv_len = w.positions;
  p.q_start = w.first_head;
  p.kv_start = w.first;
  p.kv_end = w.last;
  p.merge_packed_offset_start = p.merge_packed_offset_end = w.none;
  p.merge_partial_packed_offset_start = p.merge_partial_packed_offset_end = p.merge_partial_stride = w.none;
  p.kv_indices = const_cast<int32_t*>(a.blocks);
  p.block_size = fi::uint_fastdiv(static_cast<uint32_t>(a.block_size));
  p.num_heads = fi::uint_fastdiv(static_cast<uint32_t>(a.heads));
  p.q_nope_stride_n = p.q_pe_stride_n = static_cast<uint32_t>(a.q_stride);
  p.q_nope_stride_h = p.q_pe_stride_h = kLatentCached;
  p.ckv_stride_page = p.kpe_stride_page = static_cast<uint32_t>(a.block_size) * kLatentCached;
  p.ckv_stride_n = p.kpe_stride_n = kLatentCached;
  p.o_stride_n = static_cast<uint32_t>(a.out_stride);
  p.o_stride_h = kLatent;
  p.sm_scale = a.scale;
  p.return_lse_base_on_e = false;
  // Between its two stages, of which only the first has work here, all blocks wait for each other.
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, static_cast<unsigned>(a.grid));
  config.blockDim = dim3(Traits<false>::NUM_THREADS);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, a.causal ? kernel<true>() : kernel<false>(), p), "cudaLaunchKernelEx");
}

}  // namespace sluice::sm90
