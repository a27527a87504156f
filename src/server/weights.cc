// SPDX-License-Identifier: Apache-2.0
// POST /update_weights_from_disk, /update_weights_from_tensor, /begin_weight_update, /end_weight_update,
// /update_weight_version, and the ways of SGLang that this server has not. All answer in SGLang's form: "success" and
// "message"; refusals also have the error object that every refusal has.
#include <algorithm>
#include <exception>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/fields.h"
#include "server/json_out.h"
#include "server/weight_files.h"

namespace sluice::server {

namespace {
void answer(Service& service, const ExchangePtr& exchange, const ApiError* error, const std::string& message) {
  JsonObject out;
  out.add("success", error == nullptr)
      .add("message", message)
      .add("num_paused_requests", 0)
      .add("weight_version", service.weight_version());
  if (error != nullptr) out.raw("error", error_json(*error));
  http::Response response{.status = error == nullptr ? 200 : error->status, .body = out.str()};
  if (response.status == 503) response.headers.push_back({"Retry-After", "1"});
  exchange->reply(std::move(response));
}

// `job` returns the message. `field`: what an error of the weights themselves is about; the old ones go on.
template <class F>
void answer_with(Service& service, const ExchangePtr& exchange, const char* field, const F& job) {
  service.require_ready();
  try {
    const std::string message = job();
    answer(service, exchange, nullptr, message);
  } catch (const ApiError& error) {
    answer(service, exchange, &error, error.what());
  } catch (const Error& error) {
    const bool busy = error.code() == ErrorCode::busy || error.code() == ErrorCode::out_of_memory;
    const ApiError refusal =
        busy ? to_api_error(error) : ApiError(400, "invalid_request_error", error.what(), field, "weights_not_loaded");
    answer(service, exchange, &refusal, error.what());
  }
}

// Of an engine that runs dummy weights until it has all tensors of the model.
std::string what_is_missing(const EngineClient& engine) {
  const auto sent = engine.sent();
  if (!sent || engine.weights().bytes() > 0) return "";
  if (sent->complete())
    return fmt::format("; all {} of the model have come, and /end_weight_update puts them in place", sent->needed);
  return fmt::format("; {} of the model's {} have come, and the dummy weights run until all have: {} is missing",
                     sent->come, sent->needed, io::quote(sent->missing));
}

// Of tensors that may come before all are there, when any name is taken.
std::string what_is_unused(const EngineClient& engine, const engine::NamedTensors& tensors) {
  const io::Checkpoint weights = engine.weights();
  if (!engine.sent() || weights.bytes() == 0) return "";
  const auto unused =
      std::count_if(tensors.begin(), tensors.end(), [&](const auto& given) { return !weights.contains(given.first); });
  return unused == 0 ? "" : fmt::format("; the running weights do not have {} of them", unused);
}

std::string read_version(Fields& fields, std::string_view key) {
  std::string version = fields.string(key).value_or("");
  if (version.size() > 256) fields.refuse(key, fmt::format("has {} bytes; accepted: at most 256", version.size()));
  return version;
}

engine::Replacement replacement(Service& service, bool abort, const std::string& version,
                                const std::string& path = "") {
  return {.abort = abort, .in_place = [&service, version, path] { service.weights_replaced(version, path); }};
}

struct Reload {
  std::string path, named, version;  // the canonical path, and what the request called it
  bool abort = false;
};

Reload read_reload(Service& service, const std::string& body_text) {
  const io::JsonValue body = parse_body(body_text);
  Fields fields(body);
  Reload out;
  const auto path = fields.string("model_path");
  if (!path) fields.refuse("model_path", "is missing; accepted: the folder of a checkpoint");
  const std::string served = service.model()->path;
  out.path = checked_path(service.config(), "model_path", *path, served);
  out.named = *path;
  out.version = read_version(fields, "weight_version");
  if (const auto format = fields.string("load_format"); format && *format != "auto" && *format != "safetensors")
    fields.refuse("load_format", fmt::format("is {}; accepted: auto, safetensors", io::quote(*format)));
  fields.boolean("flush_cache");  // new weights make cached prefixes wrong: they are forgotten either way
  out.abort = fields.boolean("abort_all_requests").value_or(false);
  fields.ignore({"torch_empty_cache", "recapture_cuda_graph", "token_step"});
  fields.refuse_unless_empty({"is_async", "keep_pause", "manifest"});
  fields.finish(service.unknown_fields());
  return out;
}

void require_permission(const ServiceConfig& config) {
  if (config.allow_weight_update) return;
  throw ApiError(
      403, "permission_error",
      "weights of requests are not taken; start the server with weight updates allowed (--allow-weight-update)", "",
      "weight_update_not_allowed");
}

void read_update_flags(Fields& fields, engine::Replacement& how) {
  how.abort = fields.boolean("abort_all_requests").value_or(false);
  // The payload here is always the flat one. Prefixes are always forgotten; SGLang's false only spares the work between
  // two buckets.
  const std::string format = fields.string("load_format").value_or("auto");
  if (format != "auto" && format != "direct" && format != "flattened_bucket")
    fields.refuse("load_format", fmt::format("is {}; accepted: auto, direct, flattened_bucket", io::quote(format)));
  fields.boolean("flush_cache");
  fields.ignore({"torch_empty_cache"});
  const std::string selector = fields.string("selector").value_or("all");
  if (selector != "all")
    fields.refuse("selector", fmt::format("is {}; accepted: all, the names say which tensors", io::quote(selector)));
  if (fields.has("serialized_named_tensors"))
    fields.refuse(
        "serialized_named_tensors",
        "is a Python pickle, which can run any code when it is read, and is never read here; send tensors with "
        "shared_memory or file",
        "unsupported_parameter");
  if (fields.has("cuda_ipc_handle"))
    fields.refuse("cuda_ipc_handle",
                  "is memory of a GPU, and weights are taken from the host's; send tensors with shared_memory or file",
                  "unsupported_parameter");
}
}  // namespace

// {"model_path", "load_format", "flush_cache", "abort_all_requests", "weight_version", ...}
void update_weights_from_disk(Service& service, const ExchangePtr& exchange) {
  answer_with(service, exchange, "model_path", [&] {
    const Reload reload = read_reload(service, exchange->request().body);
    service.engine()->reload(reload.path, replacement(service, reload.abort, reload.version, reload.named));
    return fmt::format("the weights of {} are in place", reload.path);
  });
}

// {"tensors": [{"name", "dtype", "shape", "offset"}], "shared_memory" or "file", "weight_version", ...}
void update_weights_from_tensor(Service& service, const ExchangePtr& exchange) {
  answer_with(service, exchange, "tensors", [&] {
    require_permission(service.config());
    const io::JsonValue body = parse_body(exchange->request().body);
    Fields fields(body);
    engine::Replacement how = replacement(service, false, read_version(fields, "weight_version"));
    read_update_flags(fields, how);
    const auto engine = service.engine();
    const engine::NamedTensors tensors =
        read_given_tensors(fields, service.config(), *engine, service.unknown_fields());
    fields.finish(service.unknown_fields());
    engine->update(tensors, how);
    return fmt::format("{} tensors were taken{}{}", tensors.size(), what_is_missing(*engine),
                       what_is_unused(*engine, tensors));
  });
}

void begin_weight_update(Service& service, const ExchangePtr& exchange) {
  answer_with(service, exchange, "", [&] {
    require_permission(service.config());
    const io::JsonValue body = parse_optional_body(exchange->request().body);
    Fields(body).finish(service.unknown_fields());
    service.engine()->begin_update();
    return std::string("tensors are kept until /end_weight_update puts them in place together");
  });
}

void end_weight_update(Service& service, const ExchangePtr& exchange) {
  answer_with(service, exchange, "", [&] {
    require_permission(service.config());
    const io::JsonValue body = parse_optional_body(exchange->request().body);
    Fields fields(body);
    const std::string version = read_version(fields, "weight_version");
    const bool abort = fields.boolean("abort_all_requests").value_or(false);
    fields.finish(service.unknown_fields());
    service.engine()->end_update(replacement(service, abort, version));
    return std::string("the tensors since /begin_weight_update are in place");
  });
}

// {"new_version", "abort_all_requests"}
void update_weight_version(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  const std::string version = read_version(fields, "new_version");
  if (version.empty()) fields.refuse("new_version", "is missing or empty; accepted: a name for the weights");
  const bool abort = fields.boolean("abort_all_requests").value_or(false);
  fields.finish(service.unknown_fields());
  if (abort) service.engine()->cancel_all();
  service.set_weight_version(version);
  exchange->reply({.body = JsonObject()
                               .add("success", true)
                               .add("message", "Weight version updated to " + version)
                               .add("new_version", version)
                               .str()});
}

void refuse_weight_transport(Service& service, const ExchangePtr& exchange) {
  answer_with(service, exchange, "", [&]() -> std::string {
    throw ApiError(
        501, "invalid_request_error",
        fmt::format("{} is not there: it needs torch.distributed or CUDA memory in the server; send weights with "
                    "/update_weights_from_tensor (shared memory) or /update_weights_from_disk",
                    exchange->request().path),
        "", "unsupported");
  });
}

}  // namespace sluice::server
