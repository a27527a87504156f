// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/flashinfer/prefill_kernel.cuh"

namespace sluice::sm90 {

namespace {
using Traits = FlashTraits<true>;
using Mainloop = PageMainloop<Traits>;
using Kernel = FlashKernel<Traits, Mainloop>;
}  // namespace

void allow_flash_pages() { Kernel::allow(); }

void launch_flash_pages(const FlashArgs& a, void* stream) {
  Kernel::run(a, a.heads / a.key_heads,
              Mainloop::to_underlying_arguments({static_cast<const Bf16*>(a.q),
                                                 query_layout(a),
                                                 static_cast<const Bf16*>(a.keys),
                                                 static_cast<const Bf16*>(a.values),
                                                 a.blocks,
                                                 a.key_heads,
                                                 a.block_size,
                                                 {a.scale}}),
              stream);
}

}  // namespace sluice::sm90
