// SPDX-License-Identifier: Apache-2.0
// Regular expressions as the library reads them rightly. Its reader of them takes every hexadecimal digit after \x,
// loses the backslash of a class's first ^, runs \u00HH in a class together with a digit after it, and refuses a
// backslash before most characters that need none, which is what Python's re.escape writes. Its second reader, for
// strings in JSON, wants ASCII. Here a pattern is written anew without any of these; what is no pattern is the
// library's to refuse.
#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/source.h"
#include "text/utf8.h"

namespace sluice::grammar {

namespace {
// Characters that mean something by themselves outside of classes, and inside.
constexpr std::string_view kSyntax = "^$.*+?\\()[]{}|/", kClassSyntax = "\\[]-";
constexpr std::string_view kSets = "dDwWsS";
constexpr std::pair<char, char32_t> kNamed[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'},
                                                {'a', '\a'}, {'b', '\b'}, {'e', 0x1b}, {'0', 0}};
constexpr std::pair<char, size_t> kDigits[] = {{'x', 2}, {'u', 4}, {'U', 8}};
constexpr char32_t kLastCharacter = 0x10ffff;

bool has(std::string_view characters, char32_t c) {
  return c < 0x80 && characters.find(static_cast<char>(c)) != characters.npos;
}
bool is_printable(char32_t c) { return c >= 0x20 && c < 0x7f; }

std::string written(char32_t c, std::string_view syntax) {
  if (has(syntax, c)) return {'\\', static_cast<char>(c)};
  if (is_printable(c)) return {static_cast<char>(c)};
  return c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                     : fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(c));
}

class Adapter {
 public:
  Adapter(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  std::string run() {
    check(text::to_valid_utf8(text_) == text_, "the {} is not valid UTF-8", what_);
    std::string out;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '[') {
        out += char_class();
      } else if (c == '\\') {
        out += escape();
      } else if (is_printable(static_cast<unsigned char>(c))) {
        out += c;
        ++at_;
      } else {
        out += written(text::next_code_point(text_, at_), {});
      }
    }
    return out;
  }

 private:
  // A member of a class: a character, or the escape of a set of them.
  struct Unit {
    std::string_view text;
    std::optional<char32_t> character;
  };

  // Outside of classes letters after a backslash are the library's, but for \x.
  std::string escape() {
    const size_t begin = at_;
    const auto c = escaped();
    const bool letter = c && std::isalnum(static_cast<unsigned char>(text_[begin + 1])) != 0;
    if (c && (!letter || text_[begin + 1] == 'x')) return written(*c, kSyntax);
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Passes an escape. Nothing: it is none of a single character.
  std::optional<char32_t> escaped() {
    if (++at_ == text_.size()) return std::nullopt;
    const char kind = text_[at_];
    if (std::isalnum(static_cast<unsigned char>(kind)) == 0) return text::next_code_point(text_, at_);
    ++at_;
    for (const auto& [letter, digits] : kDigits)
      if (kind == letter) return by_number(kind, digits);
    for (const auto& [letter, character] : kNamed)
      if (kind == letter) return character;
    if (kind != 'c' || at_ == text_.size() || std::isalpha(static_cast<unsigned char>(text_[at_])) == 0)
      return std::nullopt;
    return static_cast<char32_t>(text_[at_++] % 32);
  }

  std::optional<char32_t> by_number(char kind, size_t digits) {
    size_t end = at_ + digits, begin = at_;
    const bool braces = kind == 'u' && text_.substr(at_).starts_with('{');
    if (braces) end = text_.find('}', ++begin);
    const std::string_view number =
        end == text_.npos || end > text_.size() ? "" : text_.substr(begin, std::min<size_t>(end - begin, 9));
    const bool hex = !number.empty() && (!braces || number.size() <= 6) &&
                     std::all_of(number.begin(), number.end(),
                                 [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
    // The library would take one digit, or many.
    check(hex || kind != 'x', "the {} has \\x without two hexadecimal digits at byte {}", what_, at_ - 2);
    const unsigned long value = hex ? std::stoul(std::string(number), nullptr, 16) : kLastCharacter + 1;
    if (value > kLastCharacter) return std::nullopt;
    at_ = end + (braces ? 1 : 0);
    return static_cast<char32_t>(value);
  }

  Unit unit() {
    const size_t begin = at_;
    const auto c = text_[at_] == '\\' ? escaped() : text::next_code_point(text_, at_);
    return {text_.substr(begin, at_ - begin), c};
  }

  // In another order where it matters, which to a class does not: a ^ would be first without its backslash, and the
  // library writes characters up to U+00FF as \xHH, after which no digit may come.
  std::string char_class() {
    const size_t begin = at_++;
    const bool negated = text_.substr(at_).starts_with('^');
    if (negated) ++at_;
    std::string members, before_no_digit;
    bool caret = false, known = true;
    while (at_ < text_.size() && text_[at_] != ']') {
      const Unit first = unit();
      if (!first.character) {
        known = known && first.text.size() == 2 && has(kSets, static_cast<unsigned char>(first.text[1]));
        members += first.text;
        continue;
      }
      char32_t from = *first.character, to = from;
      const size_t dash = at_;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        if (const Unit last = unit(); last.character)
          to = *last.character;
        else
          at_ = dash;  // before a set it stands for itself
      }
      if (from == '^') caret = true;
      if (from == '^' && to == '^') continue;
      if (from == '^') ++from;
      std::string member = written(from, kClassSyntax);
      if (from != to) member.append("-").append(written(to, kClassSyntax));
      (is_printable(to) || to > 0xff ? members : before_no_digit) += member;
    }
    const bool closed = at_ < text_.size();
    if (closed) ++at_;
    members += before_no_digit;
    if (!closed || !known || (members.empty() && !caret)) return std::string(text_.substr(begin, at_ - begin));
    if (members.empty() && !negated) return "\\^";
    return fmt::format("[{}{}{}]", negated ? "^" : "", members, caret ? "^" : "");
  }

  std::string_view text_, what_;
  size_t at_ = 0;
};
}  // namespace

std::string adapted_pattern(std::string_view pattern, std::string_view what) { return Adapter(pattern, what).run(); }

}  // namespace sluice::grammar
