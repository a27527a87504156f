// SPDX-License-Identifier: Apache-2.0
// Sluice for C++: the C ABI (c.h, which documents every argument) with owners instead of handles and exceptions instead
// of status codes. Header-only over the standard library, so any compiler's program can use any build of libsluice.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/c.h"

namespace sluice {

class Error : public std::runtime_error {
 public:
  Error(sluice_status status, const char* sentence) : std::runtime_error(sentence), status_(status) {}
  sluice_status status() const { return status_; }

 private:
  sluice_status status_;
};

namespace detail {

inline void check(sluice_status status) {
  if (status != SLUICE_OK) throw Error(status, sluice_last_error());
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};

// Asks for the length, then for the text.
template <class Call>
std::string read_text(const Call& call) {
  size_t needed = 0;
  if (const sluice_status status = call(nullptr, 0, &needed); status != SLUICE_BUFFER_TOO_SMALL) check(status);
  std::string text(needed, '\0');
  check(call(text.data(), text.size(), nullptr));
  text.resize(needed > 0 ? needed - 1 : 0);
  return text;
}

// A callback's exception may not pass through the library: it cancels the call, and is thrown again after the call.
struct TokenCall {
  const std::function<bool(int32_t, std::string_view)>* body;
  std::exception_ptr thrown;
};
inline int call_token(void* user, int32_t id, const char* text) {
  auto* call = static_cast<TokenCall*>(user);
  try {
    return (*call->body)(id, text) ? 0 : 1;
  } catch (...) {
    call->thrown = std::current_exception();
    return 1;
  }
}

}  // namespace detail

// Threads. Layers and models keep what they need of it.
class Context {
 public:
  explicit Context(int threads = 0) {  // 0: every core that the process may use
    sluice_context* made = nullptr;
    detail::check(sluice_context_create(threads, &made));
    handle_.reset(made);
  }
  sluice_context* get() const { return handle_.get(); }

 private:
  std::unique_ptr<sluice_context, detail::Destroy<sluice_context_destroy>> handle_;
};

// One fused mixture-of-experts layer; the weights are copied.
class MoeLayer {
 public:
  MoeLayer(Context& context, const std::string& spec, const sluice_moe_weights& weights,
           const std::string& backend = "auto") {
    sluice_moe* made = nullptr;
    detail::check(sluice_moe_create(context.get(), spec.c_str(), backend.c_str(), &weights, &made));
    handle_.reset(made);
  }
  // On the CPU, in `size` bytes of the caller's memory, prepared_bytes() at least; it outlives the layer.
  MoeLayer(Context& context, const std::string& spec, const sluice_moe_weights& weights, void* memory, int64_t size) {
    sluice_moe* made = nullptr;
    detail::check(sluice_moe_prepare_into(context.get(), spec.c_str(), &weights, memory, size, &made));
    handle_.reset(made);
  }
  static int64_t prepared_bytes(const std::string& spec) {
    int64_t bytes = 0;
    detail::check(sluice_moe_prepared_bytes(spec.c_str(), &bytes));
    return bytes;
  }
  void refit(const sluice_moe_weights& weights) { detail::check(sluice_moe_refit(handle_.get(), &weights)); }
  int64_t workspace_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    detail::check(sluice_moe_workspace_bytes(handle_.get(), tokens, &bytes));
    return bytes;
  }
  void run(const sluice_moe_args& args) const { detail::check(sluice_moe_run(handle_.get(), &args)); }
  sluice_moe* get() const { return handle_.get(); }

 private:
  std::unique_ptr<sluice_moe, detail::Destroy<sluice_moe_destroy>> handle_;
};

// The same on a GPU: device pointers, stream order (c.h).
namespace cuda {

class MoeLayer {
 public:
  MoeLayer(const std::string& spec, int device, const sluice_moe_weights& weights, void* stream = nullptr) {
    sluice_cuda_moe* made = nullptr;
    detail::check(sluice_cuda_moe_create(spec.c_str(), device, &weights, stream, &made));
    handle_.reset(made);
  }
  // In `size` bytes of the caller's device memory, prepared_bytes() at least; it outlives the layer.
  MoeLayer(const std::string& spec, int device, const sluice_moe_weights& weights, void* memory, int64_t size,
           void* stream) {
    sluice_cuda_moe* made = nullptr;
    detail::check(sluice_cuda_moe_prepare_into(spec.c_str(), device, &weights, memory, size, stream, &made));
    handle_.reset(made);
  }
  static int64_t prepared_bytes(const std::string& spec) {
    int64_t bytes = 0;
    detail::check(sluice_cuda_moe_prepared_bytes(spec.c_str(), &bytes));
    return bytes;
  }
  void refit(const sluice_moe_weights& weights, void* stream) {
    detail::check(sluice_cuda_moe_refit(handle_.get(), &weights, stream));
  }
  int64_t workspace_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    detail::check(sluice_cuda_moe_workspace_bytes(handle_.get(), tokens, &bytes));
    return bytes;
  }
  void run(const sluice_moe_args& args, const sluice_cuda_queue& queue) const {
    detail::check(sluice_cuda_moe_run(handle_.get(), &args, &queue));
  }
  sluice_cuda_moe* get() const { return handle_.get(); }

 private:
  std::unique_ptr<sluice_cuda_moe, detail::Destroy<sluice_cuda_moe_destroy>> handle_;
};

class Gemm {
 public:
  explicit Gemm(const sluice_cuda_gemm_options& options, int device = 0, void* stream = nullptr) {
    sluice_cuda_gemm* made = nullptr;
    detail::check(sluice_cuda_gemm_create(&options, device, stream, &made));
    handle_.reset(made);
  }
  // In `size` bytes of the caller's device memory, prepared_bytes() at least; it outlives the GEMM.
  Gemm(const sluice_cuda_gemm_options& options, int device, void* memory, int64_t size, void* stream) {
    sluice_cuda_gemm* made = nullptr;
    detail::check(sluice_cuda_gemm_prepare_into(&options, device, memory, size, stream, &made));
    handle_.reset(made);
  }
  static int64_t prepared_bytes(const sluice_cuda_gemm_options& options) {
    int64_t bytes = 0;
    detail::check(sluice_cuda_gemm_prepared_bytes(&options, &bytes));
    return bytes;
  }
  void refit(const sluice_matrices& w, float input_scale, const float* bias, void* stream) {
    detail::check(sluice_cuda_gemm_refit(handle_.get(), &w, input_scale, bias, stream));
  }
  int64_t workspace_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    detail::check(sluice_cuda_gemm_workspace_bytes(handle_.get(), tokens, &bytes));
    return bytes;
  }
  void run(const sluice_cuda_gemm_args& args, const sluice_cuda_queue& queue) const {
    detail::check(sluice_cuda_gemm_run(handle_.get(), &args, &queue));
  }
  sluice_cuda_gemm* get() const { return handle_.get(); }

 private:
  std::unique_ptr<sluice_cuda_gemm, detail::Destroy<sluice_cuda_gemm_destroy>> handle_;
};

inline void quantize(const sluice_cuda_quantize_args& args, const sluice_cuda_queue& queue) {
  detail::check(sluice_cuda_quantize(&args, &queue));
}

}  // namespace cuda

// A checkpoint folder: weights and tokenizer.
class Model {
 public:
  Model(Context& context, const std::string& folder, const sluice_model_options& options = default_options()) {
    sluice_model* made = nullptr;
    detail::check(sluice_model_load(context.get(), folder.c_str(), &options, &made));
    handle_.reset(made);
  }
  static sluice_model_options default_options() { return SLUICE_INIT(sluice_model_options); }

  sluice_model_info info() const {
    auto info = SLUICE_INIT(sluice_model_info);
    detail::check(sluice_model_get_info(handle_.get(), &info));
    return info;
  }
  std::vector<int32_t> encode(std::string_view text) const {
    // Enough for text in UTF-8. Each byte that is none becomes U+FFFD, of up to three ids.
    std::vector<int32_t> ids(text.size() + 8);
    size_t count = 0;
    const auto encode = [&] {
      return sluice_model_encode(handle_.get(), text.data(), text.size(), ids.data(), ids.size(), &count);
    };
    sluice_status status = encode();
    if (status == SLUICE_BUFFER_TOO_SMALL) {
      ids.resize(count);
      status = encode();
    }
    detail::check(status);
    ids.resize(count);
    return ids;
  }
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens = false) const {
    return detail::read_text([&](char* buffer, size_t size, size_t* needed) {
      return sluice_model_decode(handle_.get(), ids.data(), ids.size(), skip_special_tokens, buffer, size, needed);
    });
  }
  // on_token gets each new id and the whole characters that it completes; false cancels.
  sluice_generated generate(const std::vector<int32_t>& prompt, const sluice_generate_options& options,
                            const std::function<bool(int32_t, std::string_view)>& on_token = {}) const {
    auto result = SLUICE_INIT(sluice_generated);
    detail::TokenCall call{&on_token, nullptr};
    detail::check(sluice_model_generate(handle_.get(), prompt.data(), prompt.size(), &options,
                                        on_token ? detail::call_token : nullptr, &call, &result));
    if (call.thrown) std::rethrow_exception(call.thrown);
    return result;
  }
  sluice_model* get() const { return handle_.get(); }

 private:
  std::unique_ptr<sluice_model, detail::Destroy<sluice_model_destroy>> handle_;
};

// One sequence, for callers with a sampler of their own.
class Session {
 public:
  Session(const Model& model, int64_t max_tokens) : vocab_(static_cast<size_t>(model.info().vocab)) {
    sluice_session* made = nullptr;
    detail::check(sluice_session_create(model.get(), max_tokens, &made));
    handle_.reset(made);
  }
  // The logits [vocab] that follow the last of the tokens.
  std::vector<float> append(const std::vector<int32_t>& ids) {
    std::vector<float> logits(vocab_);
    detail::check(sluice_session_append(handle_.get(), ids.data(), ids.size(), logits.data()));
    return logits;
  }
  int64_t length() const { return sluice_session_length(handle_.get()); }
  sluice_session* get() const { return handle_.get(); }
  void reset() { sluice_session_reset(handle_.get()); }

 private:
  size_t vocab_;
  std::unique_ptr<sluice_session, detail::Destroy<sluice_session_destroy>> handle_;
};

// Each backend's answer to a spec, one line each.
inline std::string explain(const std::string& spec) {
  return detail::read_text([&](char* buffer, size_t size, size_t* needed) {
    return sluice_moe_explain(spec.c_str(), buffer, size, needed);
  });
}

}  // namespace sluice
