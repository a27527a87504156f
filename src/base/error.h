// SPDX-License-Identifier: Apache-2.0
// Errors: one exception type with one clear sentence. The library never prints, aborts or exits.
#pragma once

// fmt does not compile as CUDA; .cu files report through host files (kernels/sm90/device.h).
#if !defined(__CUDACC__)
#include <fmt/format.h>
#endif

#include <stdexcept>
#include <string>
#include <utility>

namespace sluice {

// What went wrong, for callers that branch on it: exit codes, C status codes, HTTP status.
enum class ErrorCode {
  invalid_argument,  // the caller passed something that is not accepted
  bad_file,          // a file is truncated, corrupt, lying or contradicts another
  not_found,         // a path or a named thing does not exist
  unsupported,       // well-formed, but no backend or loader takes it
  out_of_memory,
  busy,      // a bounded queue is full; the same call may succeed later
  io,        // the operating system refused a read or a write
  cuda,      // a CUDA call failed
  internal,  // our own bug
};

// The sentence names the argument or file, the value, and what would be accepted.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

#if !defined(__CUDACC__)
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

// Throws invalid_argument unless `ok`. check(n > 0, "tokens is {}; it must be positive", n)
template <class... Args>
void check(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) fail(ErrorCode::invalid_argument, text, std::forward<Args>(args)...);
}

// The same for files that do not hold what they promise.
template <class... Args>
void check_file(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) fail(ErrorCode::bad_file, text, std::forward<Args>(args)...);
}
#else
template <class... Args>
[[noreturn]] void fail(ErrorCode code, const char* text, Args&&... args);  // named by headers, never called
template <class... Args>
void check(bool ok, const char* text, Args&&... args);
#endif

}  // namespace sluice
