// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using Kind = Token::Kind;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// \r\n and \r are \n to Jinja, and the last newline of a template is dropped.
std::string normalized_lines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : in_(normalized_lines(to_valid_utf8(source))) {}

  std::vector<Token> run() {
    while (pos_ < in_.size()) text();
    add(Kind::end, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::bad_file, "chat template line {}: {}", line_, what);
  }

  void add(Kind kind, std::string text) { out_.push_back({kind, std::move(text), line_}); }

  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(in_.begin() + static_cast<ptrdiff_t>(pos_), in_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    pos_ = to;
  }

  // The next "{{", "{%" or "{#".
  size_t find_tag() const {
    for (size_t i = pos_; (i = in_.find('{', i)) != std::string::npos && i + 1 < in_.size(); ++i)
      if (in_[i + 1] == '{' || in_[i + 1] == '%' || in_[i + 1] == '#') return i;
    return std::string::npos;
  }

  void add_data(size_t begin, size_t end) {
    if (begin < end) add(Kind::data, in_.substr(begin, end - begin));
  }

  // Text up to the tag at `tag`, without the white space that the tag takes away.
  void add_text_before(size_t tag, bool is_variable) {
    size_t end = tag;
    const char sign = tag + 2 < in_.size() ? in_[tag + 2] : ' ';
    if (sign == '-') {
      while (end > pos_ && is_space(in_[end - 1])) --end;
    } else if (sign != '+' && !is_variable) {
      size_t begin = end;
      while (begin > pos_ && in_[begin - 1] != '\n' && is_space(in_[begin - 1])) --begin;
      if (begin > pos_ ? in_[begin - 1] == '\n' : line_starting_) end = begin;
    }
    add_data(pos_, end);
    advance(std::min(in_.size(), tag + 2 + (sign == '-' || sign == '+')));
  }

  // After "%}" or "#}": what they take away to their right. `sign` is the character before them.
  void skip_after(char sign, bool is_variable) {
    size_t to = pos_;
    if (sign == '-') {
      while (to < in_.size() && is_space(in_[to])) ++to;
    } else if (sign != '+' && !is_variable && to < in_.size() && in_[to] == '\n') {
      ++to;
    }
    line_starting_ = to > 0 && in_[to - 1] == '\n';
    advance(to);
  }

  void text() {
    const size_t tag = find_tag();
    if (tag == std::string::npos) {
      add_data(pos_, in_.size());
      advance(in_.size());
      return;
    }
    const char opener = in_[tag + 1];
    add_text_before(tag, opener == '{');
    if (opener == '#') {
      comment();
    } else if (opener == '{') {
      add(Kind::variable_begin, "");
      expression("}}", Kind::variable_end);
    } else if (const size_t after = match_word("raw", pos_)) {
      raw(after);
    } else {
      add(Kind::block_begin, "");
      expression("%}", Kind::block_end);
    }
  }

  void comment() {
    const size_t end = in_.find("#}", pos_);
    if (end == std::string::npos) refuse("a comment is not closed with \"#}\"");
    const char sign = end > pos_ ? in_[end - 1] : ' ';
    advance(end + 2);
    skip_after(sign, false);
  }

  // The position after "  word  " and a closing "%}" or "-%}"; 0 when something else is at `at`.
  size_t match_word(std::string_view word, size_t at) const {
    while (at < in_.size() && is_space(in_[at])) ++at;
    if (in_.compare(at, word.size(), word) != 0) return 0;
    at += word.size();
    while (at < in_.size() && is_space(in_[at])) ++at;
    if (at < in_.size() && (in_[at] == '-' || in_[at] == '+')) ++at;
    return in_.compare(at, 2, "%}") == 0 ? at + 2 : 0;
  }

  void raw(size_t body) {
    const bool strip = in_[body - 3] == '-';
    advance(body);
    if (strip) skip_after('-', false);
    line_starting_ = false;
    for (size_t tag = pos_; (tag = in_.find("{%", tag)) != std::string::npos; ++tag) {
      const bool sign = tag + 2 < in_.size() && (in_[tag + 2] == '-' || in_[tag + 2] == '+');
      const size_t after = match_word("endraw", tag + 2 + sign);
      if (after == 0) continue;
      add_text_before(tag, false);
      const char closing = in_[after - 3];
      advance(after);
      skip_after(closing, false);
      return;
    }
    refuse("{% raw %} is not closed with {% endraw %}");
  }

  void expression(std::string_view closer, Kind closer_kind) {
    std::string open;  // brackets: "}}" inside {"a": {}} does not end the tag
    while (true) {
      while (pos_ < in_.size() && is_space(in_[pos_])) advance(pos_ + 1);
      if (pos_ >= in_.size()) refuse(fmt::format("a tag is not closed with \"{}\"", closer));
      const bool sign = in_[pos_] == '-' || (in_[pos_] == '+' && closer == "%}");
      if (open.empty() && in_.compare(pos_ + sign, 2, closer) == 0) {
        add(closer_kind, "");
        const char s = sign ? in_[pos_] : ' ';
        advance(pos_ + sign + 2);
        skip_after(s, closer_kind == Kind::variable_end);
        return;
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = in_[pos_];
    if (starts_name(c)) return name();
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string(c);
    constexpr std::array<std::string_view, 25> kOps{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                                    "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                    "]",  "{",  "}",  ",",  ":",  ".",  "|"};
    for (const auto op : kOps) {
      if (in_.compare(pos_, op.size(), op) != 0) continue;
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) refuse(fmt::format("\"{}\" closes nothing", c));
        open.pop_back();
      }
      add(Kind::op, std::string(op));
      advance(pos_ + op.size());
      return;
    }
    refuse(fmt::format("\"{}\" is not part of an expression", in_.substr(pos_, 1)));
  }

  void name() {
    size_t end = pos_;
    while (end < in_.size() && (starts_name(in_[end]) || is_digit(in_[end]))) ++end;
    add(Kind::name, in_.substr(pos_, end - pos_));
    advance(end);
  }

  void number() {
    size_t end = pos_;
    std::string digits;
    const auto take = [&] {
      while (end < in_.size() && (is_digit(in_[end]) || in_[end] == '_')) {
        if (in_[end] != '_') digits += in_[end];
        ++end;
      }
    };
    const auto digit_at = [&](size_t i) { return i < in_.size() && is_digit(in_[i]); };
    take();
    bool real = false;
    // "1.x" would be an attribute and "1.2" is a number, but after a "." it is "list.1.2": an index, then an index.
    const bool after_dot = !out_.empty() && out_.back().is_op(".");
    if (!after_dot && end < in_.size() && in_[end] == '.' && digit_at(end + 1)) {
      real = true;
      digits += in_[end++];
      take();
    }
    if (!after_dot && end < in_.size() && (in_[end] == 'e' || in_[end] == 'E')) {
      const bool sign = end + 1 < in_.size() && (in_[end + 1] == '-' || in_[end + 1] == '+');
      if (digit_at(end + 1 + sign)) {
        real = true;
        digits += in_.substr(end, 1 + sign);
        end += 1 + sign;
        take();
      }
    }
    add(real ? Kind::real : Kind::integer, digits);
    advance(end);
  }

  void string(char quote) {
    const size_t begin = pos_ + 1;
    size_t end = begin;
    while (end < in_.size() && in_[end] != quote) end += in_[end] == '\\' ? 2 : 1;
    if (end >= in_.size()) refuse("a string is not closed");
    add(Kind::string, unescape(std::string_view(in_).substr(begin, end - begin)));
    advance(end + 1);
  }

  // Python's escapes, as its "unicode-escape" codec reads them.
  std::string unescape(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size();) {
      if (s[i] != '\\') {
        out += s[i++];
        continue;
      }
      const char c = s[i + 1];
      constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
      if (const size_t at = kFrom.find(c); at != std::string_view::npos) {
        out += kTo[at];
        i += 2;
      } else if (c == '\n') {
        i += 2;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code_point(out, code_point(s.substr(i + 2, digits), digits, 16));
        i += 2 + digits;
      } else if (c >= '0' && c <= '7') {
        size_t digits = 1;
        while (digits < 3 && i + 1 + digits < s.size() && s[i + 1 + digits] >= '0' && s[i + 1 + digits] <= '7')
          ++digits;
        append_code_point(out, code_point(s.substr(i + 1, digits), digits, 8));
        i += 1 + digits;
      } else if (c == 'N') {
        refuse("the escape \\N{...} is not supported");
      } else {
        out += s[i++];
      }
    }
    return out;
  }

  char32_t code_point(std::string_view digits, size_t count, int base) const {
    char32_t c = 0;
    bool ok = digits.size() == count;
    for (const char d : digits) {
      const int v = is_digit(d) ? d - '0' : std::isxdigit(static_cast<unsigned char>(d)) ? (d | 0x20) - 'a' + 10 : 99;
      ok = ok && v < base && c < 0x1000000;
      c = c * static_cast<char32_t>(base) + static_cast<char32_t>(v);
    }
    if (!ok || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) refuse("a string has an escape that is not a character");
    return c;
  }

  std::string in_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // pos_ is where a line begins
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace sluice::text::jinja
