// SPDX-License-Identifier: Apache-2.0
// POST /flush_cache, /abort_request, /update_weights_from_disk
#include <algorithm>
#include <filesystem>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/fields.h"
#include "server/json_out.h"

namespace sluice::server {

void flush_cache(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  service.backend()->flush_cache();
  exchange->reply({.body = JsonObject().add("success", true).add("message", "the prefix cache is empty").str()});
}

// {"rid": NAME} or {"abort_all": true}
void abort_request(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  const std::string rid = fields.string("rid").value_or("");
  const bool all = fields.boolean("abort_all").value_or(false);
  fields.finish();
  if (!all && rid.empty()) fields.refuse("rid", "is missing; accepted: the name of a request, or abort_all true");
  if (all)
    service.backend()->cancel_all();
  else if (!service.abort_request(rid))
    throw ApiError(404, "invalid_request_error", fmt::format("rid is {}; no such request is running", io::quote(rid)),
                   "rid", "not_found");
  exchange->reply({.body = JsonObject().add("success", true).str()});
}

namespace {
// Requests do not choose files: only the served folder, and folders below those that the command line names.
std::string checked_folder(const ServiceConfig& config, const ServedModel& model, const std::string& wanted) {
  namespace fs = std::filesystem;
  if (wanted.empty() || wanted == model.path) return model.path;
  std::error_code error;
  const fs::path path = fs::canonical(wanted, error);
  if (!error) {
    for (const std::string& folder : config.weight_folders) {
      const fs::path root = fs::canonical(folder, error);
      if (error) continue;
      const auto [end, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
      if (end == root.end()) return path.string();
    }
    if (path == fs::canonical(model.path, error) && !error) return model.path;
  }
  // The same sentence whether it exists or not: the answer must not tell which files there are.
  refuse("model_path",
         fmt::format("model_path is {}; accepted: the served checkpoint, or a folder below one that was given with "
                     "--weights-folder",
                     io::quote(wanted)));
}
}  // namespace

// {"model_path", "load_format", "flush_cache", "abort_all_requests", ...}
void update_weights_from_disk(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto model = service.model();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  const std::string path = checked_folder(service.config(), *model, fields.string("model_path").value_or(""));
  if (const auto format = fields.string("load_format"); format && *format != "auto" && *format != "safetensors")
    fields.refuse("load_format", fmt::format("is {}; accepted: auto, safetensors", io::quote(*format)));
  // New weights make cached prefixes and half-done answers wrong, so these cannot be turned off.
  if (!fields.boolean("flush_cache").value_or(true)) fields.refuse("flush_cache", "is false; accepted: true");
  fields.boolean("abort_all_requests");
  fields.ignore({"torch_empty_cache", "recapture_cuda_graph", "token_step"});
  fields.refuse_unless_empty({"is_async", "keep_pause", "manifest", "weight_version"});
  fields.finish();
  const auto answer = [&](int status, bool success, const std::string& message) {
    exchange->reply({.status = status,
                     .body = JsonObject()
                                 .add("success", success)
                                 .add("message", message)
                                 .add("num_paused_requests", 0)
                                 .add("weight_version", std::to_string(service.weight_version.load()))
                                 .str()});
  };
  try {
    service.backend()->reload(path);
  } catch (const Error& error) {
    return answer(400, false, error.what());  // SGLang's form of a failure; the old weights go on
  }
  ++service.weight_version;
  answer(200, true, fmt::format("the weights of {} are in place", path));
}

}  // namespace sluice::server
