// SPDX-License-Identifier: Apache-2.0
// The arguments of a call that broke off, for an API whose calls hold an object and not its text.
#pragma once

#include <string>
#include <string_view>

namespace sluice::server {

// `begun` is the beginning of a JSON object. Returns the object with everything in it that is complete. A string,
// number or word at its end does not count as complete, since more of it may have been to come.
std::string closed_json(std::string_view begun);

}  // namespace sluice::server
