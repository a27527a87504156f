// SPDX-License-Identifier: Apache-2.0
// THE LIST of environment variables, and the program's only reader of them; tests, which may see no more than the
// shared library, also read theirs where they need them. The library's own code takes arguments. `sluice info` prints
// the list, docs/reference.md is checked against it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct EnvVar {
  std::string_view name, type, fallback, what;
};

inline constexpr EnvVar kEnvThreads{"SLUICE_THREADS", "integer 0 to 4096", "0",
                                    "worker threads where no option says how many; 0: every usable core"};
inline constexpr EnvVar kEnvLog{"SLUICE_LOG", "debug|info|warning", "info", "log level where no option names one"};
inline constexpr EnvVar kEnvNvfp4PerToken{
    "SLUICE_NVFP4_PER_TOKEN_ACTIVATION", "0|1", "0",
    "NVFP4 checkpoints: activation scales from each token, the checkpoint's input scales are ignored"};
inline constexpr EnvVar kEnvTestModels{"SLUICE_TEST_MODELS", "folder", "(unset)",
                                       "tests only: the full trained checkpoints with their goldens"};

inline constexpr EnvVar kEnvTestSeed{"SLUICE_TEST_SEED", "integer 0 to 4294967295", "(unset)",
                                     "tests only: the seed of random data; a failing test prints the one it had"};
inline constexpr EnvVar kEnvTestVerbose{"SLUICE_TEST_VERBOSE", "0|1", "0", "tests only: more is printed"};

inline constexpr std::array kEnvVars{kEnvThreads,    kEnvLog,      kEnvNvfp4PerToken,
                                     kEnvTestModels, kEnvTestSeed, kEnvTestVerbose};

// The variable's text; nothing when it is unset or empty.
std::optional<std::string> env_text(const EnvVar& variable);
// "0" and unset are false, "1" is true; anything else throws invalid_argument.
bool env_flag(const EnvVar& variable);
// The number, or the list's default when unset; throws invalid_argument unless it is an integer in [0, most].
int env_int(const EnvVar& variable, int most);
// One of the words that the list's type names ("a|b|c"), or the default; throws invalid_argument for another one.
std::string env_choice(const EnvVar& variable);

}  // namespace sluice
