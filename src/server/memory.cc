// SPDX-License-Identifier: Apache-2.0
// POST /release_memory_occupation, /resume_memory_occupation: a trainer on the same machine gets the memory meanwhile.
#include "io/quote.h"
#include "server/endpoints.h"
#include "server/fields.h"
#include "server/json_out.h"

namespace sluice::server {

namespace {
// {"tags": ["weights", "kv_cache"]}; both when there are none. Recorded steps ("cuda_graph") have no memory that could
// go alone: nothing is named then.
engine::MemoryTags read_tags(Service& service, const std::string& body_text) {
  const io::JsonValue body = parse_optional_body(body_text);
  Fields fields(body);
  engine::MemoryTags out;
  const std::vector<std::string> tags = fields.string_or_strings("tags", 16);
  for (const std::string& tag : tags) {
    if (tag == "weights")
      out.weights = true;
    else if (tag == "kv_cache")
      out.kv_cache = true;
    else if (tag != "cuda_graph")
      fields.refuse("tags", fmt::format("has {}; accepted: weights, kv_cache, cuda_graph", io::quote(tag)));
  }
  if (tags.empty()) out = {true, true};
  fields.finish(service.unknown_fields());
  return out;
}

void answer(const ExchangePtr& exchange, const char* message) {
  exchange->reply({.body = JsonObject().add("success", true).add("message", message).str()});
}
}  // namespace

void release_memory_occupation(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const engine::MemoryTags tags = read_tags(service, exchange->request().body);
  service.engine()->release_memory(tags);
  answer(exchange, tags.any() ? "the memory is released; requests get 503 until /resume_memory_occupation"
                              : "nothing is released: cuda_graph has no memory of its own");
}

void resume_memory_occupation(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const engine::MemoryTags tags = read_tags(service, exchange->request().body);
  service.engine()->resume_memory(tags);
  answer(exchange, tags.any() ? "the memory is back" : "nothing was released: cuda_graph has no memory of its own");
}

}  // namespace sluice::server
