// SPDX-License-Identifier: Apache-2.0
// In a build without FlashInfer's headers (cmake/FlashInfer.cmake): Sluice's own kernels compute everything.
#include "base/error.h"
#include "kernels/sm90/flashinfer/expanded.h"
#include "kernels/sm90/flashinfer/kernels.h"
#include "kernels/sm90/flashinfer/latent.h"

namespace sluice::sm90 {

namespace {
[[noreturn]] void absent() { fail(ErrorCode::internal, "this build has no FlashInfer kernels"); }
}  // namespace

bool has_flashinfer() { return false; }
void allow_flash() {}
void launch_flash(const FlashArgs&, void*) { absent(); }
void allow_latent() {}
void launch_latent(const LatentArgs&, void*) { absent(); }
void allow_expanded() {}
void launch_expanded(const ExpandedArgs&, void*) { absent(); }

}  // namespace sluice::sm90
