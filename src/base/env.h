// SPDX-License-Identifier: Apache-2.0
// THE LIST of environment variables, and the only reader of them. Applications and tests call it; the library's own
// code takes arguments. `sluice info` prints the list, docs/reference.md is checked against it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct EnvVar {
  std::string_view name, type, fallback, what;
};

inline constexpr EnvVar kEnvThreads{"SLUICE_THREADS", "integer >= 0", "0",
                                    "worker threads where --threads is not given; 0: every usable core"};
inline constexpr EnvVar kEnvLog{"SLUICE_LOG", "debug|info|warning", "info", "log level where --log-level is not given"};
inline constexpr EnvVar kEnvNvfp4PerToken{
    "SLUICE_NVFP4_PER_TOKEN_ACTIVATION", "0|1", "0",
    "NVFP4 checkpoints: activation scales from each token, the checkpoint's input scales are ignored"};
inline constexpr EnvVar kEnvTestModels{"SLUICE_TEST_MODELS", "folder", "(unset)",
                                       "tests only: the full trained checkpoints with their goldens"};

inline constexpr std::array kEnvVars{kEnvThreads, kEnvLog, kEnvNvfp4PerToken, kEnvTestModels};

// The variable's text; nothing when it is unset or empty.
std::optional<std::string> env_text(const EnvVar& variable);
// "0" and unset are false, "1" is true; anything else throws invalid_argument.
bool env_flag(const EnvVar& variable);
// The number, or the list's default when unset; throws invalid_argument unless it is an integer in [0, 2^31).
int env_int(const EnvVar& variable);
// One of the words that the list's type names ("a|b|c"), or the default; throws invalid_argument for another one.
std::string env_choice(const EnvVar& variable);

}  // namespace sluice
