// SPDX-License-Identifier: Apache-2.0
// Python's str, on UTF-8: positions and lengths are in characters. All arguments must be valid UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text::jinja {

// str.isspace for one character: White_Space and the four separators U+001C to U+001F.
bool is_py_space(char32_t c);

// First position of `what` at or after `from`, in bytes, or npos. Linear, unlike std::string_view::find.
size_t find_bytes(std::string_view s, std::string_view what, size_t from = 0);

enum class Side { left, right, both };
// Without `chars`: white space.
std::string_view strip(std::string_view s, Side side, std::optional<std::string_view> chars);

// Splits at `separator`, or at runs of white space without one; at most `max_splits` times unless negative, counted
// from the right with `from_right`. An empty separator is the caller's to refuse.
std::vector<std::string> split(std::string_view s, std::optional<std::string_view> separator, int64_t max_splits,
                               bool from_right);
std::vector<std::string> split_lines(std::string_view s, bool keep_ends);

// At most `count` times unless negative. An empty `from` matches between all characters, as in Python.
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t count);

std::string upper(std::string_view s);
std::string lower(std::string_view s);
std::string capitalize(std::string_view s);
std::string title(std::string_view s);        // str.title: every run of letters
std::string jinja_title(std::string_view s);  // the filter: after white space, "-", "(", "{", "[" and "<"

// The characters one by one.
std::vector<std::string> characters(std::string_view s);

// repr(s): quoted and escaped.
std::string repr(std::string_view s);

}  // namespace sluice::text::jinja
