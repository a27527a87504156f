// SPDX-License-Identifier: Apache-2.0
// Fields of a request that say nothing about its text: when and beside what it
// runs. The same in every form.
#pragma once

#include "engine/request.h"
#include "server/fields.h"
#include "server/service.h"

namespace sluice::server {

// priority, queue_timeout, timeout (else the server's), cache_salt (SGLang also
// says extra_key). Throws ApiError 400.
void read_request_options(Fields& fields, const ServiceConfig& config, engine::Request& request);

}  // namespace sluice::server
