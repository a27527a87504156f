// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/block_text.h"

#include <algorithm>

#include "base/error.h"

namespace sluice::server {

namespace {
constexpr std::string_view kSpace = " \t\r\n";
// Between a closing tag and what follows it: more is text. A grammar allows half of it.
constexpr size_t kMostSpace = 32;
}  // namespace

void BlockText::skip_space() { go(std::min(text_.find_first_not_of(kSpace, at_), text_.size())); }

BlockText::Status BlockText::tag(std::string_view tag) {
  skip_space();
  const std::string_view rest = text_.substr(at_);
  if (rest.starts_with(tag)) {
    go(at_ + tag.size());
    return Status::done;
  }
  return tag.starts_with(rest) && !last_ ? Status::more : Status::bad;
}

BlockText::Status BlockText::closing(std::string_view tag) {
  const size_t before = at_;
  const Status status = this->tag(tag);
  if (!last_ || status != Status::bad) return status;
  if (!tag.starts_with(text_.substr(at_))) return Status::bad;
  // White space after what was complete without the tag stays outside, as the parser treats all of it.
  go(at_ == text_.size() ? before : text_.size());
  return Status::done;
}

BlockText::Status BlockText::until(std::initializer_list<std::string_view> tags, std::string_view& out, size_t most) {
  size_t longest = 0;
  for (const std::string_view tag : tags) longest = std::max(longest, tag.size());
  // As far as a tag may reach that begins within `most` bytes.
  const size_t left = text_.size() - at_;
  const bool full = left > most && left - most >= longest;
  const std::string_view window = full ? text_.substr(0, at_ + most + longest) : text_;
  // One pass for all tags: a search for each would run to the end of the text for those that it does not have.
  size_t first = searched_;
  const auto begins_here = [&](std::string_view tag) { return window.substr(first).starts_with(tag); };
  while (first < window.size() && std::none_of(tags.begin(), tags.end(), begins_here)) ++first;
  if (first == window.size()) first = text_.npos;
  if (first != text_.npos && first - at_ <= most) {
    out = text_.substr(at_, first - at_);
    go(first);
    return Status::done;
  }
  searched_ = std::max(searched_, window.size() - begun_tag(window, {tags.begin(), tags.size()}));
  return full ? Status::bad : Status::more;
}

BlockText::Status BlockText::until_followed(std::string_view tag, std::initializer_list<std::string_view> next,
                                            std::string_view& out) {
  for (;; ++searched_) {
    const size_t found = text_.find(tag, searched_);
    if (found == text_.npos) {
      searched_ = std::max(searched_, text_.size() - begun_tag(text_, {&tag, 1}));
      return Status::more;
    }
    searched_ = found;
    const std::string_view after = text_.substr(found + tag.size());
    const size_t space = std::min(after.find_first_not_of(kSpace), after.size());
    if (space > kMostSpace) continue;
    const std::string_view rest = after.substr(space);
    const auto follows = [&](std::string_view t) { return rest.starts_with(t) || (last_ && t.starts_with(rest)); };
    if (std::any_of(next.begin(), next.end(), follows)) {
      out = text_.substr(at_, found - at_);
      go(found + tag.size());
      return Status::done;
    }
    const auto may_follow = [&](std::string_view t) { return t.starts_with(rest); };
    if (!last_ && std::any_of(next.begin(), next.end(), may_follow)) return Status::more;
  }
}

BlockText::Status BlockText::json(std::optional<JsonScanner>& scanner) {
  if (!scanner) scanner.emplace(at_);
  switch (scanner->scan(text_)) {
    case JsonScanner::State::done:
      go(scanner->position());
      return Status::done;
    case JsonScanner::State::bad:
      go(scanner->position());
      return Status::bad;
    default:
      return Status::more;
  }
}

namespace {
bool is_arguments_key(std::string_view key) { return key == "\"arguments\"" || key == "\"parameters\""; }
// Some models imitate the API.
bool is_idle_key(std::string_view key) { return key == "\"id\"" || key == "\"type\""; }

// "": it is none.
std::string call_name(std::string_view json) {
  try {
    const std::string name = json.starts_with('"') ? json_string(json) : "";
    return is_call_name(name) ? name : "";
  } catch (const Error&) {
    return "";
  }
}
}  // namespace

std::optional<WrittenCall> call_of_object(std::string_view text, const std::vector<JsonScanner::Member>& members) {
  const JsonScanner::Span *name = nullptr, *arguments = nullptr;
  for (const JsonScanner::Member& m : members) {
    const std::string_view key = m.key.of(text);
    if (is_idle_key(key)) continue;
    const bool is_name = key == "\"name\"";
    if (!is_name && !is_arguments_key(key)) return std::nullopt;
    const JsonScanner::Span*& place = is_name ? name : arguments;
    if (place != nullptr) return std::nullopt;
    place = &m.value;
  }
  if (name == nullptr) return std::nullopt;
  WrittenCall call;
  call.name = call_name(name->of(text));
  try {
    call.arguments = arguments == nullptr ? "{}" : std::string(arguments->of(text));
    if (call.arguments[0] == '"') call.arguments = json_string(call.arguments);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (call.arguments == "null" || call.arguments.empty()) call.arguments = "{}";
  if (call.name.empty() || !is_json_object(call.arguments)) return std::nullopt;
  return call;
}

std::optional<CallReader::FoundCall> begun_call(std::string_view text, const JsonScanner& object) {
  if (!object.is_object()) return std::nullopt;
  CallReader::FoundCall call;
  for (const JsonScanner::Member& m : object.members()) {
    if (!m.has_begun()) return std::nullopt;
    const std::string_view key = m.key.of(text);
    if (is_idle_key(key)) continue;
    if (key == "\"name\"" && call.name.empty() && m.is_complete()) {
      call.name = call_name(m.value.of(text));
      if (call.name.empty()) return std::nullopt;
    } else if (is_arguments_key(key) && !call.name.empty() && text[m.value.begin] == '{') {
      call.begin = object.span().begin;
      call.end = m.is_complete() ? m.value.end : object.position();
      call.arguments = text.substr(m.value.begin, call.end - m.value.begin);
      return call;
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

size_t begun_tag(std::string_view text, std::span<const std::string_view> tags) {
  size_t longest = 0;
  for (const std::string_view tag : tags)
    for (size_t n = std::min(text.size(), tag.size() - 1); n > longest; --n)
      if (text.ends_with(tag.substr(0, n))) longest = n;
  return longest;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

CallReader::Result result_of(BlockText::Status status, size_t end) {
  using State = CallReader::Result::State;
  CallReader::Result result;
  result.end = end;
  result.state = status == BlockText::Status::done  ? State::found
                 : status == BlockText::Status::bad ? State::bad
                                                    : State::more;
  return result;
}

}  // namespace sluice::server
