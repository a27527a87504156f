// SPDX-License-Identifier: Apache-2.0
#include "text/oniguruma.h"

#include <cctype>

#include "base/error.h"

namespace sluice::text {
namespace {

constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
// Alphabetic, marks, decimal digits, connectors; the three ranges are letters in circles and squares.
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

class Translation {
 public:
  Translation(std::string_view pattern, std::string_view what) : in_(pattern), what_(what) {}

  std::string run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else if (c == '[') {
        open_class();
      } else {
        if (c == '(') check_flags();
        if (c == '+' && after_interval_) refuse("\"{n,m}+\", which means different things to different libraries");
        after_interval_ = c == '}' && is_interval_end();
        out_ += c;
        ++pos_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    fail(ErrorCode::bad_file,
         "{} \"{}\" has {} (byte {}); accepted: \\s \\S \\w \\W \\d \\D \\p{{..}}, classes, groups, "
         "lookaround and *, +, ?, {{n,m}}",
         what_, in_, part, pos_);
  }

  // (?m) is "dot matches newlines" in Oniguruma, and (?x) would hide what is a class here.
  void check_flags() {
    if (in_.substr(pos_, 2) != "(?") return;
    for (size_t i = pos_ + 2; i < in_.size() && (std::isalpha(static_cast<unsigned char>(in_[i])) || in_[i] == '-');
         ++i)
      if (in_[i] != 'i' && in_[i] != '-') refuse(fmt::format("the flag \"{}\"", in_[i]));
  }

  // Whether the } at pos_ ends {n}, {n,}, {,m} or {n,m}, and not \p{L}: digits and a comma only, after a {.
  bool is_interval_end() const {
    size_t i = pos_;
    while (i > 0 && (std::isdigit(static_cast<unsigned char>(in_[i - 1])) || in_[i - 1] == ',')) --i;
    return i > 0 && i < pos_ && in_[i - 1] == '{';
  }

  void open_class() {
    in_class_ = true;
    after_interval_ = false;
    out_ += '[';
    ++pos_;
    if (pos_ < in_.size() && in_[pos_] == '^') out_ += in_[pos_++];
    if (pos_ < in_.size() && in_[pos_] == ']') refuse("\"]\" as the first character of a class");
  }

  void class_character(char c) {
    if (c == '[') refuse("\"[\" inside a class");
    if (in_.substr(pos_, 2) == "&&") refuse("\"&&\" inside a class");
    if (c == ']') in_class_ = false;
    out_ += c;
    ++pos_;
  }

  void list(std::string_view characters, bool negated = false) {
    if (in_class_) {
      if (negated) refuse("\"\\W\" inside a class");
      out_ += characters;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += characters;
      out_ += ']';
    }
  }

  void escape() {
    after_interval_ = false;
    if (pos_ + 1 == in_.size()) refuse("\"\\\" at its end");
    const char c = in_[pos_ + 1];
    const size_t at = pos_;
    pos_ += 2;
    switch (c) {
      case 's':
        return list(kSpace);
      case 'S':
        return list(kNotSpace);
      case 'w':
        return list(kWord);
      case 'W':
        return list(kWord, true);
      case 'v':
        out_ += "\\x{b}";
        return;
      case 'u':
        return unicode_escape(at);
      case 'd':
      case 'D':
      case 'p':
      case 'P':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
      case 'x':
        out_ += in_.substr(at, 2);
        return;
      default:
        break;
    }
    if (!in_class_ && (c == 'A' || c == 'z' || c == 'Z')) {
      out_ += in_.substr(at, 2);
      return;
    }
    if (std::isalnum(static_cast<unsigned char>(c))) {
      pos_ = at;
      refuse(fmt::format("\"\\{}\"", c));
    }
    // An escaped character of several bytes is kept whole: PCRE2 would apply the backslash to its first byte only.
    if (static_cast<unsigned char>(c) < 0x80) out_ += '\\';
    out_ += c;
  }

  void unicode_escape(size_t at) {
    const std::string_view digits = in_.substr(pos_, 4);
    bool ok = digits.size() == 4;
    for (const char d : digits) ok = ok && std::isxdigit(static_cast<unsigned char>(d));
    if (!ok) {
      pos_ = at;
      refuse("\"\\u\" without four hexadecimal digits");
    }
    out_ += "\\x{";
    out_ += digits;
    out_ += '}';
    pos_ += 4;
  }

  std::string_view in_, what_;
  size_t pos_ = 0;
  bool in_class_ = false, after_interval_ = false;
  std::string out_;
};

}  // namespace

std::string from_oniguruma(std::string_view pattern, std::string_view what) { return Translation(pattern, what).run(); }

}  // namespace sluice::text
