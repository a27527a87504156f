// SPDX-License-Identifier: Apache-2.0
// Answers for tests in other languages which texts a grammar takes. A line in: {"kind": "json_schema", "text": "...",
// "closed": false, "texts": ["..."]}. A line out: {"accepted": [true, ...]}, or {"error": "..."} for a grammar that is
// refused. The vocabulary is the 256 bytes, and texts are taken token by token under their masks.
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "grammar/compiler.h"
#include "io/json_text.h"
#include "io/json_value.h"
#include "sampling/choose.h"
#include "tests/support/byte_vocabulary.h"

namespace {
using sluice::io::JsonValue;
namespace grammar = sluice::grammar;

grammar::Kind kind_of(const std::string& name) {
  if (name == "regex") return grammar::Kind::regex;
  if (name == "ebnf") return grammar::Kind::ebnf;
  return name == "structural_tag" ? grammar::Kind::structural_tag : grammar::Kind::json_schema;
}

bool accepts(const grammar::GrammarPtr& compiled, const std::string& text) {
  grammar::GrammarState state(compiled);
  std::vector<uint32_t> mask(static_cast<size_t>(sluice::sampling::mask_words(256)));
  for (const char c : text) {
    const auto id = static_cast<unsigned char>(c);
    state.fill_mask(mask);
    const bool allowed = (mask[id / 32] >> (id % 32) & 1) != 0;
    if (state.accept(id) != allowed) throw std::runtime_error("the mask and the state differ in " + text);
    if (!allowed) return false;
  }
  return state.may_end();
}

JsonValue answer(grammar::GrammarCompiler& compiler, const JsonValue& task) {
  grammar::GrammarPtr compiled;
  try {
    const auto* closed = task.find("closed") == nullptr ? nullptr : task.find("closed")->as<bool>();
    compiled = compiler.compile({kind_of(*task.find("kind")->as<std::string>()), *task.find("text")->as<std::string>(),
                                 closed == nullptr || *closed});
  } catch (const sluice::Error& error) {
    return {JsonValue::Object{{"error", {std::string(error.what())}}}};
  }
  JsonValue::Array out;
  for (const JsonValue& text : *task.find("texts")->as<JsonValue::Array>())
    out.push_back({accepts(compiled, *text.as<std::string>())});
  return {JsonValue::Object{{"accepted", {std::move(out)}}}};
}
}  // namespace

int main() {
  if (!grammar::why_not_available().empty()) {
    std::cerr << "skipped: " << grammar::why_not_available() << "\n";
    return 77;
  }
  grammar::GrammarCompiler compiler(sluice::test::byte_vocabulary());
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << sluice::io::to_json_line(answer(compiler, sluice::io::parse_json_value(line, "a task"))) << std::endl;
  }
  return 0;
}
