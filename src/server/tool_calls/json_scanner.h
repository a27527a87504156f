// SPDX-License-Identifier: Apache-2.0
// Finds the end of a JSON object or array in text that is still being written, and where its members lie in it, so that
// arguments are passed on as the model wrote them. A tree is not built: io/json_value.h needs the whole text, and
// would change the spelling of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::server {

class JsonScanner {
 public:
  // The value begins at text[begin] or after white space there.
  explicit JsonScanner(size_t begin) : at_(begin) {}

  // more: all of the text so far may be the beginning of a JSON object or array; done: position() is its end;
  // bad: no text that begins like this holds one (RFC 8259, at most 128 levels).
  enum class State : uint8_t { more, done, bad };
  // `text`: what the last call got, and what has come since. Each byte is looked at once.
  State scan(std::string_view text);

  struct Span {
    size_t begin = 0, end = 0;
    std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
  };
  size_t position() const { return at_; }
  // The object or array, or what there is of it.
  Span span() const { return {begin_, at_}; }
  struct Member {
    Span key;    // with its quotes; empty in an array
    Span value;  // {0, 0} before it begins
    bool has_begun() const { return value.begin > 0; }
    bool is_complete() const { return value.end > value.begin; }
  };
  // Of the outermost object or array. The last one may be incomplete until that is done.
  const std::vector<Member>& members() const { return members_; }
  bool is_object() const { return is_object_; }  // it began with {

 private:
  // What may come next. The last ones are inside of a token.
  enum class Next : uint8_t {
    root,
    value,
    first_key,
    key,
    colon,
    first_item,
    after_value,
    string,
    escape,
    hex,
    literal,
    minus,
    zero,
    digits,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits
  };

  bool step(char c);
  bool begin_value(char c);
  bool open(bool object);
  bool close(char c);
  void end_value(size_t end);
  bool in_number(char c);
  bool after(char c);

  size_t at_, begin_ = 0;
  Next next_ = Next::root;
  std::vector<bool> open_;  // true: an object
  bool done_ = false, bad_ = false, is_object_ = false, is_key_ = false;
  int hex_left_ = 0;
  std::string_view literal_;  // what is left of true, false or null
  std::vector<Member> members_;
};

// Whether `text` is one JSON value, of any kind, with white space around it at most.
bool is_json(std::string_view text);
// Whether `text` is a JSON object, and nothing beside it.
bool is_json_object(std::string_view text);
// The text of a JSON string, in quotes. Throws bad_file for one that is not UTF-8 once it is decoded.
std::string json_string(std::string_view quoted);

}  // namespace sluice::server
