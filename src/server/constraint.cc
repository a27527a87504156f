// SPDX-License-Identifier: Apache-2.0
#include "server/constraint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "grammar/structural_tag.h"
#include "io/json_text.h"
#include "io/quote.h"
#include "server/api_error.h"
#include "server/grammar_waiters.h"

namespace sluice::server {

namespace {
using grammar::Kind;
using grammar::Source;
using io::JsonValue;

constexpr size_t kMaxChoices = 4096;  // of guided_choice
// Any object: what OpenAI calls JSON mode.
constexpr std::string_view kAnyObject = R"({"type":"object","additionalProperties":true})";

[[noreturn]] void refuse_value(const std::string& field, const JsonValue& value, std::string_view accepted) {
  refuse(field, fmt::format("{} is {}; accepted: {}", field, io::describe(value), accepted));
}

// A JSON document as itself, or as its text.
JsonValue document(const JsonValue& value, const std::string& field) {
  const auto* text = value.as<std::string>();
  if (text == nullptr) return value;
  try {
    return io::parse_json_value(*text, field);
  } catch (const Error& error) {
    refuse(field, error.what());
  }
}

Source schema_of(const JsonValue& value, const std::string& field) {
  const JsonValue schema = document(value, field);
  if (schema.as<JsonValue::Object>() == nullptr && schema.as<bool>() == nullptr)
    refuse_value(field, schema, "a JSON schema");
  return {Kind::json_schema, io::to_json_line(schema)};
}

Source text_of(Kind kind, const JsonValue& value, const std::string& field) {
  const auto* text = value.as<std::string>();
  if (text == nullptr || text->empty()) refuse_value(field, value, fmt::format("a {}", to_string(kind)));
  return {kind, *text};
}

Source choices_of(const JsonValue& value, const std::string& field) {
  const auto* list = value.as<JsonValue::Array>();
  if (list == nullptr || list->empty() || list->size() > kMaxChoices)
    refuse_value(field, value, fmt::format("an array of 1 to {} strings", kMaxChoices));
  std::vector<std::string> choices;
  for (const JsonValue& one : *list) {
    const auto* text = one.as<std::string>();
    if (text == nullptr || text->empty()) refuse_value(field, one, "strings that are not empty");
    choices.push_back(*text);
  }
  return grammar::one_of(choices);
}

Source tag_of(const JsonValue& value, const std::string& field) {
  const JsonValue tag = document(value, field);
  try {
    return grammar::structural_tag(tag);
  } catch (const Error& error) {
    refuse(field, fmt::format("{}: {}", field, error.what()));
  }
}

// Collects the constraint of one request, of which there may be one.
class Reader {
 public:
  Reader(Fields& fields, std::string_view path) : fields_(fields), path_(path) {}

  template <class Make>
  void field(std::string_view key, Make make) {
    const JsonValue* value = fields_.find(key);
    if (value != nullptr) add(name(key), make(*value, name(key)));
  }
  void text(std::string_view key, Kind kind) {
    const JsonValue* value = fields_.find(key);
    const auto* string = value == nullptr ? nullptr : value->as<std::string>();
    if (value == nullptr || (string != nullptr && string->empty())) return;  // SGLang's clients send ""
    add(name(key), text_of(kind, *value, name(key)));
  }
  void add(const std::string& field, Source source) {
    if (given_) refuse(field, fmt::format("{} is given beside {}; accepted: one constraint", field, given_->field));
    given_ = GivenConstraint{std::move(source), field};
  }
  std::optional<GivenConstraint> given() { return std::move(given_); }

 private:
  std::string name(std::string_view key) const { return fmt::format("{}{}", path_, key); }

  Fields& fields_;
  std::string path_;
  std::optional<GivenConstraint> given_;
};

void read_structured_outputs(Fields& fields, UnknownFields& unknown, Reader& out) {
  const JsonValue* given = fields.find("structured_outputs");
  if (given == nullptr) return;
  if (given->as<JsonValue::Object>() == nullptr) refuse_value("structured_outputs", *given, "an object");
  const std::string path = "structured_outputs.";
  Fields inner(*given, path);
  const auto take = [&](const char* key, auto make) {
    if (const JsonValue* value = inner.find(key)) out.add(path + key, make(*value, path + key));
  };
  take("json", schema_of);
  take("regex", [](const JsonValue& v, const std::string& name) { return text_of(Kind::regex, v, name); });
  take("grammar", [](const JsonValue& v, const std::string& name) { return text_of(Kind::ebnf, v, name); });
  take("choice", choices_of);
  take("structural_tag", tag_of);
  if (inner.boolean("json_object").value_or(false))
    out.add(path + "json_object", {Kind::json_schema, std::string(kAnyObject)});
  // There is no other library to fall back to; properties that a schema does not name are refused anyway.
  inner.ignore({"disable_fallback", "disable_additional_properties"});
  inner.refuse_unless_empty({"disable_any_whitespace", "whitespace_pattern"});
  inner.finish(unknown);
}

void read_sglang(Fields& fields, Reader& out) {
  const JsonValue* schema = fields.find("json_schema");
  const auto* text = schema == nullptr ? nullptr : schema->as<std::string>();
  if (text == nullptr || !text->empty()) out.field("json_schema", schema_of);
  out.text("regex", Kind::regex);
  out.text("ebnf", Kind::ebnf);
  const JsonValue* tag = fields.find("structural_tag");
  const auto* tag_text = tag == nullptr ? nullptr : tag->as<std::string>();
  if (tag_text == nullptr || !tag_text->empty()) out.field("structural_tag", tag_of);
}
}  // namespace

std::optional<GivenConstraint> read_constraint(Fields& fields, UnknownFields& unknown) {
  Reader out(fields, "");
  if (const JsonValue* format = fields.find("response_format"))
    if (auto given = read_format(*format, "response_format", chat_format(), unknown))
      out.add(given->field, std::move(given->source));
  read_structured_outputs(fields, unknown, out);
  out.field("guided_json", schema_of);
  out.text("guided_regex", Kind::regex);
  out.field("guided_choice", choices_of);
  out.text("guided_grammar", Kind::ebnf);
  fields.ignore({"guided_decoding_backend"});
  fields.refuse_unless_empty({"guided_whitespace_pattern"});
  read_sglang(fields, out);
  return out.given();
}

std::optional<GivenConstraint> read_sampling_constraint(Fields& fields, std::string_view path) {
  Reader out(fields, path);
  read_sglang(fields, out);
  return out.given();
}

const TextFormat& chat_format() {
  static const TextFormat form{{"text", "json_object", "json_schema", "structural_tag"}, "json_schema"};
  return form;
}

const TextFormat& responses_format() {
  static const TextFormat form{{"text", "json_object", "json_schema"}};
  return form;
}

const TextFormat& anthropic_format() {
  static const TextFormat form{{"json_schema"}};
  return form;
}

std::optional<GivenConstraint> read_format(const JsonValue& format, const std::string& path, const TextFormat& form,
                                           UnknownFields& unknown) {
  if (format.as<JsonValue::Object>() == nullptr) refuse_value(path, format, "an object with a type");
  Fields fields(format, path + ".");
  const JsonValue* given = fields.find("type");
  const std::string type = fields.string("type").value_or("");
  if (std::find(form.types.begin(), form.types.end(), type) == form.types.end())
    fields.refuse("type",
                  fmt::format("is {}; accepted: {}", given == nullptr ? "missing" : io::describe(*given),
                              fmt::join(form.types, ", ")),
                  "unsupported_parameter");
  std::optional<GivenConstraint> out;
  const auto read_schema = [&](Fields& inner, const std::string& field) {
    inner.ignore({"name", "description"});
    inner.boolean("strict");  // the schema is kept either way
    const JsonValue* schema = inner.find("schema");
    if (schema == nullptr) inner.refuse("schema", "is missing; accepted: a JSON schema");
    out = GivenConstraint{schema_of(*schema, field), field};
  };
  if (type == "json_object") {
    out = GivenConstraint{{Kind::json_schema, std::string(kAnyObject)}, path};
  } else if (type == "json_schema" && form.schema_in.empty()) {
    read_schema(fields, path + ".schema");
  } else if (type == "json_schema") {
    const std::string holder = fmt::format("{}.{}", path, form.schema_in);
    const JsonValue* object = fields.find(form.schema_in);
    if (object == nullptr || object->as<JsonValue::Object>() == nullptr)
      fields.refuse(form.schema_in, fmt::format("is {}; accepted: an object with a schema",
                                                object == nullptr ? "missing" : io::describe(*object)));
    Fields inner(*object, holder + ".");
    read_schema(inner, holder + ".schema");
    inner.finish(unknown);
  } else if (type == "structural_tag") {
    for (const char* key : {"format", "structures", "triggers"}) fields.find(key);
    out = GivenConstraint{tag_of(format, path), path};
  }
  fields.finish(unknown);
  return out;
}

void apply_constraint(const GivenConstraint& given, const ServedModel& model,
                      const std::optional<ReasoningParser::State>& reasoning, engine::Params& params) {
  using Begin = ReasoningParser::State;
  if (reasoning.value_or(Begin::answering) != Begin::answering) {
    const auto open = model.tokenizer.id_of("<think>"), close = model.tokenizer.id_of("</think>");
    if (close && (*reasoning == Begin::thinking || open)) {
      params.thoughts.close = *close;
      if (*reasoning == Begin::unknown) params.thoughts.open = *open;
    } else if (*reasoning == Begin::thinking) {
      refuse(
          given.field,
          fmt::format("{} is given, but this answer begins with thoughts, whose end </think> is no token of the model; "
                      "accepted: with separate_reasoning false",
                      given.field));
    }
  }
  try {
    params.grammar = model.grammars().try_compile(given.source);
    if (!params.grammar) throw NotCompiled{given.source};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported)
      refuse(given.field, fmt::format("{}: {}", given.field, error.what()), "unsupported_parameter");
    if (error.code() != ErrorCode::invalid_argument) throw;
    refuse(given.field, fmt::format("{}: {}", given.field, error.what()));
  }
}

}  // namespace sluice::server
