// SPDX-License-Identifier: Apache-2.0
// Which backend runs a spec, and what every other one said.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moe/backend.h"

namespace sluice::moe {

struct BackendSupport {
  const Backend* backend = nullptr;
  Support support;
};

// What each backend answers, in list order. Throws when the spec contradicts itself.
std::vector<BackendSupport> ask_backends(const MoeSpec& spec);

// "auto": the first in the list that supports the spec; otherwise the one of that name. Throws `unsupported` with the
// backends' own sentences when none can, or the named one refuses; invalid_argument, with the names, for another name.
const Backend& select(const MoeSpec& spec, std::string_view choice = "auto");

// Whether a backend that `choice` can name reads weights in the memory of `device`. It is asked before the weights are
// read, when their format is not known: select() comes after.
bool takes_weights_on(DeviceId device, std::string_view choice);

// "auto, cpu, reference": what `select` takes, for option help and error texts.
std::string backend_names();

}  // namespace sluice::moe
