// SPDX-License-Identifier: Apache-2.0
// GET /v1/models, /v1/models/{id}, /get_model_info (/model_info), /version
#include <algorithm>

#include "io/quote.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/endpoints.h"

namespace sluice::server {

namespace {
std::string card(const Service& service, const ServedModel& model, const std::string& name) {
  const auto created =
      unix_time() -
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - service.started()).count();
  return JsonObject()
      .add("id", name)
      .add("object", "model")
      .add("created", created)
      .add("owned_by", "sluice")
      .add("root", model.path)
      .raw("parent", "null")
      .add("max_model_len", service.engine()->limits().context_length)
      .str();
}
}  // namespace

void list_models(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  JsonArray data;
  for (const std::string& name : model->names) data.raw(card(service, *model, name));
  exchange->reply({.body = JsonObject().add("object", "list").raw("data", data.str()).str()});
}

void show_model(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const std::string name = http::percent_decoded(exchange->request().path.substr(std::string("/v1/models/").size()));
  if (!model->has_name(name))
    throw ApiError(404, "invalid_request_error", fmt::format("the model {} is not served here", io::quote(name)),
                   "model", "model_not_found");
  exchange->reply({.body = card(service, *model, name)});
}

void model_info(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const model::ModelInfo& info = model->info;
  const auto engine = service.engine();
  const SamplingDefaults& d = model->defaults;
  exchange->reply({.body = JsonObject()
                               .add("model_path", service.weights_path())
                               .add("tokenizer_path", model->path)
                               .add("is_generation", true)
                               .raw("preferred_sampling_params", "null")
                               .add("model_type", model->model_type)
                               .raw("architectures", JsonArray().raw(json_text(info.architecture)).str())
                               .add("has_image_understanding", false)
                               .add("has_audio_understanding", false)
                               .add("served_model_name", model->names[0])
                               .add("architecture", info.architecture)
                               .add("dtype", info.dtype == DType::f32 ? "float32" : "bfloat16")
                               .add("kv_cache_dtype", to_string(info.kv_dtype))
                               .add("vocab_size", info.vocab)
                               .add("num_layers", info.layers)
                               .add("hidden_size", info.hidden)
                               .add("experts", info.experts)
                               .add("weight_bytes", info.weight_bytes)
                               .add("weight_version", service.weight_version())
                               .add("context_length", engine->limits().context_length)
                               .add("max_running_requests", engine->config().max_running)
                               .add("chunked_prefill_size", engine->config().prefill_chunk)
                               .add("speculative_num_steps", engine->config().speculative_steps)
                               .raw("default_sampling_params", JsonObject()
                                                                   .add("temperature", d.temperature)
                                                                   .add("top_p", d.top_p)
                                                                   .add("top_k", d.top_k)
                                                                   .add("min_p", d.min_p)
                                                                   .add("repetition_penalty", d.repetition_penalty)
                                                                   .str())
                               .add("chat_template", model->chat_template_text())
                               .str()});
}

void version(Service& service, const ExchangePtr& exchange) {
  exchange->reply(
      {.body = JsonObject().add("version", service.config().version).add("build", service.config().build).str()});
}

}  // namespace sluice::server
