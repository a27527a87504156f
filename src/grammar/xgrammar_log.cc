// SPDX-License-Identifier: Apache-2.0
#include <support/logging.h>

#include <string_view>
#include <utility>

#include "grammar/xgrammar_log.h"

namespace {
thread_local sluice::grammar::KeptWarnings* t_kept = nullptr;
}

// Built with XGRAMMAR_LOG_CUSTOMIZE=1, xgrammar takes these from its user.
namespace xgrammar {

void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw LogFatalError(file, line, message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level == XGRAMMAR_LOG_LEVEL_WARNING && t_kept != nullptr) t_kept->add(message);
}

}  // namespace xgrammar

namespace sluice::grammar {

KeptWarnings::KeptWarnings() { t_kept = this; }
KeptWarnings::~KeptWarnings() { t_kept = nullptr; }

std::string sentence_of(const std::exception& error) {
  // Errors that passed through one of its Result values are text already: "[10:11:12] /path/file.cc:123: sentence\n".
  const auto* fatal = dynamic_cast<const xgrammar::LogFatalError*>(&error);
  std::string text =
      fatal != nullptr ? static_cast<const std::runtime_error*>(fatal)->std::runtime_error::what() : error.what();
  for (size_t at = text.find(".cc:"); at != text.npos; at = text.find(".cc:")) {
    size_t end = at + 4;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (text.compare(end, 2, ": ") != 0) break;
    const size_t begin = text.rfind('[', at);
    text.erase(begin == text.npos ? 0 : begin, end + 2 - (begin == text.npos ? 0 : begin));
  }
  const std::string check = ") is false: ";
  if (const size_t at = text.find(check); text.find("heck failed: (") != text.npos && at != text.npos)
    text.erase(0, at + check.size());
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string refusal_of(std::string warning) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {" It is ignored.", ""}, {" and is ignored", ""}, {" is ignored", " is not supported"}};
  for (const auto& [ignored, instead] : kWords)
    if (const size_t at = warning.find(ignored); at != warning.npos)
      return warning.replace(at, ignored.size(), instead);
  return warning;
}

}  // namespace sluice::grammar
