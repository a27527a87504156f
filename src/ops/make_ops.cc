// SPDX-License-Identifier: Apache-2.0
// THE LIST of devices that run models, and what each one makes.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/linear.h"
#include "ops/device_stage.h"
#include "ops/linear.h"
#include "ops/ops.h"
#if defined(SLUICE_WITH_CUDA)
#include "ops/sm90/device_stage.h"
#include "ops/sm90/linear.h"
#include "ops/sm90/sm90_ops.h"
#endif

namespace sluice::ops {

namespace {
struct DeviceKind {
  DeviceId::Kind kind;
  std::unique_ptr<Ops> (*ops)(Context&);
  std::unique_ptr<Linear> (*linear)(Context&, std::span<const weights::QuantTensor>, const Tensor&,
                                    const LinearOptions&);
  std::unique_ptr<Linear> (*float_linear)(Context&, const Tensor&, const Tensor&);
  std::unique_ptr<weights::DeviceStage> (*stage)(Context&);
  OpsTraits traits;
};

const DeviceKind kDevices[] = {
    {DeviceId::Kind::cpu,
     [](Context& ctx) -> std::unique_ptr<Ops> { return std::make_unique<cpu::CpuOps>(ctx); },
     [](Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias, const LinearOptions& o)
         -> std::unique_ptr<Linear> { return std::make_unique<cpu::CpuLinear>(ctx, parts, bias, o); },
     [](Context& ctx, const Tensor& weight, const Tensor& bias) -> std::unique_ptr<Linear> {
       return std::make_unique<cpu::CpuFloatLinear>(ctx, weight, bias);
     },
     [](Context&) -> std::unique_ptr<weights::DeviceStage> { return nullptr; },
     {.row_invariant = true, .prompt_rows = 512}},
#if defined(SLUICE_WITH_CUDA)
    {DeviceId::Kind::cuda,
     [](Context& ctx) -> std::unique_ptr<Ops> { return std::make_unique<sm90::Sm90Ops>(ctx); },
     sm90::make_sm90_linear,
     [](Context& ctx, const Tensor& weight, const Tensor& bias) -> std::unique_ptr<Linear> {
       return std::make_unique<sm90::Sm90FloatLinear>(ctx, weight, bias);
     },
     [](Context& ctx) -> std::unique_ptr<weights::DeviceStage> { return std::make_unique<sm90::Sm90Stage>(ctx); },
     {.row_invariant = false, .prompt_rows = 8192}},
#endif
};

const DeviceKind& kind_of(DeviceId id) {
  for (const DeviceKind& d : kDevices)
    if (d.kind == id.kind) return d;
  fail(ErrorCode::unsupported, "this build runs no model operations on {}; accepted: cpu", to_string(id));
}
const DeviceKind& kind_of(const Context& ctx) { return kind_of(ctx.device().id()); }
}  // namespace

OpsTraits traits_of(DeviceId device) { return kind_of(device).traits; }

std::unique_ptr<Ops> make_ops(Context& ctx) { return kind_of(ctx).ops(ctx); }

std::unique_ptr<Linear> make_linear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias,
                                    const LinearOptions& options) {
  return kind_of(ctx).linear(ctx, parts, bias, options);
}

std::unique_ptr<Linear> make_float_linear(Context& ctx, const Tensor& weight, const Tensor& bias) {
  return kind_of(ctx).float_linear(ctx, weight, bias);
}

std::unique_ptr<weights::DeviceStage> make_device_stage(Context& ctx) { return kind_of(ctx).stage(ctx); }

}  // namespace sluice::ops
