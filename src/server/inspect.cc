// SPDX-License-Identifier: Apache-2.0
// POST /start_expert_distribution_record, /stop_..., /dump_...: how often each expert was chosen. POST /start_profile,
// /stop_profile: where a step's time goes, as files that Perfetto and chrome://tracing open.
#include <filesystem>

#include "io/output_file.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/fields.h"
#include "server/json_out.h"

namespace sluice::server {

namespace {
constexpr int64_t kMostSteps = 10000;  // files of one profile

void expect_no_fields(Service& service, const ExchangePtr& exchange) {
  const io::JsonValue body = parse_optional_body(exchange->request().body);
  Fields(body).finish(service.unknown_fields());
}

void answer(const ExchangePtr& exchange, const std::string& message) {
  exchange->reply({.body = JsonObject().add("success", true).add("message", message).str()});
}

double microseconds(engine::Clock::time_point t) {
  return std::chrono::duration<double, std::micro>(t.time_since_epoch()).count();
}

// Chrome's trace format: complete events, in microseconds.
std::string trace_json(const engine::StepTrace& trace) {
  JsonArray events;
  for (const engine::Span& span : trace.spans)
    events.raw(JsonObject()
                   .add("name", span.name)
                   .add("cat", "engine")
                   .add("ph", "X")
                   .add("ts", microseconds(span.begin))
                   .add("dur", microseconds(span.end) - microseconds(span.begin))
                   .add("pid", 1)
                   .add("tid", 1)
                   .raw("args", span.name == "step" ? JsonObject()
                                                          .add("step", trace.step)
                                                          .add("rows", trace.rows)
                                                          .add("sequences", trace.sequences)
                                                          .str()
                                                    : "{}")
                   .str());
  return JsonObject().raw("traceEvents", events.str()).add("displayTimeUnit", "ms").str();
}

// Runs on the engine's thread. A full disk must not end a step, so errors go to the log.
void write_trace(const ServiceConfig& config, const engine::StepTrace& trace) {
  const std::filesystem::path path =
      std::filesystem::path(config.profile_folder) / fmt::format("step-{:08}.json", trace.step);
  try {
    io::write_file(path, trace_json(trace));
  } catch (const std::exception& error) {
    config.log(fmt::format("a profile's step was not written: {}", error.what()));
  }
}
}  // namespace

void start_expert_distribution_record(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  expect_no_fields(service, exchange);
  service.engine()->record_experts(true);
  answer(exchange, "experts are counted from now on");
}

void stop_expert_distribution_record(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  expect_no_fields(service, exchange);
  service.engine()->record_experts(false);
  answer(exchange, "experts are not counted any more; /dump_expert_distribution_record has the counts");
}

// {"tokens", "recording", "layers": [{"layer": 1, "counts": [...]}]}: nothing is written to a file.
void dump_expert_distribution_record(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  expect_no_fields(service, exchange);
  const auto [recording, counts] = service.engine()->expert_counts();
  JsonArray layers;
  for (size_t i = 0; i < counts.layers.size(); ++i) {
    if (counts.layers[i].empty()) continue;
    JsonArray row;
    for (const int64_t n : counts.layers[i]) row.raw(std::to_string(n));
    layers.raw(JsonObject().add("layer", i).raw("counts", row.str()).str());
  }
  exchange->reply({.body = JsonObject()
                               .add("success", true)
                               .add("recording", recording)
                               .add("tokens", counts.tokens)
                               .raw("layers", layers.str())
                               .str()});
}

// {"num_steps": 10}
void start_profile(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const ServiceConfig& config = service.config();
  if (config.profile_folder.empty())
    throw ApiError(403, "permission_error",
                   "there is no folder for traces; start the server with a profile folder (--profile-folder)", "",
                   "profile_not_allowed");
  const io::JsonValue body = parse_optional_body(exchange->request().body);
  Fields fields(body);
  const int64_t steps = fields.integer("num_steps", 1, kMostSteps).value_or(10);
  if (fields.has("output_dir"))
    fields.refuse(
        "output_dir",
        "is not chosen by a request: traces go to the profile folder that the server was started with; leave it out");
  fields.ignore({"activities", "with_stack", "record_shapes", "profile_id", "profile_prefix"});  // torch's profiler
  fields.refuse_unless_empty({"start_step", "profile_by_stage", "merge_profiles", "profile_stages"});
  fields.finish(service.unknown_fields());
  service.engine()->trace_steps(steps, [&config](const engine::StepTrace& trace) { write_trace(config, trace); });
  answer(exchange, fmt::format("the next {} steps are written to {}", steps, config.profile_folder));
}

void stop_profile(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  expect_no_fields(service, exchange);
  service.engine()->trace_steps(0, nullptr);
  answer(exchange, "no more steps are written");
}

}  // namespace sluice::server
