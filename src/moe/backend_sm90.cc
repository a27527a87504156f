// SPDX-License-Identifier: Apache-2.0
#include "moe/backend_sm90.h"

#if defined(SLUICE_WITH_CUDA)
#include <mutex>

#include "base/math.h"
#include "moe/check.h"
#include "moe/sm90_call.h"
#endif

namespace sluice::moe {

namespace {

#if defined(SLUICE_WITH_CUDA)

class Sm90Layer : public MoeLayer {
 public:
  Sm90Layer(const MoeSpec& spec, const weights::ExpertWeights& w) : moe_(spec) { moe_.set_weights(w, nullptr); }

  const MoeSpec& spec() const override { return moe_.spec(); }
  int64_t weight_bytes() const override { return moe_.weight_bytes(); }
  int64_t workspace_bytes(int64_t) const override { return 0; }  // the device's is the layer's own
  void refit(Context&, const weights::ExpertWeights& w) override {
    check_weights(moe_.spec(), w);
    moe_.set_weights(w, nullptr);
    sm90::synchronize(nullptr);
  }
  void run(Context&, const MoeArgs& args) const override {
    check_args(moe_.spec(), args);
    if (args.tokens == 0) return;
    const sm90::DeviceGuard guard(moe_.device());
    const std::lock_guard<std::mutex> lock(mutex_);
    const sm90::MoeCall host = sm90_call(moe_.spec(), args);
    place(host, args, 0);  // counts
    if (memory_.bytes() < used_) {
      memory_ = {};
      memory_ = sm90::DeviceBuffer(used_);
    }
    const sm90::MoeCall call = place(host, args, reinterpret_cast<uintptr_t>(memory_.data()));
    moe_.run(call, nullptr);
    const auto out = [](void* to, const void* from, int64_t bytes) {
      if (to != nullptr) sm90::copy_to_host(to, from, bytes, nullptr);
    };
    const MoeSpec& s = moe_.spec();
    const int64_t pairs = args.tokens * s.top_k;
    out(host.output, call.output, (s.finalize ? args.tokens : pairs) * s.hidden * bytes_of(s.dtype));
    out(host.chosen_ids, call.chosen_ids, pairs * 4);
    out(host.chosen_weights, call.chosen_weights, pairs * 4);
    sm90::synchronize(nullptr);
  }

 private:
  // The call with its tensors in device memory from `base` on, inputs copied; with base 0 only used_ is set.
  sm90::MoeCall place(sm90::MoeCall call, const MoeArgs& args, uintptr_t base) const {
    const MoeSpec& s = moe_.spec();
    const int64_t t = args.tokens, pairs = t * s.top_k, element = bytes_of(s.dtype);
    used_ = 0;
    const auto room = [&](auto*& pointer, int64_t bytes, bool input) {
      if (pointer == nullptr) return;
      const auto at = base + static_cast<uintptr_t>(used_);
      used_ = round_up<int64_t>(used_ + bytes, 256);
      if (base == 0) return;
      if (input) sm90::copy_to_device(reinterpret_cast<void*>(at), pointer, bytes, nullptr);
      pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(at);
    };
    room(call.hidden, t * s.hidden * element, true);
    room(call.logits, t * s.experts * bytes_of(args.logits_dtype), true);
    room(call.bias, s.experts * bytes_of(args.bias_dtype), true);
    room(call.topk_ids, pairs * 4, true);
    room(call.topk_weights, pairs * bytes_of(args.topk_weights_dtype), true);
    room(call.output, (s.finalize ? t : pairs) * s.hidden * element, false);
    room(call.chosen_ids, pairs * 4, false);
    room(call.chosen_weights, pairs * 4, false);
    call.workspace = &call;  // not null: replaced by its place
    room(call.workspace, moe_.workspace_bytes(t), false);
    return call;
  }

  sm90::FusedMoe moe_;
  mutable std::mutex mutex_;
  mutable sm90::DeviceBuffer memory_;  // grows to the largest call
  mutable int64_t used_ = 0;
};

#endif

class Sm90Backend : public Backend {
 public:
  std::string_view name() const override { return "sm90"; }

  Support supports(const MoeSpec& spec) const override {
#if defined(SLUICE_WITH_CUDA)
    Support s = sm90::supports_spec(spec);
    if (!s) return s;
    s.reason = sm90::device_problem();
    constexpr int kMultiprocessors = 132;  // of an H200, so that explain answers where there is no GPU
    s.choice = sm90::explain_choice(spec, s ? sm90::multiprocessors() : kMultiprocessors);
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
    return std::make_unique<Sm90Layer>(spec, w);
#else
    (void)w;
    return nullptr;
#endif
  }
};

}  // namespace

std::unique_ptr<Backend> make_sm90_backend() { return std::make_unique<Sm90Backend>(); }

}  // namespace sluice::moe
