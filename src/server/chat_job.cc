// SPDX-License-Identifier: Apache-2.0
#include "server/chat_job.h"

#include "server/api_error.h"
#include "server/params.h"
#include "server/prompts.h"

namespace sluice::server {

namespace {
AnswerReading reading_of(const AnswerFormats& formats, const ServedModel& model, const ChatPrompt& prompt,
                         const ChatDemand& demand, bool constrained) {
  AnswerReading out;
  out.separate_reasoning = demand.separate_reasoning;
  out.tools = prompt.tools.tools;
  if (out.tools) {
    out.calls = formats.calls;
    out.options.new_id = [prefix = std::string(demand.call_ids)] { return new_call_id(prefix); };
    out.options.constrained = constrained;
    if (!prompt.tools.choice.parallel) out.options.most_calls = 1;
  }
  // Calls inside the reasoning do not count, so the reasoning is looked for even where it stays in the text.
  if (demand.separate_reasoning || out.calls != nullptr) out.reasoning = formats.reasoning;
  out.begin = {prompt.text, prompt.continued, !demand.separate_reasoning};
  if (out.reasoning != nullptr) out.thought_end = model.tokenizer.id_of(out.reasoning->close);
  return out;
}
}  // namespace

PreparedChat prepare_chat(const Service& service, const ServedModel& model, const engine::Limits& limits,
                          const ChatPrompt& prompt, engine::Request request, const ChatDemand& demand) {
  const AnswerFormats formats = service.formats();
  std::optional<GivenConstraint> constraint = demand.constraint;
  // With tools, a constraint of the text applies to answers that are not calls.
  const bool of_calls = prompt.tools.tools && (constraint || !prompt.tools.promise.empty());
  if (of_calls) constraint = call_constraint(prompt.tools, *formats.calls, constraint);
  PreparedChat out{std::move(request), reading_of(formats, model, prompt, demand, of_calls)};
  if ((out.reading.calls != nullptr && formats.calls_are_special) ||
      (out.reading.reasoning != nullptr && formats.reasoning_is_special))
    out.request.params.skip_special_tokens = false;
  // Thoughts that the answer's text has: their tags are shown as well.
  if (constraint && constraint->source.kind == grammar::Kind::structural_tag && out.reading.reasoning != nullptr)
    for (const std::string_view tag : out.reading.reasoning->tags) constraint->source.tags.emplace_back(tag);
  out.request.prompt = chat_prompt_ids(model, limits, prompt, demand.field);
  fit_to_context(out.request, kChatNames, limits.context_length, demand.field);
  if (constraint) apply_constraint(*constraint, model, out.reading.thoughts(), out.request.params);
  return out;
}

ChatPrompt render_translated(const ServedModel& model, const io::JsonValue& chat, ToolRequest tools,
                             std::string_view field) {
  Fields fields(chat);
  try {
    return render_chat(fields, model, std::move(tools));
  } catch (const ApiError& error) {
    const bool own = error.param == "chat_template_kwargs";  // has the same name in every form
    throw ApiError(error.status, error.type, error.what(), own ? error.param : std::string(field), error.code);
  }
}

std::vector<int32_t> chat_prompt_ids(const ServedModel& model, const engine::Limits& limits, const ChatPrompt& prompt,
                                     std::string_view field) {
  check_bytes(field, model.bytes_without_guards(prompt.text), model.tokenizer, limits.context_length);
  std::vector<int32_t> ids = model.encode_chat(prompt.text, static_cast<size_t>(limits.context_length));
  check_enough(field, ids.size(), limits.context_length);
  return ids;
}

}  // namespace sluice::server
