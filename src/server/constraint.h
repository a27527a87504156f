// SPDX-License-Identifier: Apache-2.0
// Constrained output: the fields of OpenAI, vLLM and SGLang that say what a text must be, as one grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "grammar/source.h"
#include "server/fields.h"
#include "server/reasoning/reasoning_format.h"
#include "server/served_model.h"

namespace sluice::server {

struct GivenConstraint {
  grammar::Source source;
  std::string field;  // of the request: "response_format"
};

// Of a chat or a completion: response_format, guided_json, guided_regex, guided_choice, guided_grammar,
// structured_outputs, json_schema, regex, ebnf, structural_tag. Nothing: any text. Throws ApiError 400, also for two.
std::optional<GivenConstraint> read_constraint(Fields& fields, UnknownFields& unknown);
// Of SGLang's sampling_params: json_schema, regex, ebnf, structural_tag. `path`: what errors put before their names.
std::optional<GivenConstraint> read_sampling_constraint(Fields& fields, std::string_view path);

// How an API writes the object that says what a text must be: {"type", ...}.
struct TextFormat {
  std::vector<std::string_view> types;  // that it has, of text, json_object, json_schema and structural_tag
  std::string_view schema_in = "";      // the object that holds a schema; "": it lies beside the type
};
// Of a chat's response_format, of text.format in /v1/responses and of output_config.format in /v1/messages.
const TextFormat& chat_format();
const TextFormat& responses_format();
const TextFormat& anthropic_format();

// Reads such an object, which errors call `path`. Nothing: any text. Throws ApiError 400.
std::optional<GivenConstraint> read_format(const io::JsonValue& format, const std::string& path, const TextFormat& form,
                                           UnknownFields& unknown);

// Takes the compiled grammar for `params`; throws NotCompiled (grammar_waiters.h) when it is not there yet.
// `reasoning`: how the answer begins where its thoughts are reported separately; they are free, and the constraint
// begins after them. Throws ApiError 400 that names the field and says what is wrong with the grammar, Error busy.
void apply_constraint(const GivenConstraint& given, const ServedModel& model,
                      const std::optional<ReasoningParser::State>& reasoning, engine::Params& params);

}  // namespace sluice::server
