// SPDX-License-Identifier: Apache-2.0
// POST /v1/tokenize, /v1/detokenize, /v1/apply-template (each also without /v1)
#include "server/answer.h"
#include "server/api_error.h"
#include "server/chat_prompt.h"
#include "server/endpoints.h"
#include "server/json_out.h"
#include "server/openai_fields.h"
#include "server/prompts.h"

namespace sluice::server {

namespace {
// The guard's marks are for encode_chat() alone.
std::string shown(const ServedModel& model, const std::vector<int32_t>& ids) { return model.tokenizer.decode(ids); }
}  // namespace

// {"prompt": TEXT or [TEXT, ...], "add_special_tokens"}, or {"messages": [...]} through the chat template.
void tokenize(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  check_model_name(fields, *model);
  JsonObject out;
  if (fields.has("messages")) {
    const std::string text =
        render_chat(fields, *model, read_tools(fields, *model, service.formats().calls, chat_tools())).text;
    fields.finish(service.unknown_fields());
    const std::vector<int32_t> ids = model->encode_chat(text);
    out.raw("tokens", ids_json(ids)).add("count", ids.size());
  } else {
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    const io::JsonValue* prompt = fields.find("prompt");
    if (prompt == nullptr) fields.refuse("prompt", "is missing; accepted: a string or an array of strings");
    const bool several = prompt->as<io::JsonValue::Array>() != nullptr;
    const std::vector<std::string> texts = fields.string_or_strings("prompt", kMaxPrompts);
    fields.finish(service.unknown_fields());
    JsonArray tokens, counts;
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = model->tokenizer.encode(text, {.add_special_tokens = special});
      tokens.raw(ids_json(ids));
      counts.raw(std::to_string(ids.size()));
      if (!several) out.raw("tokens", ids_json(ids)).add("count", ids.size());
    }
    if (several) out.raw("tokens", tokens.str()).raw("count", counts.str());
  }
  out.add("max_model_len", service.engine()->limits().context_length);
  exchange->reply({.body = out.str()});
}

// {"tokens": [ID, ...] or [[ID, ...], ...], "skip_special_tokens"}
void detokenize(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  check_model_name(fields, *model);
  const bool skip = fields.boolean("skip_special_tokens").value_or(true);
  const io::JsonValue* tokens = fields.find("tokens");
  const auto* array = tokens == nullptr ? nullptr : tokens->as<io::JsonValue::Array>();
  if (array != nullptr && array->empty()) {
    fields.finish(service.unknown_fields());
    exchange->reply({.body = JsonObject().add("text", "").str()});
    return;
  }
  const bool several = array != nullptr && array->front().as<io::JsonValue::Array>() != nullptr;
  const std::vector<Prompt> lists = read_id_prompts(fields, "tokens", service.engine()->limits().vocab, true);
  fields.finish(service.unknown_fields());
  JsonArray texts;
  for (const Prompt& p : lists) texts.raw(json_text(model->tokenizer.decode(p.ids, skip)));
  JsonObject out;
  if (several)
    out.raw("text", texts.str());
  else
    out.add("text", model->tokenizer.decode(lists.front().ids, skip));
  exchange->reply({.body = out.str()});
}

// {"messages": [...]}: the prompt that a chat would be answered from.
void apply_template(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  check_model_name(fields, *model);
  const std::string text =
      render_chat(fields, *model, read_tools(fields, *model, service.formats().calls, chat_tools())).text;
  fields.finish(service.unknown_fields());
  exchange->reply({.body = JsonObject().add("prompt", shown(*model, model->encode_chat(text))).str()});
}

}  // namespace sluice::server
