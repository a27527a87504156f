// SPDX-License-Identifier: Apache-2.0
// A JSON schema on its way to the library. xgrammar looks at one keyword of a schema object ($ref, const, enum, anyOf,
// oneOf, allOf, then type) and ignores every keyword beside it; it warns of some keywords that it does not know, and
// resolves references without looking for cycles. Here each of these is an error. Strings with a pattern or a format
// would in some cases not be JSON: that is repaired or refused too.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/source.h"
#include "grammar/tag_styles.h"
#include "io/json_text.h"
#include "io/json_value.h"
#include "io/quote.h"

namespace sluice::grammar {

namespace {
using io::JsonMember;
using io::JsonValue;
using Names = std::span<const std::string_view>;

// Keywords of which xgrammar looks at the first one alone, in its order.
constexpr std::string_view kDeciding[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr std::string_view kObject[] = {"properties",    "required",      "additionalProperties", "patternProperties",
                                        "propertyNames", "minProperties", "maxProperties"};
constexpr std::string_view kArray[] = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::string_view kString[] = {"minLength", "maxLength", "pattern"};
constexpr std::string_view kNumber[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kNever[] = {"not",
                                       "if",
                                       "dependentRequired",
                                       "dependentSchemas",
                                       "dependencies",
                                       "contains",
                                       "$dynamicRef",
                                       "$recursiveRef",
                                       "extends",
                                       "unevaluatedItems",
                                       "unevaluatedProperties",
                                       "disallow",
                                       "divisibleBy"};
constexpr std::string_view kCounts[] = {"minItems",      "maxItems",      "minLength",  "maxLength",
                                        "minProperties", "maxProperties", "minContains"};
// Keywords that imply a type where a schema names none.
constexpr std::string_view kMeansObject[] = {"properties", "additionalProperties"};
constexpr std::string_view kMeansArray[] = {"items", "prefixItems"};
// Keywords whose values hold schemas.
constexpr std::string_view kLists[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::string_view kSingle[] = {"items", "additionalProperties", "propertyNames"};
// Repetitions become parts of the grammar: a list of a million places compiles for minutes.
constexpr int64_t kMostCounted = 10'000;

// RFC 5321's addresses without quoted local parts, in which xgrammar's own form takes escapes that JSON has not.
constexpr std::string_view kEmail =
    "^[\\w!#$%&'*+/=?^`{|}~-]+(\\.[\\w!#$%&'*+/=?^`{|}~-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
    "(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$";

bool is_one_of(std::string_view key, Names names) { return std::find(names.begin(), names.end(), key) != names.end(); }

std::string_view type_of(const JsonValue& v) {
  if (v.is_null()) return "null";
  if (v.as<bool>() != nullptr) return "boolean";
  if (v.as<int64_t>() != nullptr) return "integer";
  if (const auto* d = v.as<double>()) return *d == std::floor(*d) ? "integer" : "number";
  if (v.as<std::string>() != nullptr) return "string";
  return v.as<JsonValue::Array>() != nullptr ? "array" : "object";
}

class SchemaCheck {
 public:
  // style: of arguments between tags; nullptr: the document is JSON.
  SchemaCheck(JsonValue& root, bool closed, Prepared& out, const TagStyle* style = nullptr)
      : root_(root), closed_(closed), style_(style), out_(out) {}

  // Places that references lead to are looked at one after another: a chain of thousands of them must not be a stack.
  void run() {
    pending_.emplace_back(&root_, "#");
    while (!pending_.empty()) {
      const auto [target, path] = std::move(pending_.back());
      pending_.pop_back();
      schema(*target, path);
    }
  }

 private:
  static void refuse(const std::string& path, const std::string& what) {
    fail(ErrorCode::invalid_argument, "the JSON schema at {} {}", path, what);
  }

  void schema(JsonValue& s, const std::string& path) {
    if (!seen_.insert(&s).second) return;
    if (s.as<bool>() != nullptr) return;
    auto* object = std::get_if<JsonValue::Object>(&s.value);
    if (object == nullptr) refuse(path, fmt::format("is {}; accepted: an object or a boolean", io::describe(s)));
    for (const JsonMember& m : *object) keyword(m, path);
    strings(*object, s, path);
    const std::string_view deciding = check_deciding(*object, s, path);
    if (deciding == "$ref") return reference(*s.member("$ref"), path);
    if (deciding.empty()) {
      check_typed(*object, s, path);
      check_names(s, path);
    }
    descend(*object, path);
  }

  void keyword(const JsonMember& m, const std::string& path) const {
    if (is_one_of(m.key, kNever) || (m.key == "uniqueItems" && m.value != JsonValue{false}))
      refuse(path, fmt::format("has {}, which constrained output does not support", m.key));
    if (is_one_of(m.key, kCounts)) {
      const auto* count = m.value.as<int64_t>();
      if (count == nullptr || *count < 0 || *count > kMostCounted)
        refuse(path,
               fmt::format("has {} {}; accepted: integers from 0 to {}", m.key, io::describe(m.value), kMostCounted));
    }
    if (style_ != nullptr) check_tags(m, path);
    if (m.key == "pattern") {
      const auto* pattern = m.value.as<std::string>();
      if (pattern == nullptr)
        refuse(path, fmt::format("has the pattern {}; accepted: a string", io::describe(m.value)));
      check_bounded(*pattern, path + "/pattern");
    }
    if (m.key == "patternProperties")
      for (const JsonMember& p : members(m.value, path, m.key)) check_bounded(p.key, path + "/patternProperties");
  }

  // Between tags a value ends where its closing tag begins, and a name where a tag does.
  void check_tags(const JsonMember& m, const std::string& path) const {
    if (m.key == "enum" || m.key == "const") {
      if (const std::string* text = text_with(style_->end, m.value))
        refuse(path, fmt::format("has the value {} in {}; accepted where arguments stand between tags: "
                                 "values without the tag {}, which ends them",
                                 io::quote(*text), m.key, style_->end));
    } else if (m.key == "properties") {
      for (const JsonMember& p : members(m.value, path, m.key))
        if (p.key.empty() || p.key.find_first_of(style_->never) != p.key.npos)
          refuse(path, fmt::format("names the property {}; accepted where arguments stand between tags: "
                                   "names of at least one character and without {}",
                                   io::quote(p.key), io::quote(style_->never)));
    }
  }

  // A text or name within `v` that holds `tag`, or nullptr.
  static const std::string* text_with(std::string_view tag, const JsonValue& v) {
    const auto holds = [&](const std::string& s) { return s.find(tag) != s.npos; };
    if (const auto* text = v.as<std::string>()) return holds(*text) ? text : nullptr;
    const std::string* found = nullptr;
    if (const auto* array = v.as<JsonValue::Array>())
      for (size_t i = 0; found == nullptr && i < array->size(); ++i) found = text_with(tag, (*array)[i]);
    if (const auto* object = v.as<JsonValue::Object>())
      for (size_t i = 0; found == nullptr && i < object->size(); ++i)
        found = holds((*object)[i].key) ? &(*object)[i].key : text_with(tag, (*object)[i].value);
    return found;
  }

  void strings(JsonValue::Object& object, JsonValue& s, const std::string& path) {
    out_.lengths = out_.lengths || s.member("minLength") != nullptr || s.member("maxLength") != nullptr;
    const JsonValue* format = s.member("format");
    const auto* name = format == nullptr ? nullptr : format->as<std::string>();
    if (name != nullptr && (*name == "json-pointer" || *name == "relative-json-pointer"))
      refuse(path, fmt::format("has the format {}, which constrained output does not support", *name));
    for (JsonMember& m : object) {
      if (m.key == "format" && name != nullptr && *name == "email") {
        for (const std::string_view other : kString)
          if (s.member(other) != nullptr)
            refuse(path, fmt::format("has {} beside format; accepted: one of them", other));
        m = {"pattern", {std::string(kEmail)}};
        out_.patterns.emplace_back(kEmail);
      } else if (m.key == "pattern") {
        std::string& pattern = std::get<std::string>(m.value.value);
        out_.patterns.push_back(pattern = adapted_pattern(pattern, "pattern"));
      } else if (m.key == "patternProperties") {
        for (JsonMember& p : std::get<JsonValue::Object>(m.value.value))
          out_.patterns.push_back(p.key = adapted_pattern(p.key, "pattern"));
      }
    }
  }

  static void check_bounded(std::string_view pattern, const std::string& path) {
    check(pattern.size() <= kMaxRegexBytes, "the pattern of the JSON schema at {} has {} bytes; accepted: at most {}",
          path, pattern.size(), kMaxRegexBytes);
    check_string_pattern(pattern, fmt::format("pattern of the JSON schema at {}", path));
  }

  static const JsonValue::Object& members(const JsonValue& v, const std::string& path, std::string_view key) {
    return members(const_cast<JsonValue&>(v), path, key);
  }
  static JsonValue::Object& members(JsonValue& v, const std::string& path, std::string_view key) {
    auto* object = std::get_if<JsonValue::Object>(&v.value);
    if (object == nullptr) refuse(path, fmt::format("has {} {}; accepted: an object", key, io::describe(v)));
    return *object;
  }

  // The keyword that decides alone, or ""; throws for one beside it that would then have no effect.
  std::string_view check_deciding(const JsonValue::Object& object, const JsonValue& s, const std::string& path) const {
    const auto deciding =
        std::find_if(std::begin(kDeciding), std::end(kDeciding), [&](auto key) { return s.member(key) != nullptr; });
    if (deciding == std::end(kDeciding)) return {};
    const bool values = *deciding == "enum" || *deciding == "const";
    for (const JsonMember& m : object) {
      if (m.key == *deciding || !constrains(m.key)) continue;
      if (values && m.key == "type") {
        check_values(*s.member(*deciding), *deciding, m.value, path);
        continue;
      }
      refuse(path, fmt::format("has {} beside {}; accepted: {} alone", m.key, *deciding, *deciding));
    }
    return *deciding;
  }

  static bool constrains(std::string_view key) {
    return key == "type" || is_one_of(key, kDeciding) || is_one_of(key, kObject) || is_one_of(key, kArray) ||
           is_one_of(key, kString) || is_one_of(key, kNumber);
  }

  // enum and const give their values whatever the type says.
  static void check_values(const JsonValue& given, std::string_view keyword, const JsonValue& type,
                           const std::string& path) {
    const std::span<const JsonValue> values = keyword == "enum" && given.as<JsonValue::Array>() != nullptr
                                                  ? std::span<const JsonValue>(*given.as<JsonValue::Array>())
                                                  : std::span<const JsonValue>(&given, 1);
    for (const JsonValue& v : values) {
      const std::string_view is = type_of(v);
      const auto fits = [&](const JsonValue& t) {
        const auto* name = t.as<std::string>();
        return name != nullptr && (*name == is || (*name == "number" && is == "integer"));
      };
      const auto* types = type.as<JsonValue::Array>();
      if (types == nullptr ? !fits(type) : std::none_of(types->begin(), types->end(), fits))
        refuse(path, fmt::format("has the value {} in {}, which is not of its type {}", io::describe(v), keyword,
                                 io::describe(type)));
    }
  }

  // Without a type, some keywords mean objects or arrays to xgrammar, and the others nothing.
  static void check_typed(const JsonValue::Object& object, const JsonValue& s, const std::string& path) {
    if (s.member("type") != nullptr) return;
    const auto any = [&](Names names) {
      return std::any_of(names.begin(), names.end(), [&](auto key) { return s.member(key) != nullptr; });
    };
    if (any(kMeansObject) || any(kMeansArray)) return;
    for (const JsonMember& m : object)
      if (constrains(m.key))
        refuse(path, fmt::format("has {} without a type; accepted: with the type it is for", m.key));
  }

  // A required property must have a place in the order of the properties. And where other properties are allowed, a
  // name that JSON writes with escapes would be taken for another one.
  void check_names(const JsonValue& s, const std::string& path) const {
    const JsonValue* properties = s.member("properties");
    if (const JsonValue* required = s.member("required")) {
      const auto* names = required->as<JsonValue::Array>();
      if (names == nullptr) refuse(path, fmt::format("has required {}; accepted: an array", io::describe(*required)));
      for (const JsonValue& name : *names) {
        const auto* text = name.as<std::string>();
        if (text == nullptr || properties == nullptr || properties->member(*text) == nullptr)
          refuse(path, fmt::format("requires {}; accepted: names of its properties", io::describe(name)));
      }
    }
    const JsonValue* more = s.member("additionalProperties");
    const bool open = more == nullptr ? !closed_ : *more != JsonValue{false};
    if (!open || properties == nullptr) return;
    for (const JsonMember& p : members(*properties, path, "properties"))
      if (std::any_of(p.key.begin(), p.key.end(), [](char c) { return c == '"' || c == '\\' || c < 0x20 || c > 0x7e; }))
        refuse(path, fmt::format("names the property {}; accepted where other properties are allowed: "
                                 "names of ASCII without quotation marks, backslashes and control characters",
                                 io::quote(p.key)));
  }

  void descend(JsonValue::Object& object, const std::string& path) {
    for (JsonMember& m : object) {
      const std::string inner = fmt::format("{}/{}", path, m.key);
      if (m.key == "properties" || m.key == "patternProperties") {
        for (JsonMember& p : members(m.value, path, m.key)) schema(p.value, fmt::format("{}/{}", inner, p.key));
      } else if (is_one_of(m.key, kLists)) {
        auto* list = std::get_if<JsonValue::Array>(&m.value.value);
        if (list == nullptr || list->empty())
          refuse(path, fmt::format("has {} {}; accepted: an array of schemas", m.key, io::describe(m.value)));
        for (size_t i = 0; i < list->size(); ++i) schema((*list)[i], fmt::format("{}/{}", inner, i));
      } else if (is_one_of(m.key, kSingle)) {
        schema(m.value, inner);
      }
    }
  }

  // Follows the reference; a circle of references alone would be followed for ever.
  void reference(const JsonValue& ref, const std::string& path) {
    std::set<std::string> followed;
    const JsonValue* at = &ref;
    for (;;) {
      const auto* uri = at->as<std::string>();
      if (uri == nullptr || (*uri != "#" && !uri->starts_with("#/")))
        refuse(path,
               fmt::format("has the $ref {}; accepted: a place in this schema, \"#/$defs/name\"", io::describe(*at)));
      if (!followed.insert(*uri).second) refuse(path, fmt::format("has the $ref {}, which leads back to itself", *uri));
      JsonValue* target = resolve(*uri, path);
      at = target->member("$ref");
      if (at != nullptr && at->as<std::string>() != nullptr) continue;
      pending_.emplace_back(target, *uri);
      return;
    }
  }

  JsonValue* resolve(std::string_view uri, const std::string& path) const {
    JsonValue* at = &root_;
    for (size_t begin = 1; begin < uri.size();) {
      const size_t end = std::min(uri.find('/', begin + 1), uri.size());
      const std::string_view key = uri.substr(begin + 1, end - begin - 1);
      at = key.empty() ? nullptr : at->member(key);
      if (at == nullptr) refuse(path, fmt::format("has the $ref {}, which leads nowhere", io::quote(uri)));
      begin = end;
    }
    return at;
  }

  JsonValue& root_;
  bool closed_;
  const TagStyle* style_;
  Prepared& out_;
  std::set<const JsonValue*> seen_;
  std::vector<std::pair<JsonValue*, std::string>> pending_;
};

// nullptr: JSON, or a style that no format of calls has.
const TagStyle* style_of(const JsonValue& format) {
  const JsonValue* given = format.member("style");
  const auto* name = given == nullptr ? nullptr : given->as<std::string>();
  const auto* style = std::find_if(std::begin(kTagStyles), std::end(kTagStyles),
                                   [&](const TagStyle& s) { return name != nullptr && s.name == *name; });
  return style == std::end(kTagStyles) ? nullptr : style;
}

// A pattern names a tag with backslashes before its bars.
std::string without_backslashes(std::string pattern) {
  std::erase(pattern, '\\');
  return pattern;
}

// The schemas, patterns and grammars in a structural tag, at any depth, and its other texts: the tags are among them.
void prepare_formats(JsonValue& v, Prepared& out) {
  if (auto* array = std::get_if<JsonValue::Array>(&v.value))
    for (JsonValue& element : *array) {
      if (const auto* text = element.as<std::string>()) out.tags.push_back(*text);
      prepare_formats(element, out);
    }
  auto* object = std::get_if<JsonValue::Object>(&v.value);
  if (object == nullptr) return;
  for (JsonMember& m : *object) {
    const auto* text = m.value.as<std::string>();
    if (text != nullptr) out.tags.push_back(m.key == "pattern" ? without_backslashes(*text) : *text);
    if (m.key == "json_schema") {
      const TagStyle* style = style_of(v);
      if (style != nullptr) out.style = style;
      SchemaCheck(m.value, true, out, style).run();
    } else if (m.key == "pattern" && text != nullptr) {
      m.value = {prepare({Kind::regex, *text}).text};
    } else if (m.key == "grammar" && text != nullptr) {
      prepare({Kind::ebnf, *text});
    } else if (const auto* count = m.value.as<int64_t>(); (m.key == "min" || m.key == "max") && count != nullptr) {
      check(*count <= kMostCounted, "the structural tag repeats a format {} times; accepted: at most {}", *count,
            kMostCounted);
    } else {
      prepare_formats(m.value, out);
    }
  }
  const JsonValue* type = v.member("type");
  if (type == nullptr || type->as<std::string>() == nullptr || *type->as<std::string>() != "json_schema") return;
  if (JsonValue* most = v.member("max_whitespace_cnt"))
    *most = {int64_t{kMostWhiteSpace}};
  else
    object->push_back({"max_whitespace_cnt", {int64_t{kMostWhiteSpace}}});
}
}  // namespace

Prepared prepare_schema(std::string_view text, bool closed) {
  JsonValue schema = io::parse_json_argument(text, "the JSON schema");
  Prepared out;
  SchemaCheck(schema, closed, out).run();
  out.text = io::to_json_line(schema);
  return out;
}

Prepared prepare_structural_tag(std::string_view text) {
  JsonValue tag = io::parse_json_argument(text, "the structural tag");
  Prepared out;
  prepare_formats(tag, out);
  out.text = io::to_json_line(tag);
  return out;
}

}  // namespace sluice::grammar
