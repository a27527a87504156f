// SPDX-License-Identifier: Apache-2.0
// JSON as a chat template reads it.
#pragma once

#include "io/json_value.h"
#include "text/jinja/value.h"
#include "text/special_guard.h"

namespace sluice::io {

// Every text, and every key, goes through guard().
text::jinja::Value to_template_value(const JsonValue& json, const text::SpecialGuard& guard);

}  // namespace sluice::io
