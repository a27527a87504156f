// SPDX-License-Identifier: Apache-2.0
#include "moe/backend_sm90.h"

#if defined(SLUICE_WITH_CUDA)
#include "device/cuda.h"
#include "kernels/sm90/fused_moe/fused_moe.h"
#include "moe/check.h"
#include "moe/staged_layer.h"
#endif

namespace sluice::moe {

namespace {

#if defined(SLUICE_WITH_CUDA)

sm90::MoeCall call_of(const MoeSpec& spec, const MoeArgs& args) {
  sm90::MoeCall call;
  call.tokens = args.tokens;
  call.num_tokens = args.num_tokens;
  call.hidden = args.hidden;
  call.logits = spec.routed ? nullptr : args.logits;
  call.logits_bf16 = args.logits_dtype == DType::bf16;
  call.bias = args.bias;
  call.bias_bf16 = args.bias_dtype == DType::bf16;
  call.topk_ids = args.topk_ids;
  call.topk_weights = args.topk_weights;
  call.topk_weights_bf16 = args.topk_weights_dtype == DType::bf16;
  call.output = args.output;
  call.finalize = args.finalize;
  call.workspace = args.workspace;
  call.workspace_size = args.workspace_size;
  call.chosen_ids = args.chosen_ids;
  call.chosen_weights = args.chosen_weights;
  call.pdl = args.pdl;
  call.follows_own = args.follows_own;
  return call;
}

void check_aligned(const char* what, const void* pointer) {
  check(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, "{} is not aligned to 16 bytes", what);
}

class Sm90Layer : public MoeLayer {
 public:
  // On the current device.
  Sm90Layer(const MoeSpec& spec, const weights::ExpertWeights& w, void* stream, const PreparedMemory& memory)
      : moe_(spec, 0, {memory.data, memory.size, stream}) {
    moe_.set_weights(w, stream);
  }
  const MoeSpec& spec() const override { return moe_.spec(); }
  DeviceId device() const override { return {DeviceId::Kind::cuda, moe_.device()}; }
  int64_t weight_bytes() const override { return moe_.weight_bytes(); }
  int64_t workspace_bytes(int64_t tokens) const override {
    const int64_t most = INT32_MAX / spec().top_k;  // the kernels count pairs of tokens and experts in 32 bits
    check(tokens >= 0 && tokens <= most, "tokens is {}; accepted: 0 to {}", tokens, most);
    return moe_.workspace_bytes(tokens);
  }
  // Else the tile and the number of splits along K, and so the order of float32 sums, follow the number of tokens.
  bool row_invariant() const override { return moe_.spec().deterministic; }
  bool finalize_can_wait(int64_t tokens) const override { return moe_.finalize_can_wait(tokens); }
  void run(Context& ctx, const MoeArgs& args) const override {
    check_args(moe_.spec(), args);
    check_queue(ctx);
    check_workspace(args.workspace, args.workspace_size, args.tokens, workspace_bytes(args.tokens), Device::kAlignment);
    check_aligned("hidden", args.hidden);
    check_aligned("output", args.output);
    moe_.run(call_of(moe_.spec(), args), ctx.queue.stream());
  }
  void refit(Context& ctx, const weights::ExpertWeights& w) override {
    check_weights(moe_.spec(), w);
    check_queue(ctx);
    moe_.set_weights(w, ctx.queue.stream());
  }

 private:
  void check_queue(const Context& ctx) const {
    const DeviceId id = ctx.device().id();
    check(id == device(), "the queue is of {}, the layer of {}", to_string(id), to_string(device()));
  }

  sm90::FusedMoe moe_;
};

#endif

class Sm90Backend : public Backend {
 public:
  std::string_view name() const override { return "sm90"; }

#if defined(SLUICE_WITH_CUDA)
  Support supports(const MoeSpec& spec) const override {
    Support s = sm90::supports_spec(spec);
    if (!s) return s;
    s.reason = sm90::device_problem();
    constexpr int kMultiprocessors = 132;  // of an H200, so that explain answers where there is no GPU
    s.choice = sm90::explain_choice(spec, s ? sm90::multiprocessors() : kMultiprocessors);
    return s;
  }

  std::optional<int64_t> prepared_bytes(const MoeSpec& spec) const override {
    check_spec(spec);
    return sm90::moe_memory(spec).bytes;
  }

  bool takes_weights_on(DeviceId) const override { return true; }

  std::unique_ptr<MoeLayer> prepare(Context& ctx, const MoeSpec& spec, const weights::ExpertWeights& w,
                                    const PrepareOptions& options) const override {
    check_spec(spec);
    check_weights(spec, w);
    const bool staged = ctx.device().id().is_host();
    if (staged) check_no_memory(name(), options);  // which would be the host's
    if (const std::string problem = sm90::device_problem(); staged && !problem.empty())
      fail(ErrorCode::unsupported, "sm90: {}", problem);
    const sm90::DeviceGuard guard(staged ? sm90::current_device() : ctx.device().id().index);
    if (!staged) return std::make_unique<Sm90Layer>(spec, w, ctx.queue.stream(), options.memory);
    std::shared_ptr<Staging> own;
    std::shared_ptr<Staging>& staging = options.staging != nullptr ? *options.staging : own;
    if (!staging) staging = std::make_shared<Staging>(make_cuda_device(sm90::current_device()));
    auto layer = std::make_unique<Sm90Layer>(spec, w, staging->queue().stream(), PreparedMemory{});
    return std::make_unique<StagedLayer>(std::move(layer), staging);
  }

 private:
  static void check_spec(const MoeSpec& spec) {
    validate(spec);
    if (const Support s = sm90::supports_spec(spec); !s) fail(ErrorCode::unsupported, "sm90: {}", s.reason);
  }
#else
  Support supports(const MoeSpec&) const override { return Support::no("this library was built without CUDA"); }

  std::unique_ptr<MoeLayer> prepare(Context&, const MoeSpec& spec, const weights::ExpertWeights&,
                                    const PrepareOptions&) const override {
    fail(ErrorCode::unsupported, "sm90: {}", supports(spec).reason);
  }
#endif
};

}  // namespace

std::unique_ptr<Backend> make_sm90_backend() { return std::make_unique<Sm90Backend>(); }

}  // namespace sluice::moe
