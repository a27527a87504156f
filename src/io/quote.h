// SPDX-License-Identifier: Apache-2.0
// Names and values from files inside error sentences: a file chooses them, so they may be a megabyte long or
// hold control characters that move a terminal's cursor.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::io {

// Valid UTF-8 stays; control characters and broken sequences become \xNN; text beyond `limit` bytes is cut to "...".
std::string printable(std::string_view text, size_t limit = 120);

// printable() in double quotes.
std::string quote(std::string_view text, size_t limit = 120);

// A number that a file did not write as an integer: 8.0 is not 8.
std::string number_text(double value);

}  // namespace sluice::io
