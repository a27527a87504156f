// SPDX-License-Identifier: Apache-2.0
#include "weights/name_pattern.h"

namespace sluice::weights {

namespace {

// Glob match of the whole of `name`; the last * is the only one that ever needs to be widened.
bool glob(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Any run of whole dotted parts of `name`.
bool glob_parts(std::string_view pattern, std::string_view name) {
  if (pattern.find('*') == std::string_view::npos) {  // most entries; lists of thousands of experts occur
    for (size_t at = name.find(pattern); at != std::string_view::npos; at = name.find(pattern, at + 1)) {
      const size_t end = at + pattern.size();
      if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
    }
    return false;
  }
  for (size_t begin = 0; begin != std::string_view::npos;) {
    for (size_t end = begin; end != std::string_view::npos;) {
      end = name.find('.', end);
      if (glob(pattern, name.substr(begin, end == std::string_view::npos ? end : end - begin))) return true;
      if (end != std::string_view::npos) ++end;
    }
    begin = name.find('.', begin);
    if (begin != std::string_view::npos) ++begin;
  }
  return false;
}

std::string_view without(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

std::string normal_name(std::string_view module) {
  module = without(module, "language_model.");
  if (module.starts_with("model.language_model.")) return "model." + std::string(module.substr(21));
  if (module.starts_with("backbone.")) return "model." + std::string(module.substr(9));
  return std::string(module);
}

NamePattern::NamePattern(std::string_view pattern, const std::string& what) : text_(pattern) {
  if (!pattern.starts_with("re:")) return;
  const std::string own(pattern.substr(3));
  text::Regex(own, false, what);  // a sentence about what was written, and none about what is made of it
  const std::string source = "\\A(?:" + own + ")";
  regex_ = std::make_shared<text::Regex>(source, false, what);
}

bool NamePattern::matches(std::string_view module) const {
  const std::string name = normal_name(module);
  if (regex_) {
    bool found = false;
    for (std::string_view candidate : {module, std::string_view(name)})
      text::RegexSearch(*regex_, candidate.size()).find_all(candidate, [&](text::Match) { found = true; });
    return found;
  }
  const std::string pattern = normal_name(text_);
  return !pattern.empty() && (glob_parts(pattern, name) || glob_parts(without(pattern, "model."), name));
}

}  // namespace sluice::weights
