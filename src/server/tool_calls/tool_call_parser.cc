// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/tool_call_parser.h"

#include <algorithm>
#include <random>
#include <utility>

#include "server/tool_calls/block_text.h"
#include "server/tool_calls/json_scanner.h"

namespace sluice::server {

namespace {
constexpr std::string_view kSpace = " \t\r\n";

void add_content(std::string_view text, std::vector<AnswerPart>& out) {
  if (text.empty()) return;
  if (out.empty() || out.back().kind != AnswerPart::Kind::content) out.emplace_back();
  out.back().text += text;
}
}  // namespace

ToolCallParser::ToolCallParser(const CallFormat& format, const Tools& tools, Options options)
    : format_(format), tools_(tools), options_(std::move(options)), tags_(format.begins) {
  for (const std::string_view tag : {format.open, format.close})
    if (!tag.empty()) tags_.push_back(tag);
  for (const std::string_view tag : tags_) first_letters_ += tag[0];
}

std::vector<AnswerPart> ToolCallParser::push(std::string_view text) {
  held_ += text;
  std::vector<AnswerPart> out;
  run(false, out);
  return out;
}

std::vector<AnswerPart> ToolCallParser::finish() {
  std::vector<AnswerPart> out;
  run(true, out);
  if (!after_call_) add_content(pending_, out);
  pending_.clear();
  return out;
}

void ToolCallParser::run(bool last, std::vector<AnswerPart>& out) {
  using State = CallReader::Result::State;
  size_t at = 0;
  while (reader_ || find_block(last, at, out)) {
    const std::string_view text = std::string_view(held_).substr(at);
    const CallReader::Result block = reader_->read(text, last);
    const size_t sent = take(text, block, out);
    if (block.state == State::more && !last) break;
    for (; sent_calls_ > 0; --sent_calls_)
      if (is_json_object(block.calls[sent_calls_ - 1].arguments)) ++calls_;
    reader_ = nullptr;  // which the arguments are views of
    if (block.state == State::found) {
      at += block.end;
      continue;
    }
    // What was read is not read again, or a long text of opening tags would take a time that grows with its square.
    // What was not finished runs to the end.
    const size_t size = block.state == State::bad ? std::max<size_t>(1, block.end) : text.size();
    content(text.substr(sent, size - sent), out);
    at += size;
  }
  held_.erase(0, at);
}

// Moves `at` to the next block; without one, to the end of what is certain.
bool ToolCallParser::find_block(bool last, size_t& at, std::vector<AnswerPart>& out) {
  const std::string_view text = held_;
  for (;;) {
    size_t begin = at;
    std::string_view tag;
    for (; tag.empty() && (begin = text.find_first_of(first_letters_, begin)) != text.npos; ++begin)
      for (const std::string_view t : tags_)
        if (text.substr(begin).starts_with(t)) tag = t;
    if (tag.empty()) break;
    --begin;
    content(text.substr(at, begin - at), out);
    at = begin;
    if (tag != format_.open && tag != format_.close) {
      reader_ = format_.reader(tools_, is_constrained(text.substr(begin)));
      return true;
    }
    in_section_ = tag == format_.open;
    if (in_section_)
      pending_ += tag;
    else if (!after_call_)
      content(tag, out);
    at += tag.size();
  }
  const std::string_view rest = text.substr(at);
  const size_t sure = last ? rest.size() : rest.size() - begun_tag(rest, tags_);
  content(rest.substr(0, sure), out);
  at += sure;
  return false;
}

void ToolCallParser::content(std::string_view text, std::vector<AnswerPart>& out) {
  const size_t visible = text.find_last_not_of(kSpace) + 1;  // npos + 1 is 0
  if (visible > 0) {
    add_content(std::exchange(pending_, {}), out);
    add_content(text.substr(0, visible), out);
    after_call_ = false;
  }
  pending_ += text.substr(visible);
}

// Returns where the last call that was sent ends in the text.
size_t ToolCallParser::take(std::string_view text, const CallReader::Result& block, std::vector<AnswerPart>& out) {
  const bool found = block.state == CallReader::Result::State::found;
  size_t sent = 0;
  for (size_t i = 0; i < block.calls.size(); ++i) {
    const CallReader::FoundCall& call = block.calls[i];
    if (i >= sent_calls_) {
      const bool one_too_many = begun_ == options_.most_calls;
      if (found && one_too_many) {
        content(text.substr(call.begin, call.end - call.begin), out);
        continue;
      }
      if (!found && (one_too_many || !is_sent_early(text, call))) break;
      AnswerPart& part = out.emplace_back(AnswerPart{AnswerPart::Kind::call, "", call});
      if (part.call.id.empty()) part.call.id = options_.new_id();
      sent_calls_ = i + 1;
      sent_bytes_ = 0;
      ++begun_;
      pending_.clear();
      after_call_ = true;
    } else if (i + 1 < sent_calls_) {
      continue;
    }
    if (const std::string_view more = call.arguments.substr(sent_bytes_); !more.empty())
      out.push_back({AnswerPart::Kind::arguments, std::string(more), {}});
    sent_bytes_ = call.arguments.size();
    sent = call.end;
  }
  return sent;
}

bool ToolCallParser::is_sent_early(std::string_view text, const ToolCall& call) const {
  const Tool* tool = find_tool(tools_, call.name);
  if (tool == nullptr || tool->eager) return tool != nullptr;
  return is_constrained(text);
}

// The constraint begins with the trigger; models also write calls without it.
bool ToolCallParser::is_constrained(std::string_view text) const {
  if (!options_.constrained) return false;
  const std::string_view trigger = format_.trigger;
  if (trigger == format_.open) return in_section_;
  return text.starts_with(trigger) || std::any_of(format_.begins.begin(), format_.begins.end(), [&](auto begin) {
           return text.starts_with(begin) && text.substr(begin.size()).starts_with(trigger);
         });
}

std::string new_call_id(std::string_view prefix) {
  static constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static thread_local std::random_device random;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[letter(random)];
  return id;
}

bool is_call_name(std::string_view name) {
  const auto is_fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), is_fine);
}

}  // namespace sluice::server
