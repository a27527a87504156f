// SPDX-License-Identifier: Apache-2.0
#include "parse_error.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <vector>

namespace sluice::apps {

namespace {
// "sluice", "sluice eval", "sluice eval logits": the program and the commands that were named.
struct Named {
  const CLI::App* app;
  std::string path;
};

std::vector<Named> named_commands(const CLI::App& app) {
  std::vector<Named> all{{&app, app.get_name()}};
  while (!all.back().app->get_subcommands().empty()) {
    const CLI::App* next = all.back().app->get_subcommands().front();
    all.push_back({next, all.back().path + " " + next->get_name()});
  }
  return all;
}

std::string subcommands_of(const CLI::App& app) {
  std::string all;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    all.append(all.empty() ? "" : ", ").append(command->get_name());
  return all;
}

// The first word that no command took, or nothing.
std::string unknown_word(const std::vector<Named>& commands) {
  for (const Named& c : commands) {
    const std::vector<std::string> left = c.app->remaining();
    if (left.empty()) continue;
    const std::string& word = left.front();
    if (word.starts_with('-'))
      return fmt::format("{} is no option of {}; {} --help lists them", word.substr(0, word.find('=')), c.path, c.path);
    if (const std::string accepted = subcommands_of(*c.app); !accepted.empty())
      return fmt::format("\"{}\" is no command of {}; accepted: {}", word, c.path, accepted);
    return fmt::format("\"{}\" is an argument too many for {}; {} --help says what it takes", word, c.path, c.path);
  }
  return "";
}

// "INT" -> "an integer", "INT:INT in [0 - 4096]" -> "INT in [0 - 4096]", "TEXT:{a,b}" -> "{a,b}".
std::string accepted_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "INT" || type == "UINT") return "an integer";
  if (type == "FLOAT") return "a number";
  if (type == "TEXT") return "a text";
  return type.substr(type.find(':') + 1);  // all of it where there is no colon
}

// CLI11 says "Value 7 not in range 0 to 4" and "x not in {a,b}".
std::string reworded(const std::string& name, std::string_view reason) {
  constexpr std::string_view kNot = " not in ";
  const size_t at = reason.rfind(kNot);
  if (at == reason.npos) return fmt::format("{}: {}", name, reason);
  std::string_view value = reason.substr(0, at), accepted = reason.substr(at + kNot.size());
  if (accepted.starts_with("range ")) {
    value.remove_prefix(std::min(value.size(), std::string_view("Value ").size()));
    return fmt::format("{} is \"{}\"; accepted: {}", name, value, accepted.substr(6));
  }
  std::string list;
  for (const char c : accepted) {
    if (c == '{' || c == '}') continue;
    list += c;
    if (c == ',') list += ' ';
  }
  return fmt::format("{} is \"{}\"; accepted: {}", name, value, list);
}
}  // namespace

std::string sentence_of(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<Named> commands = named_commands(app);
  const std::string said = error.what();
  // A misspelt option leaves the right one missing: the word says more than what CLI11 finds first.
  const bool incomplete = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (incomplete || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    if (std::string sentence = unknown_word(commands); !sentence.empty()) return sentence;
  const bool miscounted = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  if (incomplete) return fmt::format("{}; {} --help lists what it takes", said, commands.back().path);
  for (const Named& c : commands)
    for (const CLI::Option* option : c.app->get_options()) {
      const std::string name = option->get_name();
      if (said == fmt::format("Could not convert: {} = {}", name, CLI::detail::join(option->results())))
        return fmt::format("{} is \"{}\"; accepted: {}", name, CLI::detail::join(option->results()),
                           accepted_by(*option));
      const bool named = said.starts_with(name + ": ");
      if (miscounted && (named || said.find(" " + name + ",") != std::string::npos))
        return option->results().size() > 1
                   ? fmt::format("{} is given {} times; accepted: once", name, option->results().size())
                   : fmt::format("{} has no value; accepted: {}", name, accepted_by(*option));
      if (!named) continue;
      return reworded(name, std::string_view(said).substr(name.size() + 2));
    }
  return said;
}

std::string missing_command(const CLI::App& app) {
  const Named last = named_commands(app).back();
  return fmt::format("{} needs a command; accepted: {}", last.path, subcommands_of(*last.app));
}

}  // namespace sluice::apps
