// SPDX-License-Identifier: Apache-2.0
// The operation over raw device pointers: calls in stream order, for engines that live on the GPU.
#include "capi/status.h"
#include "capi/view.h"
#include "device/cuda.h"
#include "moe/backends.h"

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

struct sluice_cuda_moe {
  std::unique_ptr<Device> device;
  std::unique_ptr<moe::MoeLayer> layer;
};

namespace {

const moe::Backend& sm90() {
  for (const auto& backend : moe::backends())
    if (backend->name() == "sm90") return *backend;
  fail(ErrorCode::internal, "the backend sm90 is not in the list");
}

// A context on the caller's stream for the length of a call.
class OnStream {
 public:
  OnStream(Device& device, void* stream)
      : pool_(1), queue_(make_cuda_queue(device, stream)), ctx_{.pool = pool_, .queue = *queue_} {}
  Context& ctx() { return ctx_; }

 private:
  ThreadPool pool_;
  std::unique_ptr<Queue> queue_;
  Context ctx_;
};

MoeSpec read_spec(const char* line) {
  MoeSpec spec = parse_moe_spec(&required(line, "spec"));
  validate(spec);
  return spec;
}

void make_moe(const char* spec_line, int device, const sluice_moe_weights* weights, const moe::PreparedMemory& memory,
              void* stream, sluice_cuda_moe** out) {
  required(out, "out") = nullptr;
  const MoeSpec spec = read_spec(spec_line);
  sm90().prepared_bytes(spec);  // refuses what no device runs, before one is asked for
  auto made = std::make_unique<sluice_cuda_moe>();
  made->device = make_cuda_device(device);
  OnStream on(*made->device, stream);
  made->layer = sm90().prepare(on.ctx(), spec, capi::view_weights(spec, weights), {memory, nullptr});
  *out = made.release();
}

}  // namespace

extern "C" {

sluice_status sluice_cuda_moe_create(const char* spec, int device, const sluice_moe_weights* weights, void* stream,
                                     sluice_cuda_moe** out) {
  return guard([&] { make_moe(spec, device, weights, {}, stream, out); });
}

sluice_status sluice_cuda_moe_prepared_bytes(const char* spec, int64_t* out) {
  return guard([&] {
    const std::optional<int64_t> bytes = sm90().prepared_bytes(read_spec(spec));
    if (!bytes) fail(ErrorCode::unsupported, "this library was built without CUDA");
    required(out, "out") = *bytes;
  });
}

sluice_status sluice_cuda_moe_prepare_into(const char* spec, int device, const sluice_moe_weights* weights,
                                           void* memory, int64_t memory_size, void* stream, sluice_cuda_moe** out) {
  return guard([&] {
    check(memory != nullptr, "memory is NULL; it must be given");
    make_moe(spec, device, weights, {memory, memory_size}, stream, out);
  });
}

sluice_status sluice_cuda_moe_refit(sluice_cuda_moe* moe, const sluice_moe_weights* weights, void* stream) {
  return guard([&] {
    sluice_cuda_moe& m = required(moe, "moe");
    OnStream on(*m.device, stream);
    m.layer->refit(on.ctx(), capi::view_weights(m.layer->spec(), weights));
  });
}

void sluice_cuda_moe_destroy(sluice_cuda_moe* moe) { delete moe; }

sluice_status sluice_cuda_moe_workspace_bytes(const sluice_cuda_moe* moe, int64_t tokens, int64_t* out) {
  return guard([&] { required(out, "out") = required(moe, "moe").layer->workspace_bytes(tokens); });
}

sluice_status sluice_cuda_moe_run(const sluice_cuda_moe* moe, const sluice_moe_args* args,
                                  const sluice_cuda_queue* queue) {
  return guard([&] {
    const sluice_cuda_moe& m = required(moe, "moe");
    const capi::CudaQueue q = capi::read_queue(queue);
    moe::MoeArgs call = capi::read_args(args);
    call.num_tokens = q.num_tokens;
    call.pdl = q.pdl;
    call.follows_own = false;  // it comes after a kernel of the caller's
    OnStream on(*m.device, q.stream);
    m.layer->run(on.ctx(), call);
  });
}
}
