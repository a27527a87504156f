// SPDX-License-Identifier: Apache-2.0
// GPT-2's printable alphabet: every byte has a character that is neither a space nor a control. Vocabularies of
// byte-level BPE are written in it (" the" begins with U+0120 there).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::text {

// The character that stands for each byte.
const std::array<char32_t, 256>& byte_alphabet();

// The same as UTF-8.
const std::array<std::string, 256>& byte_alphabet_utf8();

// The bytes that a token of valid UTF-8 stands for; nothing when a character is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view token);

}  // namespace sluice::text
