// SPDX-License-Identifier: Apache-2.0
// Constrained output: the fields of OpenAI, vLLM and SGLang that say what a text must be, as one grammar.
#pragma once

#include <optional>
#include <string>

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

// Of other APIs, where `field` is: a schema, and JSON mode, which is any object.
GivenConstraint schema_constraint(const io::JsonValue& schema, const std::string& field);
GivenConstraint any_object_constraint(const std::string& field);

// Takes the compiled grammar for `params`; throws NotCompiled (grammar_waiters.h) when it is not there yet.
// `reasoning`: how the answer begins where its thoughts are reported separately; they are free, and the constraint
// begins after them. Throws ApiError 400 that names the field and says what is wrong with the grammar, Error busy.
void apply_constraint(const GivenConstraint& given, const ServedModel& model,
                      const std::optional<ReasoningParser::State>& reasoning, engine::Params& params);

}  // namespace sluice::server
