// SPDX-License-Identifier: Apache-2.0
// UTF-8 in and out. Invalid bytes become U+FFFD, one for each maximal subpart (Unicode 3.9, table 3-8): the same
// as Python's errors="replace" and Rust's from_utf8_lossy, so that ids and text equal Hugging Face's.
//
// Decoding is written here: utf8proc_iterate() says that bytes are invalid, but neither how many form the maximal
// subpart nor whether more bytes could complete a character. Properties of characters are utf8proc's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::text {

// Appends `bytes` to `out`. Returns how many bytes at the end were held back because they begin a character that
// is not complete (0 to 3); with `last` set there is nothing to wait for and they become one U+FFFD.
size_t append_utf8(std::string& out, std::string_view bytes, bool last);

// `bytes` with every invalid part replaced.
std::string to_valid_utf8(std::string_view bytes);

// The code point at `pos`, which moves past it. `text` must be valid UTF-8 and pos < text.size().
char32_t next_code_point(std::string_view text, size_t& pos);

// Moves `pos` back by one character and returns it. `text` must be valid UTF-8 and pos > 0.
char32_t previous_code_point(std::string_view text, size_t& pos);

void append_code_point(std::string& out, char32_t c);

// Characters in valid UTF-8.
size_t count_code_points(std::string_view text);

// Unicode property White_Space.
bool is_white_space(char32_t c);

// Regular expressions' \w: Alphabetic, marks, decimal digits, connector punctuation, joiners.
bool is_word_character(char32_t c);

}  // namespace sluice::text
