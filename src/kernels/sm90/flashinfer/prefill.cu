// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/flashinfer/prefill_kernel.cuh"

namespace sluice::sm90 {

namespace {
using Traits = FlashTraits<false>;
using Mainloop = fi::SparseCollectiveMainloop<AttentionScale, Traits, /*CAUSAL=*/true>;
using Kernel = FlashKernel<Traits, Mainloop>;
}  // namespace

bool has_flashinfer() { return true; }

void allow_flash() {
  Kernel::allow();
  allow_flash_pages();
}

void launch_flash(const FlashArgs& a, void* stream) {
  if (copies_flash_pages(a.block_size)) return launch_flash_pages(a, stream);
  const int64_t head_stride = int64_t{a.block_size} * kFlashWidth, page_stride = head_stride * a.key_heads;
  const auto pages = fi::get_gmem_layout(0, a.key_heads, kFlashWidth, kFlashWidth, head_stride);
  Kernel::run(a, a.heads / a.key_heads,
              Mainloop::to_underlying_arguments({
                  static_cast<const Bf16*>(a.q),
                  query_layout(a),
                  static_cast<const Bf16*>(a.keys),
                  pages,
                  static_cast<const Bf16*>(a.values),
                  pages,
                  a.blocks,
                  /*window_left=*/-1,
                  page_stride,
                  page_stride,
                  static_cast<uint32_t>(a.block_size),
                  {a.scale},
              }),
              stream);
}

}  // namespace sluice::sm90
