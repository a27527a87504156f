// SPDX-License-Identifier: Apache-2.0
#include "server/routes.h"

#include <array>

namespace sluice::server {

namespace {
constexpr std::array kRoutes{
    Route{"GET", "/", playground, Access::open, true},
    Route{"GET", "/health", health, Access::open, true},
    Route{"GET", "/ping", health, Access::open, true},
    Route{"GET", "/health_generate", health_generate},
    Route{"GET", "/metrics", metrics, Access::user, true},
    Route{"GET", "/version", version, Access::user, true},
    Route{"GET", "/get_model_info", model_info, Access::user, true},
    Route{"GET", "/model_info", model_info, Access::user, true},
    Route{"GET", "/v1/models", list_models, Access::user, true},
    Route{"GET", "/v1/models/*", show_model, Access::user, true},
    Route{"POST", "/v1/chat/completions", chat_completions},
    Route{"POST", "/v1/completions", completions},
    Route{"POST", "/generate", generate},
    Route{"POST", "/v1/tokenize", tokenize},
    Route{"POST", "/tokenize", tokenize},
    Route{"POST", "/v1/detokenize", detokenize},
    Route{"POST", "/detokenize", detokenize},
    Route{"POST", "/v1/apply-template", apply_template},
    Route{"POST", "/apply-template", apply_template},
    Route{"POST", "/flush_cache", flush_cache, Access::admin},
    Route{"POST", "/abort_request", abort_request, Access::admin},
    Route{"POST", "/update_weights_from_disk", update_weights_from_disk, Access::admin},
};

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}
}  // namespace

std::span<const Route> routes() { return kRoutes; }

const Route* find_route(std::string_view method, std::string_view path, std::string& allowed) {
  allowed.clear();
  for (const Route& route : kRoutes) {
    if (!matches(route.path, path)) continue;
    if (method == route.method || (method == "HEAD" && route.method == "GET")) return &route;
    allowed += (allowed.empty() ? "" : ", ");
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return nullptr;
}

}  // namespace sluice::server
