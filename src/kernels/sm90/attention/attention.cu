// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/attention/attention_bf16.cuh"
#include "kernels/sm90/attention/attention_cluster.cuh"
#include "kernels/sm90/attention/attention_f32.cuh"
#include "kernels/sm90/attention/attention_tokens.cuh"
#include "kernels/sm90/batch_rows/chain_ring.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

template <int kWidth, class Page>
void launch_in_clusters(const AttentionArgs& a, Stream stream, bool pdl) {
  const dim3 blocks(static_cast<unsigned>(a.sequences), static_cast<unsigned>(a.shape.key_heads),
                    static_cast<unsigned>(a.plan.cluster));
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(kTokenThreads);
  config.dynamicSmemBytes = TokensShared<kWidth, Page, kClusterTiles>::bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = blocks.z;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = pdl ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, attention_cluster_kernel<kWidth, Page>, a), "cudaLaunchKernelEx");
}

template <int kWidth, class Page, int kTiles>
void launch_tokens(const AttentionArgs& a, Stream stream, bool pdl) {
  // The product after attention begins beside a block of it.
  static_assert(TokensShared<kWidth, Page, kTiles>::bytes + kSharedChainSmem + 2 * 1024 <= 228 * 1024);
  launch(attention_tokens_kernel<kWidth, Page, kTiles>, static_cast<unsigned>(a.plan.token_blocks), kTokenThreads,
         TokensShared<kWidth, Page, kTiles>::bytes, stream, pdl, a);
}

template <int kWidth, class Page>
void launch_of(const AttentionArgs& a, dim3 blocks, Stream stream, bool pdl) {
  if (a.plan.cluster > 1) return launch_in_clusters<kWidth, Page>(a, stream, pdl);
  if (a.plan.tiles)
    launch(attention_bf16_kernel<kWidth, Page>, blocks, kAttentionThreads, AttentionShared<kWidth, Page>::bytes, stream,
           pdl, a);
  if (a.plan.tokens)
    a.plan.token_tiles == 2 ? launch_tokens<kWidth, Page, 2>(a, stream, pdl)
                            : launch_tokens<kWidth, Page, 3>(a, stream, pdl);
  if (!a.plan.split()) return;
  const int64_t items = a.plan.partial_rows * a.shape.heads;
  const auto fold = [&](auto* kernel) {
    launch(kernel, static_cast<unsigned>(ceil_div<int64_t>(items, kAttentionThreads / kWidth)), kAttentionThreads, 0,
           stream, pdl, a);
  };
  a.plan.results <= kFewResults ? fold(attention_fold_kernel<kWidth, kFewResults>)
                                : fold(attention_fold_kernel<kWidth, 2 * kFewResults>);
}

template <class Page>
void launch_bf16(const AttentionArgs& a, dim3 blocks, Stream stream, bool pdl) {
  a.shape.key_width == 64 ? launch_of<64, Page>(a, blocks, stream, pdl) : launch_of<128, Page>(a, blocks, stream, pdl);
}

template <class Q>
void launch_f32(const AttentionArgs& a, dim3 blocks, Stream stream, bool pdl) {
  const int smem = static_cast<int>(f32_shared_bytes(a.shape, a.values == nullptr));
  if (a.pages_e4m3)
    launch(attention_f32_kernel<Q, uint8_t>, blocks, kF32Threads, smem, stream, pdl, a);
  else if (a.pages_f32)
    launch(attention_f32_kernel<Q, float>, blocks, kF32Threads, smem, stream, pdl, a);
  else
    launch(attention_f32_kernel<Q, bf16_t>, blocks, kF32Threads, smem, stream, pdl, a);
}

template <int kWidth, class Page>
void allow_of() {
  allow_shared_memory(attention_bf16_kernel<kWidth, Page>, AttentionShared<kWidth, Page>::bytes);
  allow_shared_memory(attention_tokens_kernel<kWidth, Page, 2>, TokensShared<kWidth, Page, 2>::bytes);
  allow_shared_memory(attention_tokens_kernel<kWidth, Page, 3>, TokensShared<kWidth, Page, 3>::bytes);
  auto* clusters = attention_cluster_kernel<kWidth, Page>;
  allow_shared_memory(clusters, TokensShared<kWidth, Page, kClusterTiles>::bytes);
  check_cuda(cudaFuncSetAttribute(clusters, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
}

}  // namespace

void allow_attention() {
  allow_of<64, bf16_t>();
  allow_of<64, uint8_t>();
  allow_of<128, bf16_t>();
  allow_of<128, uint8_t>();
  for (auto* kernel : {attention_f32_kernel<float, float>, attention_f32_kernel<float, bf16_t>,
                       attention_f32_kernel<float, uint8_t>, attention_f32_kernel<bf16_t, float>,
                       attention_f32_kernel<bf16_t, bf16_t>, attention_f32_kernel<bf16_t, uint8_t>})
    allow_shared_memory(kernel, kMaxSharedBytes);
}

void launch_attention(const AttentionArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0 || a.sequences == 0) return;
  const dim3 blocks(static_cast<unsigned>(a.plan.row_tiles), static_cast<unsigned>(a.shape.key_heads),
                    static_cast<unsigned>(a.plan.parts));
  if (a.plan.tensor_cores) {
    a.pages_e4m3 ? launch_bf16<uint8_t>(a, blocks, stream, pdl) : launch_bf16<bf16_t>(a, blocks, stream, pdl);
    return;
  }
  a.q.f32 ? launch_f32<float>(a, blocks, stream, pdl) : launch_f32<bf16_t>(a, blocks, stream, pdl);
}

}  // namespace sluice::sm90
