// SPDX-License-Identifier: Apache-2.0
// POST /flush_cache, /abort_request, /pause_generation, /continue_generation
#include "io/quote.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/fields.h"
#include "server/json_out.h"

namespace sluice::server {

void flush_cache(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  service.engine()->flush_cache();
  exchange->reply({.body = JsonObject().add("success", true).add("message", "the prefix cache is empty").str()});
}

// {"rid": NAME} or {"abort_all": true}
void abort_request(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  const std::string rid = fields.string("rid").value_or("");
  const bool all = fields.boolean("abort_all").value_or(false);
  fields.finish(service.unknown_fields());
  if (!all && rid.empty()) fields.refuse("rid", "is missing; accepted: the name of a request, or abort_all true");
  if (all)
    service.abort_all();
  else if (!service.abort_request(rid))
    throw ApiError(404, "invalid_request_error", fmt::format("rid is {}; no such request is running", io::quote(rid)),
                   "rid", "not_found");
  exchange->reply({.body = JsonObject().add("success", true).str()});
}

// {"mode": "abort" | "retract" | "in_place"}
void pause_generation(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_optional_body(exchange->request().body);
  Fields fields(body);
  const std::string name = fields.string("mode").value_or("abort");
  engine::PauseMode mode = engine::PauseMode::abort;
  if (name == "retract")
    mode = engine::PauseMode::retract;
  else if (name == "in_place")
    mode = engine::PauseMode::in_place;
  else if (name != "abort")
    fields.refuse("mode", fmt::format("is {}; accepted: abort, retract, in_place", io::quote(name)));
  fields.finish(service.unknown_fields());
  service.engine()->pause(mode);
  exchange->reply({.body = JsonObject().add("message", "Generation paused successfully.").add("status", "ok").str()});
}

void continue_generation(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const io::JsonValue body = parse_optional_body(exchange->request().body);
  Fields fields(body);
  fields.ignore({"torch_empty_cache"});  // there is no torch
  fields.finish(service.unknown_fields());
  service.engine()->resume();
  exchange->reply(
      {.body = JsonObject().add("message", "Generation continued successfully.").add("status", "ok").str()});
}

}  // namespace sluice::server
