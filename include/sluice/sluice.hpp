// SPDX-License-Identifier: Apache-2.0
// Sluice for C++: the C ABI (c.h, which documents every argument) with owners instead of handles and exceptions instead
// of status codes. Header-only over the standard library, so any compiler's program can use any build of libsluice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

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

// Each backend's answer to a spec, one line each.
inline std::string explain(const std::string& spec) {
  size_t needed = 0;
  const sluice_status status = sluice_moe_explain(spec.c_str(), nullptr, 0, &needed);
  if (status != SLUICE_BUFFER_TOO_SMALL) detail::check(status);
  std::string text(needed, '\0');
  detail::check(sluice_moe_explain(spec.c_str(), text.data(), text.size(), nullptr));
  text.pop_back();
  return text;
}

}  // namespace sluice
