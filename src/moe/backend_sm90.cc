// SPDX-License-Identifier: Apache-2.0
#include "moe/backend_sm90.h"

#include <vector>

#if defined(SLUICE_WITH_CUDA)
#include "kernels/sm90/fused_moe/fused_moe.h"
#include "moe/check.h"
#endif

namespace sluice::moe {

namespace {

#if defined(SLUICE_WITH_CUDA)

class Sm90Layer : public MoeLayer {
 public:
  Sm90Layer(const MoeSpec& spec, const weights::ExpertWeights& w, const Sm90Options& options)
      : moe_(spec), options_(options) {
    moe_.set_weights(w, options.stream);
  }

  const MoeSpec& spec() const override { return moe_.spec(); }
  int64_t weight_bytes() const override { return moe_.weight_bytes(); }
  int64_t workspace_bytes(int64_t tokens) const override {
    return options_.host_memory ? 0 : moe_.workspace_bytes(tokens);
  }
  void refit(Context&, const weights::ExpertWeights& w) override {
    check_weights(moe_.spec(), w);
    moe_.set_weights(w, options_.stream);
  }

  void run(Context&, const MoeArgs& args) const override {
    check_args(moe_.spec(), args);
    sm90::MoeCall call;
    call.tokens = args.tokens;
    call.hidden = args.hidden;
    call.logits = moe_.spec().routed ? nullptr : args.logits;
    call.logits_bf16 = args.logits_dtype == DType::bf16;
    call.bias = args.bias;
    call.bias_bf16 = args.bias_dtype == DType::bf16;
    call.topk_ids = args.topk_ids;
    call.topk_weights = args.topk_weights;
    call.topk_weights_bf16 = args.topk_weights_dtype == DType::bf16;
    call.output = args.output;
    call.workspace = args.workspace;
    call.chosen_ids = args.chosen_ids;
    call.chosen_weights = args.chosen_weights;
    if (options_.host_memory)
      run_from_host(args, call);
    else
      moe_.run(call, options_.stream);
  }

 private:
  // Copies in, runs, copies out. Buffers live for the call only: this way is for tests and small models.
  void run_from_host(const MoeArgs& args, sm90::MoeCall& call) const {
    const MoeSpec& s = moe_.spec();
    const int64_t t = args.tokens, pairs = t * s.top_k, element = bytes_of(s.dtype);
    std::vector<sm90::DeviceBuffer> keep;
    const auto in = [&](const void*& pointer, int64_t bytes) {
      if (pointer == nullptr) return;
      keep.emplace_back(bytes);
      sm90::copy_to_device(keep.back().data(), pointer, bytes, options_.stream);
      pointer = keep.back().data();
    };
    const auto room = [&](int64_t bytes) {
      keep.emplace_back(bytes);
      return keep.back().data();
    };
    in(call.hidden, t * s.hidden * element);
    in(call.logits, t * s.experts * bytes_of(args.logits_dtype));
    in(call.bias, s.experts * bytes_of(args.bias_dtype));
    const void* ids = call.topk_ids;
    in(ids, pairs * 4);
    call.topk_ids = static_cast<const int32_t*>(ids);
    in(call.topk_weights, pairs * bytes_of(args.topk_weights_dtype));
    const int64_t out_bytes = (s.finalize ? t : pairs) * s.hidden * element;
    call.output = room(out_bytes);
    call.workspace = room(moe_.workspace_bytes(t));
    if (args.chosen_ids != nullptr) call.chosen_ids = static_cast<int32_t*>(room(pairs * 4));
    if (args.chosen_weights != nullptr) call.chosen_weights = static_cast<float*>(room(pairs * 4));
    moe_.run(call, options_.stream);
    sm90::copy_to_host(args.output, call.output, out_bytes, options_.stream);
    if (args.chosen_ids != nullptr) sm90::copy_to_host(args.chosen_ids, call.chosen_ids, pairs * 4, options_.stream);
    if (args.chosen_weights != nullptr)
      sm90::copy_to_host(args.chosen_weights, call.chosen_weights, pairs * 4, options_.stream);
    sm90::synchronize(options_.stream);
  }

  sm90::FusedMoe moe_;
  Sm90Options options_;
};

#endif

class Sm90Backend : public Backend {
 public:
  explicit Sm90Backend(const Sm90Options& options) : options_(options) {}
  std::string_view name() const override { return "sm90"; }

  Support supports(const MoeSpec& spec) const override {
#if defined(SLUICE_WITH_CUDA)
    Support s = sm90::supports_spec(spec);
    if (!s) return s;
    std::string problem = sm90::device_problem();
    if (!problem.empty()) return Support::no(std::move(problem));
    return s;
#else
    (void)spec;
    return Support::no("this library was built without CUDA");
#endif
  }

  std::unique_ptr<MoeLayer> prepare(Context&, const MoeSpec& spec, const weights::ExpertWeights& w) const override {
    const Support s = supports(spec);
    if (!s) fail(ErrorCode::unsupported, "sm90: {}", s.reason);
#if defined(SLUICE_WITH_CUDA)
    check_weights(spec, w);
    return std::make_unique<Sm90Layer>(spec, w, options_);
#else
    (void)w;
    return nullptr;
#endif
  }

 private:
  Sm90Options options_;
};

}  // namespace

std::unique_ptr<Backend> make_sm90_backend(Sm90Options options) { return std::make_unique<Sm90Backend>(options); }

}  // namespace sluice::moe
