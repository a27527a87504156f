// SPDX-License-Identifier: Apache-2.0
// One fused layer over raw host pointers.
#include <memory>
#include <string>

#include "capi/context.h"
#include "capi/status.h"
#include "capi/view.h"
#include "moe/select.h"

using namespace sluice;
using capi::guard;
using capi::read_args;
using capi::read_struct;
using capi::required;
using capi::view_weights;

struct sluice_moe {
  std::shared_ptr<capi::SharedContext> shared;
  std::unique_ptr<moe::MoeLayer> layer;
};

namespace {

std::string explain(const MoeSpec& spec) {
  std::string text;
  bool chosen = false;
  for (const auto& [backend, support] : moe::ask_backends(spec)) {
    const std::string_view verdict = !support ? "no" : chosen ? "usable" : "chosen";
    chosen = chosen || support;
    text += fmt::format("{}: {}", backend->name(), verdict);
    if (!support.reason.empty()) text += fmt::format(" ({})", support.reason);
    if (!support.choice.empty()) text += fmt::format(" ({})", support.choice);
    text += '\n';
  }
  return text;
}

sluice_moe* create(sluice_context* context, const char* spec_line, const char* backend,
                   const sluice_moe_weights* weights, const moe::PreparedMemory& memory) {
  const MoeSpec spec = parse_moe_spec(&required(spec_line, "spec"));
  validate(spec);
  auto made = std::make_unique<sluice_moe>();
  made->shared = required(context, "context").shared;
  const auto viewed = view_weights(spec, weights);
  made->shared->use(
      [&](Context& ctx) { made->layer = moe::select(spec, backend).prepare(ctx, spec, viewed, {.memory = memory}); });
  return made.release();
}

}  // namespace

extern "C" {

sluice_status sluice_moe_create(sluice_context* context, const char* spec, const char* backend,
                                const sluice_moe_weights* weights, sluice_moe** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    *out = create(context, spec, &required(backend, "backend"), weights, {});
  });
}

sluice_status sluice_moe_prepared_bytes(const char* spec_line, int64_t* out) {
  return guard([&] {
    const MoeSpec spec = parse_moe_spec(&required(spec_line, "spec"));
    required(out, "out") = moe::select(spec, "cpu").prepared_bytes(spec).value();
  });
}

sluice_status sluice_moe_prepare_into(sluice_context* context, const char* spec, const sluice_moe_weights* weights,
                                      void* memory, int64_t memory_size, sluice_moe** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    *out = create(context, spec, "cpu", weights,
                  {.data = &required(static_cast<char*>(memory), "memory"), .size = memory_size});
  });
}

sluice_status sluice_moe_refit(sluice_moe* moe, const sluice_moe_weights* weights) {
  return guard([&] {
    const auto viewed = view_weights(required(moe, "moe").layer->spec(), weights);
    moe->shared->use([&](Context& ctx) { moe->layer->refit(ctx, viewed); });
  });
}

void sluice_moe_destroy(sluice_moe* moe) { delete moe; }

sluice_status sluice_moe_workspace_bytes(const sluice_moe* moe, int64_t tokens, int64_t* out) {
  return guard([&] {
    check(tokens >= 0, "tokens is {}; it must be 0 or more", tokens);
    required(out, "out") = required(moe, "moe").layer->workspace_bytes(tokens);
  });
}

sluice_status sluice_moe_run(const sluice_moe* moe, const sluice_moe_args* given) {
  return guard([&] {
    required(moe, "moe");
    moe::MoeArgs args = read_args(given);
    Tensor own;
    if (args.workspace == nullptr && args.tokens > 0) {
      own = Tensor(DType::u8, {moe->layer->workspace_bytes(args.tokens)});
      args.workspace = own.data();
      args.workspace_size = own.bytes();
    }
    moe->shared->use([&](Context& ctx) { moe->layer->run(ctx, args); });
  });
}

sluice_status sluice_moe_explain(const char* spec_line, char* buffer, size_t size, size_t* needed) {
  return guard([&] {
    const MoeSpec spec = parse_moe_spec(&required(spec_line, "spec"));
    validate(spec);
    return capi::copy_text(explain(spec), buffer, size, needed);
  });
}
}
