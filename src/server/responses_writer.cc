// SPDX-License-Identifier: Apache-2.0
#include "server/responses_writer.h"

#include <algorithm>
#include <utility>

#include "server/api_error.h"
#include "server/json_out.h"
#include "server/tool_calls/json_scanner.h"

namespace sluice::server {

namespace {
// What an item of a kind is called in ids and events; a call has no part within it.
struct ItemNames {
  const char *id, *delta, *done, *text;
};
ItemNames names_of(AnswerPart::Kind kind) {
  switch (kind) {
    case AnswerPart::Kind::thought:
      return {"rs", "response.reasoning_text.delta", "response.reasoning_text.done", "text"};
    case AnswerPart::Kind::content:
      return {"msg", "response.output_text.delta", "response.output_text.done", "text"};
    default:
      return {"fc", "response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments"};
  }
}
}  // namespace

std::string ResponseWriter::begin_stream() {
  std::string out = state_event("response.created", "in_progress");
  return out += state_event("response.in_progress", "in_progress");
}

std::string ResponseWriter::stream_event(size_t, const engine::Event& e) {
  usage_ = e.usage;
  last_ = e.reason;
  add_tokens(e);
  std::string out;
  for (const AnswerPart& part : parser_.push(e)) out += piece(part);
  return e.reason == engine::FinishReason::none ? out : out + close();
}

std::string ResponseWriter::end_stream() { return state_event(std::string("response.") + status(), status()); }

std::string ResponseWriter::error_event(const ApiError& error) {
  JsonObject out;
  out.add("code", error.code).add("message", error.what());
  return event("error", out.raw("param", error.param.empty() ? "null" : json_text(error.param)));
}

void ResponseWriter::add(size_t prompt, const engine::Event& e) { stream_event(prompt, e); }

std::string ResponseWriter::whole() { return response(status()); }

std::string ResponseWriter::event(std::string_view type, JsonObject rest) {
  JsonObject out;
  out.add("type", type).add("sequence_number", sequence_++).append(rest);
  return fmt::format("event: {}\ndata: {}\n\n", type, out.str());
}

std::string ResponseWriter::state_event(const std::string& type, const std::string& state) {
  return event(type, JsonObject().raw("response", response(state)));
}

// Where the open item's text is.
JsonObject ResponseWriter::of_part() const {
  JsonObject out;
  out.add("item_id", item_id_).add("output_index", items_);
  if (item_.kind != Kind::call) out.add("content_index", 0);
  return out;
}

std::string ResponseWriter::part_json() const {
  JsonObject out;
  if (item_.kind == Kind::thought) return out.add("type", "reasoning_text").add("text", item_.text).str();
  out.add("type", "output_text").add("text", item_.text).raw("annotations", "[]");
  return out.raw("logprobs", item_tokens_.str()).str();
}

std::string ResponseWriter::item_json(const char* item_status, bool begins) const {
  JsonObject out;
  out.add("id", item_id_);
  if (item_.kind == Kind::call)
    out.add("type", "function_call")
        .add("call_id", item_.call.id)
        .add("name", item_.call.name)
        .add("arguments", item_.text);
  else if (item_.kind == Kind::thought)
    out.add("type", "reasoning").raw("summary", "[]");
  else
    out.add("type", "message").add("role", "assistant");
  out.add("status", item_status);
  if (item_.kind != Kind::call) out.raw("content", begins ? "[]" : JsonArray().raw(part_json()).str());
  return out.str();
}

// The token that ended the answer has no text.
void ResponseWriter::add_tokens(const engine::Event& e) {
  if (!logprobs_.wanted) return;
  tokens_.insert(tokens_.end(), e.logprobs.begin(), e.logprobs.end());
  if (e.stop_token && !tokens_.empty() && tokens_.back().chosen.token == *e.stop_token) tokens_.pop_back();
}

// The tokens that go with a part. Texts wait until they are certain, and one event may bring a text and a call: which
// of its tokens made which is not known, and they go with the text. A thought's end is known where it is one token.
JsonArray ResponseWriter::take_tokens(Kind kind) {
  const auto ends_thought = [&](const sampling::TokenLogprob& token) { return token.chosen.token == thought_end_; };
  const auto end = std::find_if(tokens_.begin(), tokens_.end(), ends_thought);
  const bool ended = end != tokens_.end();
  if (ended) tokens_.erase(tokens_.begin(), end + 1);
  JsonArray out;
  if (kind == Kind::thought && ended) return out;  // the others are the text's
  if (kind == Kind::content)
    for (const sampling::TokenLogprob& token : tokens_) {
      const std::string json = token_logprob_json(*model_, token, logprobs_.top, TokenNames::text);
      out.raw(json);
      item_tokens_.raw(json);
    }
  tokens_.clear();
  return out;
}

std::string ResponseWriter::piece(const AnswerPart& part) {
  const bool goes_on = is_open_ && (part.kind == item_.kind || part.kind == Kind::arguments);
  std::string out;
  if (!goes_on || part.kind == Kind::call) out = open(part);
  const JsonArray tokens = take_tokens(part.kind);
  if (part.kind == Kind::call) return out;
  item_.text += part.text;
  JsonObject delta = of_part();
  delta.add("delta", part.text);
  if (part.kind == Kind::content) delta.raw("logprobs", tokens.str());
  return out += event(names_of(item_.kind).delta, delta);
}

std::string ResponseWriter::open(const AnswerPart& part) {
  std::string out = close();
  item_ = {part.kind, "", part.call};
  item_tokens_ = {};
  is_open_ = true;
  item_id_ = fmt::format("{}_{}_{}", names_of(part.kind).id, id_, items_);
  JsonObject added;
  added.add("output_index", items_).raw("item", item_json("in_progress", true));
  out += event("response.output_item.added", added);
  if (part.kind != Kind::call) out += event("response.content_part.added", of_part().raw("part", part_json()));
  return out;
}

std::string ResponseWriter::close() {
  if (!std::exchange(is_open_, false)) return {};
  const ItemNames names = names_of(item_.kind);
  JsonObject all = of_part();
  if (item_.kind == Kind::call) all.add("name", item_.call.name);
  all.add(names.text, item_.text);
  if (item_.kind == Kind::content) all.raw("logprobs", item_tokens_.str());
  std::string out = event(names.done, all);
  if (item_.kind != Kind::call) out += event("response.content_part.done", of_part().raw("part", part_json()));
  // The answer's last item broke off with it; a call may be complete all the same, and one before others may not be.
  const bool cut = last_ != engine::FinishReason::none && last_ != engine::FinishReason::stop;
  const bool complete = item_.kind == Kind::call ? is_json_object(item_.text) : !cut;
  const std::string item = item_json(complete ? "completed" : "incomplete", false);
  JsonObject done;
  out += event("response.output_item.done", done.add("output_index", items_++).raw("item", item));
  output_.raw(item);
  return out;
}

std::string ResponseWriter::response(const std::string& state) const {
  const bool over = state != "in_progress";
  const char* why = last_ == engine::FinishReason::length ? "max_output_tokens" : "aborted";
  JsonObject out;
  out.add("id", id_)
      .add("object", "response")
      .add("created_at", created_)
      .add("status", state)
      .add("background", false)
      .raw("error", "null")
      .raw("incomplete_details", state == "incomplete" ? JsonObject().add("reason", why).str() : "null")
      .raw("instructions", echo_.instructions)
      .raw("max_output_tokens", echo_.max_output_tokens ? std::to_string(*echo_.max_output_tokens) : "null")
      .add("model", model_->names[0])
      .raw("output", over ? output_.str() : "[]")
      .add("parallel_tool_calls", echo_.parallel_tool_calls)
      .raw("previous_response_id", "null")
      .raw("reasoning", JsonObject().raw("effort", echo_.effort).raw("summary", "null").str())
      .add("store", false)
      .add("temperature", echo_.temperature)
      .raw("text", JsonObject().raw("format", echo_.format).str())
      .raw("tool_choice", echo_.tool_choice)
      .raw("tools", echo_.tools)
      .add("top_logprobs", logprobs_.top)
      .add("top_p", echo_.top_p)
      .add("truncation", "disabled");
  if (over)
    out.raw("usage",
            JsonObject()
                .add("input_tokens", usage_.prompt_tokens)
                .raw("input_tokens_details", JsonObject().add("cached_tokens", usage_.cached_tokens).str())
                .add("output_tokens", usage_.completion_tokens)
                .raw("output_tokens_details", JsonObject().add("reasoning_tokens", parser_.thought_tokens()).str())
                .add("total_tokens", usage_.prompt_tokens + usage_.completion_tokens)
                .str());
  else
    out.raw("usage", "null");
  out.raw("user", echo_.user).raw("metadata", echo_.metadata);
  if (over) out.add("weight_version", weight_version());  // beside "metadata", which is the request's own
  return out.str();
}

}  // namespace sluice::server
