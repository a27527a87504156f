// SPDX-License-Identifier: Apache-2.0
// Whence requests may bring weights: folders that the command line names, and shared memory.
#pragma once

#include <string>
#include <string_view>

#include "server/engine_client.h"
#include "server/fields.h"
#include "server/service.h"

namespace sluice::server {

// The canonical path of a folder or file that a request names, which must lie below a weight folder, or be
// `served` (the served checkpoint; "": not accepted). Throws ApiError 400 with the same sentence whether it exists or
// not.
std::string checked_path(const ServiceConfig& config, std::string_view field, const std::string& wanted,
                         const std::string& served);

// Reads tensors for `engine`: a request's "tensors" [{"name", "dtype", "shape", "offset"}] from the POSIX shared memory
// "shared_memory" or from the "file" below a weight folder. Every name, type, shape and offset is checked before the
// first byte is read; the bytes are copied, so the memory is the client's again on return. Throws ApiError 400.
engine::NamedTensors read_given_tensors(Fields& fields, const ServiceConfig& config, const EngineClient& engine,
                                        UnknownFields& unknown);

}  // namespace sluice::server
