// SPDX-License-Identifier: Apache-2.0
// The tools of a request, in whatever API's form.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/constraint.h"
#include "server/fields.h"
#include "server/served_model.h"
#include "server/tool_calls/call_format.h"
#include "text/jinja/value.h"

namespace sluice::server {

inline constexpr size_t kMostTools = 128;  // as OpenAI

// What a request says of how its tools are to be used.
struct ToolChoice {
  bool none = false;                 // no calls
  bool required = false;             // a call must come
  bool parallel = true;              // more than one call in an answer
  std::vector<std::string> allowed;  // of these functions alone; empty: of all
};

struct ToolRequest {
  std::shared_ptr<const Tools> tools;  // null: the model is not shown any, and its text is not searched for calls
  text::jinja::Value for_template;     // OpenAI's array of them; undefined when there are no tools
  ToolChoice choice;
  // The field that asks for what only a constrained answer can promise: a call that must come, calls of some of the
  // tools alone, or arguments that must fit their schema (Tool::strict). "": none does.
  std::string promise;
};

// How an API writes a tool and the choice among them.
struct ToolForm {
  const char* type;           // that its functions have
  bool type_needed;           // or it may be left out
  const char* inner;          // the object within a tool that holds what follows; "": the tool itself
  const char* parameters;     // what the schema of the arguments is called
  bool refuses_more = false;  // members that would change the prompt: Anthropic's
  ToolChoice (*choice)(Fields& fields, const Tools& tools);
};

// Reads "tools" and what says how to use them. format: what the served model's calls look like; nullptr: unknown.
// Throws ApiError 400 for tools that cannot be shown to the model or whose calls would not be recognised.
ToolRequest read_tools(Fields& fields, const ServedModel& model, const CallFormat* format, const ToolForm& form);

// The forms of tools in /v1/chat/completions, /v1/responses and /v1/messages.
const ToolForm& chat_tools();
const ToolForm& responses_tools();
const ToolForm& anthropic_tools();

// The constraint under which an answer keeps to the request's tool choice. `otherwise`: the constraint of an answer
// that is not a call. Throws ApiError 400.
GivenConstraint call_constraint(const ToolRequest& request, const CallFormat& format,
                                const std::optional<GivenConstraint>& otherwise);

}  // namespace sluice::server
