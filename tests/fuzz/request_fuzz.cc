// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of a request, through every endpoint that reads one, before an engine that takes everything:
// it is answered, refused by ApiError or by sluice::Error, and nothing else. No answer says that the server failed:
// what an endpoint or a delivery of events catches would be a finding if it got here.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "server/api_error.h"
#include "server/routes.h"
#include "tests/server/fake_engine.h"
#include "tests/server/tool_model.h"

namespace sluice::server {
namespace {
// A call that is complete and one that breaks off: whether it is told early is the request's.
const std::pair<const char*, engine::FinishReason> kAnswer[]{
    {"<think>a</think>x\xF0<tool_call>{\"name\": \"f\"}</tool_call>", engine::FinishReason::none},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"\xC3", engine::FinishReason::none},
    {"\xA9", engine::FinishReason::length}};

using Exchange = std::shared_ptr<FakeExchange>;

Exchange answer(Service& service, const Route& route, const std::string& body) {
  const auto exchange = std::make_shared<FakeExchange>(std::string(route.method), std::string(route.path), body);
  try {
    answer_when_compiled(service, route, exchange);
  } catch (const ApiError& error) {
    const std::string text = error_body(error);
    if (error.status < 400 || error.status > 503 || text.empty()) std::abort();
  } catch (const Error& error) {
    if (to_api_error(error).status >= 500) std::abort();
  }
  return exchange;
}

// The engine's events hold no error, so that one in a stream is the server's own. JSON text has no line ends: these
// lines are the stream's, whatever the body made it repeat.
void check_no_failure(const FakeExchange& exchange) {
  if (exchange.response.status == 500) std::abort();
  const std::string lines = "\n" + exchange.streamed;
  for (const char* begin : {"\nevent: error\n", "\ndata: {\"error\":"})
    if (lines.find(begin) != std::string::npos) std::abort();
}
}  // namespace
}  // namespace sluice::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::server;
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto all = routes();
  const Route& route = all[data[0] % all.size()];
  if (route.method != "POST") return 0;
  const auto engine = std::make_shared<FakeEngine>();
  engine->bounds = {.vocab = 4096, .context_length = 1000, .has_tokenizer = true};
  ServiceConfig config;
  config.allow_weight_update = config.priority_scheduling = true;
  Service service{config};
  static const auto model = model_with(std::string("{# </think> #}") + kHermesTemplate);
  service.set_ready(model, engine);
  const Exchange exchange = answer(service, route, body);
  check_no_failure(*exchange);
  for (auto& [id, submitted] : engine->requests) {
    sluice::engine::validate(submitted.request, engine->limits());  // what the server lets through, the engine takes
    for (int choice = 0; choice < submitted.request.params.n; ++choice)
      for (const auto& [text, reason] : kAnswer) engine->send(id, choice, text, reason);
  }
  check_no_failure(*exchange);
  engine->requests.clear();  // a sink holds its answer, and an answer its engine
  return 0;
}
