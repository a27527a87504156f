// SPDX-License-Identifier: Apache-2.0
// Reads the tags of a block from left to right, while it grows.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "server/tool_calls/call_format.h"
#include "server/tool_calls/json_scanner.h"

namespace sluice::server {

class BlockText {
 public:
  // Of reading one part. more: the text so far may be its beginning; bad: no text that begins like this holds it.
  enum class Status : uint8_t { more, bad, done };

  void set(std::string_view text, bool last) { text_ = text, last_ = last; }
  size_t at() const { return at_; }
  void go(size_t at) { at_ = searched_ = at; }
  std::string_view text() const { return text_; }
  char next() const { return text_[at_]; }  // after until()

  // Passes white space and then `tag`. bad: other text is there.
  Status tag(std::string_view tag);
  // The same for what ends a block: its beginning is enough at the end of the text.
  Status closing(std::string_view tag);
  // The text up to the first of `tags`, which it does not pass. bad: there is none within `most` bytes.
  Status until(std::initializer_list<std::string_view> tags, std::string_view& out, size_t most = SIZE_MAX);
  // The text up to the first `tag` that has one of `next` after it, with white space between the two; it passes `tag`.
  // At the end of the text the beginning of what comes next is enough.
  Status until_followed(std::string_view tag, std::initializer_list<std::string_view> next, std::string_view& out);
  // After one of these two that ended with more: the text up to where one of the tags may have begun.
  std::string_view unfinished() const { return text_.substr(at_, searched_ - at_); }
  // White space, then a JSON object or array.
  Status json(std::optional<JsonScanner>& scanner);

 private:
  void skip_space();

  std::string_view text_;
  bool last_ = false;
  size_t at_ = 0, searched_ = 0;  // searched: up to there no tag begins
};

// A call from an object with "name" and "arguments" (or "parameters": both an object, its text as a string, or
// missing); nullopt: it is none. `members` lie in `text`.
std::optional<WrittenCall> call_of_object(std::string_view text, const std::vector<JsonScanner::Member>& members);
// The call that such an object begins, as CallReader::Result has it: once it has a name and then arguments that are, or
// begin, an object. What follows these does not matter.
std::optional<CallReader::FoundCall> begun_call(std::string_view text, const JsonScanner& object);

// A format of blocks between two tags, each read by an R. What it does not say is left to its own file: written, and
// markers and further tags where it has others.
template <class R>
CallFormat blocks_between(std::string_view open, std::string_view close, std::vector<std::string_view> names) {
  CallFormat f;
  f.names = std::move(names);
  f.markers = {open};
  f.begins = {open};
  f.trigger = open;
  f.inner = {close};
  f.reader = [](const Tools& tools, bool constrained) -> std::unique_ptr<CallReader> {
    return std::make_unique<R>(tools, constrained);
  };
  return f;
}

// How many bytes at the end of `text` begin one of `tags`, at most.
size_t begun_tag(std::string_view text, std::span<const std::string_view> tags);

// Without the white space at both ends.
std::string_view trimmed(std::string_view text);

// What the status of a block's last part says of the block; its calls are the reader's to add. `end` is as in
// CallReader::Result.
CallReader::Result result_of(BlockText::Status status, size_t end);

}  // namespace sluice::server
