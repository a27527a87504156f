// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic_writer.h"

#include <utility>

#include "server/api_error.h"
#include "server/json_out.h"
#include "server/tool_calls/close_json.h"
#include "server/tool_calls/json_scanner.h"

namespace sluice::server {

namespace {
std::string anthropic_error(const ApiError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status == 403 ? "permission_error"
                     : error.status == 404 ? "not_found_error"
                     : error.status == 413 ? "request_too_large"
                     : error.status == 503 ? "overloaded_error"
                     : error.status >= 500 ? "api_error"
                                           : "invalid_request_error";
  const auto text_or_null = [](const std::string& text) { return text.empty() ? "null" : json_text(text); };
  JsonObject object;
  object.add("message", error.what()).add("type", type);
  object.raw("param", text_or_null(error.param)).raw("code", text_or_null(error.code));
  if (error.code == kNoThreads)
    object.raw("details", JsonObject().add("error_code", kNoThreads).raw("unsupported", R"(["thread"])").str());
  return JsonObject().add("type", "error").raw("error", object.str()).str();
}

std::string named_event(std::string_view name, std::string_view json) {
  return fmt::format("event: {}\ndata: {}\n\n", name, json);
}

std::string block_event(const char* type, int index, const char* key, const std::string& json) {
  JsonObject out;
  out.add("type", type).add("index", index);
  if (key != nullptr) out.raw(key, json);
  return named_event(type, out.str());
}

// The key of a block's text, in a block and in an event.
const char* text_key(AnswerPart::Kind kind) { return kind == AnswerPart::Kind::thought ? "thinking" : "text"; }

// `input`: the JSON of a call's arguments.
std::string block_json(const AnswerPart& block, const std::string& text, const std::string& input) {
  JsonObject out;
  if (block.kind == AnswerPart::Kind::call)
    return out.add("type", "tool_use").add("id", block.call.id).add("name", block.call.name).raw("input", input).str();
  out.add("type", text_key(block.kind)).add(text_key(block.kind), text);
  if (block.kind == AnswerPart::Kind::thought) out.add("signature", "");
  return out.str();
}

std::string delta_json(const AnswerPart& part) {
  if (part.kind == AnswerPart::Kind::arguments)
    return JsonObject().add("type", "input_json_delta").add("partial_json", part.text).str();
  const std::string key = text_key(part.kind);
  return JsonObject().add("type", key + "_delta").add(key, part.text).str();
}
}  // namespace

http::Response anthropic_error_response(const ApiError& error) {
  http::Response response = error_response(error);
  response.body = anthropic_error(error);
  return response;
}

std::string MessageWriter::stream_event(size_t, const engine::Event& event) {
  std::string out;
  usage_ = event.usage;
  // With the first event, which knows what the prefix cache had.
  if (!std::exchange(begun_, true))
    out += named_event("message_start",
                       JsonObject().add("type", "message_start").raw("message", message("[]", nullptr)).str());
  for (const AnswerPart& part : parser_.push(event)) {
    out += open(part);
    if (part.kind != Kind::call) out += block_event("content_block_delta", index_, "delta", delta_json(part));
  }
  if (event.reason == engine::FinishReason::none) return out;
  out += close();
  const std::string delta =
      JsonObject().raw("stop_reason", stop_reason(event)).raw("stop_sequence", stop_sequence(event)).str();
  JsonObject last;
  last.add("type", "message_delta").raw("delta", delta).raw("usage", usage_json());
  return out += named_event("message_delta", last.add("weight_version", weight_version()).str());
}

std::string MessageWriter::end_stream() { return named_event("message_stop", R"({"type":"message_stop"})"); }
std::string MessageWriter::error_event(const ApiError& error) { return named_event("error", anthropic_error(error)); }
http::Response MessageWriter::error_reply(const ApiError& error) { return anthropic_error_response(error); }

void MessageWriter::add(size_t, const engine::Event& event) {
  usage_ = event.usage;
  for (const AnswerPart& part : parser_.push(event)) open(part);
  if (event.reason == engine::FinishReason::none) return;
  close();
  last_ = event;
}

std::string MessageWriter::whole() { return message(content_.str(), &last_); }

// Adds the part to the open block, or closes that and begins another if the part belongs elsewhere.
std::string MessageWriter::open(const AnswerPart& part) {
  std::string out;
  const bool goes_on = is_open_ && (part.kind == block_.kind || part.kind == Kind::arguments);
  if (!goes_on || part.kind == Kind::call) {
    out = close();
    block_ = {part.kind, "", part.call};
    is_open_ = true;
    out += block_event("content_block_start", index_, "content_block", block_json(block_, "", "{}"));
  }
  block_.text += part.text;
  return out;
}

std::string MessageWriter::close() {
  if (!std::exchange(is_open_, false)) return {};
  // A call that broke off: its input is made of what the stream has sent of it.
  const bool whole = block_.kind != Kind::call || is_json_object(block_.text);
  content_.raw(block_json(block_, block_.text, whole ? block_.text : closed_json(block_.text)));
  return block_event("content_block_stop", index_++, nullptr, "");
}

// A message that ended by itself and has calls waits for their results.
std::string MessageWriter::stop_reason(const engine::Event& event) const {
  if (event.reason == engine::FinishReason::length) return "\"max_tokens\"";
  if (event.reason != engine::FinishReason::stop) return "null";
  if (parser_.calls() > 0) return "\"tool_use\"";
  return event.stop_string ? "\"stop_sequence\"" : "\"end_turn\"";
}

std::string MessageWriter::stop_sequence(const engine::Event& event) const {
  return event.stop_string ? json_text(*event.stop_string) : "null";
}

// Anthropic counts cached tokens separately.
std::string MessageWriter::usage_json() const {
  return JsonObject()
      .add("input_tokens", usage_.prompt_tokens - usage_.cached_tokens)
      .add("cache_creation_input_tokens", 0)
      .add("cache_read_input_tokens", usage_.cached_tokens)
      .add("output_tokens", usage_.completion_tokens)
      .str();
}

std::string MessageWriter::message(const std::string& content, const engine::Event* last) const {
  JsonObject out;
  out.add("id", id_)
      .add("type", "message")
      .add("role", "assistant")
      .add("model", model_->names[0])
      .raw("content", content)
      .raw("stop_reason", last == nullptr ? "null" : stop_reason(*last))
      .raw("stop_sequence", last == nullptr ? "null" : stop_sequence(*last))
      .raw("usage", usage_json());
  if (last != nullptr) out.add("weight_version", weight_version());
  return out.str();
}

}  // namespace sluice::server
