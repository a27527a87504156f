// SPDX-License-Identifier: Apache-2.0
// OpenAI's "messages" as a chat template reads them.
#pragma once

#include <string>
#include <string_view>

#include "server/fields.h"
#include "server/served_model.h"
#include "text/jinja/value.h"

namespace sluice::server {

// What a template wants.
struct MessageForm {
  bool continued = false;          // the last message's content ends with kContinueMark and a space, to be found again
  bool null_content = false;       // a message of calls alone has the content none, not an empty string
  bool arguments_as_text = false;  // a call's arguments stay JSON text, as OpenAI's clients send them
};

struct Messages {
  text::jinja::Value list;  // of dict: role, content, and what else templates know; texts went through guard()
  // Role and text of the last message, without the marks that guard() put in.
  std::string last_role, last_content;
  bool has_arguments = false;  // texts that became objects, unless arguments_as_text
};

// JSON as a template's value; every text goes through guard().
text::jinja::Value to_template_value(const io::JsonValue& json, const ServedModel& model);

// Throws ApiError 400 for tools, or calls of tools, which the model's chat template would leave out in silence.
void check_template_knows_tools(const Fields& fields, std::string_view key, const ServedModel& model);

// Reads "messages". Clients send answers back as they or a library between kept them, so keys that say nothing to a
// template are passed over, here and in a message's parts. Throws ApiError 400 for what is no message and for content
// that is not text, or calls that the template leaves out: those must not be lost in silence.
Messages read_messages(Fields& fields, const ServedModel& model, const MessageForm& form);

// U+FDD1, a noncharacter "for internal use", as is ServedModel::guard()'s.
inline constexpr std::string_view kContinueMark = "\xEF\xB7\x91";

}  // namespace sluice::server
