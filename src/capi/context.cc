// SPDX-License-Identifier: Apache-2.0
#include "capi/context.h"

#include <string>

#include "capi/status.h"

namespace sluice::capi {

SharedContext::SharedContext(int threads) : pool_(threads), context_{pool_} {}

std::function<void(LogLevel, std::string_view)> log_callback(sluice_log_fn log, void* user) {
  if (log == nullptr) return [](LogLevel, std::string_view) {};
  return [log, user](LogLevel level, std::string_view line) {
    log(user, static_cast<int>(level), std::string(line).c_str());
  };
}

std::function<void(const Progress&)> progress_callback(sluice_progress_fn progress, void* user) {
  if (progress == nullptr) return [](const Progress&) {};
  return [progress, user](const Progress& p) {
    progress(user, std::string(p.what).c_str(), p.done, p.total, std::string(p.unit).c_str());
  };
}

}  // namespace sluice::capi

using namespace sluice;
using capi::guard;
using capi::required;

extern "C" {

sluice_status sluice_context_create(int threads, sluice_context** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    *out = new sluice_context{std::make_shared<capi::SharedContext>(threads)};
  });
}

void sluice_context_destroy(sluice_context* context) { delete context; }

sluice_status sluice_context_set_log(sluice_context* context, sluice_log_fn log, void* user) {
  return guard([&] {
    required(context, "context").shared->use([&](Context& ctx) { ctx.log = capi::log_callback(log, user); });
  });
}

sluice_status sluice_context_set_progress(sluice_context* context, sluice_progress_fn progress, void* user) {
  return guard([&] {
    required(context, "context").shared->use([&](Context& ctx) {
      ctx.progress = capi::progress_callback(progress, user);
    });
  });
}
}
