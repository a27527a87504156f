// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/json_scanner.h"

#include "base/error.h"
#include "io/json_value.h"

namespace sluice::server {

namespace {
constexpr size_t kMostLevels = 128;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
}  // namespace

JsonScanner::State JsonScanner::scan(std::string_view text) {
  while (!done_ && !bad_ && at_ < text.size()) {
    bad_ = !step(text[at_]);
    if (!bad_) ++at_;
  }
  return bad_ ? State::bad : done_ ? State::done : State::more;
}

// False: no JSON has this byte here.
bool JsonScanner::step(char c) {
  switch (next_) {
    case Next::string:
      if (c == '\\') {
        next_ = Next::escape;
      } else if (c == '"') {
        if (is_key_) {
          if (open_.size() == 1) members_.back().key.end = at_ + 1;
          next_ = Next::colon;
        } else {
          end_value(at_ + 1);
        }
      }
      return static_cast<unsigned char>(c) >= 0x20;
    case Next::escape:
      next_ = c == 'u' ? Next::hex : Next::string;
      hex_left_ = 4;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
    case Next::hex:
      if (--hex_left_ == 0) next_ = Next::string;
      return is_hex(c);
    case Next::literal:
      if (c != literal_[0]) return false;
      literal_.remove_prefix(1);
      if (literal_.empty()) end_value(at_ + 1);
      return true;
    case Next::minus:
    case Next::zero:
    case Next::digits:
    case Next::point:
    case Next::fraction:
    case Next::exponent:
    case Next::exponent_sign:
    case Next::exponent_digits:
      if (in_number(c)) return true;
      // The number ends before this byte, if it may end.
      if (next_ == Next::minus || next_ == Next::point || next_ == Next::exponent || next_ == Next::exponent_sign)
        return false;
      end_value(at_);
      break;
    default:
      break;
  }
  return is_space(c) || after(c);
}

bool JsonScanner::in_number(char c) {
  const bool digit = is_digit(c), e = c == 'e' || c == 'E';
  switch (next_) {
    case Next::minus:
      if (!digit) return false;
      next_ = c == '0' ? Next::zero : Next::digits;
      return true;
    case Next::zero:
    case Next::digits:
      if (digit) return next_ == Next::digits;
      if (c != '.' && !e) return false;
      next_ = e ? Next::exponent : Next::point;
      return true;
    case Next::point:
      next_ = digit ? Next::fraction : next_;
      return digit;
    case Next::fraction:
      if (e) next_ = Next::exponent;
      return digit || e;
    case Next::exponent:
      if (c != '+' && c != '-' && !digit) return false;
      next_ = digit ? Next::exponent_digits : Next::exponent_sign;
      return true;
    default:
      if (digit) next_ = Next::exponent_digits;
      return digit;
  }
}

// Between tokens, where white space has been passed over.
bool JsonScanner::after(char c) {
  switch (next_) {
    case Next::root:
      is_object_ = c == '{';
      begin_ = at_;
      return (c == '{' || c == '[') && open(c == '{');
    case Next::first_key:
    case Next::key:
      if (c == '}' && next_ == Next::first_key) return close(c);
      if (c != '"') return false;
      if (open_.size() == 1) members_.push_back({{at_, at_}, {}});
      is_key_ = true;
      next_ = Next::string;
      return true;
    case Next::colon:
      next_ = Next::value;
      return c == ':';
    case Next::first_item:
      if (c == ']') return close(c);
      return begin_value(c);
    case Next::value:
      return begin_value(c);
    case Next::after_value:
      if (c != ',') return close(c);
      next_ = open_.back() ? Next::key : Next::value;
      return true;
    default:
      return false;
  }
}

bool JsonScanner::begin_value(char c) {
  if (open_.size() == 1) {
    if (!open_[0]) members_.emplace_back();
    members_.back().value = {at_, at_};
  }
  is_key_ = false;
  switch (c) {
    case '{':
    case '[':
      return open(c == '{');
    case '"':
      next_ = Next::string;
      return true;
    case 't':
      literal_ = "rue";
      break;
    case 'f':
      literal_ = "alse";
      break;
    case 'n':
      literal_ = "ull";
      break;
    case '-':
      next_ = Next::minus;
      return true;
    default:
      next_ = c == '0' ? Next::zero : Next::digits;
      return is_digit(c);
  }
  next_ = Next::literal;
  return true;
}

bool JsonScanner::open(bool object) {
  open_.push_back(object);
  next_ = object ? Next::first_key : Next::first_item;
  return open_.size() <= kMostLevels;
}

bool JsonScanner::close(char c) {
  if (c != (open_.back() ? '}' : ']')) return false;
  open_.pop_back();
  done_ = open_.empty();
  if (!done_) end_value(at_ + 1);
  return true;
}

void JsonScanner::end_value(size_t end) {
  if (open_.size() == 1) members_.back().value.end = end;
  next_ = Next::after_value;
}

bool is_json(std::string_view text) {
  const std::string in_array = "[" + std::string(text) + "]";
  JsonScanner scanner(0);
  return scanner.scan(in_array) == JsonScanner::State::done && scanner.position() == in_array.size() &&
         scanner.members().size() == 1;
}

bool is_json_object(std::string_view text) {
  JsonScanner scanner(0);
  return scanner.scan(text) == JsonScanner::State::done && scanner.is_object() && scanner.position() == text.size();
}

std::string json_string(std::string_view quoted) {
  const io::JsonValue value = io::parse_json_value(quoted, "a string of a tool call");
  const auto* text = value.as<std::string>();
  check_file(text != nullptr, "a tool call's string is {}", io::describe(value));
  return *text;
}

}  // namespace sluice::server
