// SPDX-License-Identifier: Apache-2.0
#include "server/routes.h"

#include <array>

#include "server/anthropic_writer.h"

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
    Route{"GET", "/server_info", server_info, Access::user, true},
    Route{"GET", "/get_server_info", server_info, Access::user, true},
    Route{"GET", "/v1/loads", loads, Access::user, true},
    Route{"GET", "/v1/models", list_models, Access::user, true},
    Route{"GET", "/v1/models/*", show_model, Access::user, true},
    Route{"POST", "/v1/chat/completions", chat_completions},
    Route{"POST", "/v1/completions", completions},
    Route{"POST", "/generate", generate},
    Route{"POST", "/v1/messages", anthropic_messages},
    Route{"POST", "/v1/messages/count_tokens", anthropic_count_tokens},
    Route{"POST", "/v1/responses", responses},
    Route{"POST", "/v1/tokenize", tokenize},
    Route{"POST", "/tokenize", tokenize},
    Route{"POST", "/v1/detokenize", detokenize},
    Route{"POST", "/detokenize", detokenize},
    Route{"POST", "/v1/apply-template", apply_template},
    Route{"POST", "/apply-template", apply_template},
    Route{"POST", "/flush_cache", flush_cache, Access::admin},
    Route{"GET", "/flush_cache", flush_cache, Access::admin},  // as slime asks
    Route{"POST", "/abort_request", abort_request, Access::admin},
    Route{"POST", "/pause_generation", pause_generation, Access::admin},
    Route{"POST", "/continue_generation", continue_generation, Access::admin},
    Route{"POST", "/update_weights_from_disk", update_weights_from_disk, Access::admin, false, true},
    Route{"POST", "/update_weights_from_tensor", update_weights_from_tensor, Access::admin, false, true},
    Route{"POST", "/begin_weight_update", begin_weight_update, Access::admin, false, true},
    Route{"POST", "/end_weight_update", end_weight_update, Access::admin, false, true},
    Route{"POST", "/update_weight_version", update_weight_version, Access::admin},
    Route{"POST", "/init_weights_update_group", refuse_weight_transport, Access::admin},
    Route{"POST", "/destroy_weights_update_group", refuse_weight_transport, Access::admin},
    Route{"POST", "/update_weights_from_distributed", refuse_weight_transport, Access::admin},
    Route{"POST", "/update_weights_from_ipc", refuse_weight_transport, Access::admin},
    Route{"POST", "/weights_checker", weights_checker, Access::admin, false, true},
    Route{"GET", "/weights_checker", weights_checker, Access::admin, false, true},
    Route{"POST", "/get_weights_by_name", get_weights_by_name, Access::admin, false, true},
    Route{"GET", "/get_weights_by_name", get_weights_by_name, Access::admin, false, true},
    Route{"POST", "/start_expert_distribution_record", start_expert_distribution_record, Access::admin},
    Route{"POST", "/stop_expert_distribution_record", stop_expert_distribution_record, Access::admin},
    Route{"POST", "/dump_expert_distribution_record", dump_expert_distribution_record, Access::admin},
    Route{"POST", "/start_profile", start_profile, Access::admin},
    Route{"POST", "/stop_profile", stop_profile, Access::admin},
    Route{"POST", "/release_memory_occupation", release_memory_occupation, Access::admin, false, true},
    Route{"POST", "/resume_memory_occupation", resume_memory_occupation, Access::admin, false, true},
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

http::Response refusal(std::string_view path, const ApiError& error) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool anthropics =
      path.starts_with(kMessages) && (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  return anthropics ? anthropic_error_response(error) : error_response(error);
}

}  // namespace sluice::server
