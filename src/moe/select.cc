// SPDX-License-Identifier: Apache-2.0
#include "moe/select.h"

#include <algorithm>

#include "moe/backends.h"

namespace sluice::moe {

std::vector<BackendSupport> ask_backends(const MoeSpec& spec) {
  validate(spec);
  std::vector<BackendSupport> answers;
  for (const auto& backend : backends()) answers.push_back({backend.get(), backend->supports(spec)});
  return answers;
}

const Backend& select(const MoeSpec& spec, std::string_view choice) {
  std::string reasons;
  for (const auto& [backend, support] : ask_backends(spec)) {
    if (choice != "auto" && choice != backend->name()) continue;
    if (support) return *backend;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", backend->name(), support.reason);
  }
  check(!reasons.empty(), "the MoE backend is \"{}\"; accepted: {}", choice, backend_names());
  fail(ErrorCode::unsupported, "{}", reasons);
}

bool takes_weights_on(DeviceId device, std::string_view choice) {
  return std::any_of(backends().begin(), backends().end(), [&](const auto& backend) {
    return (choice == "auto" || choice == backend->name()) && backend->takes_weights_on(device);
  });
}

std::string backend_names() {
  std::string names = "auto";
  for (const auto& backend : backends()) names += fmt::format(", {}", backend->name());
  return names;
}

}  // namespace sluice::moe
