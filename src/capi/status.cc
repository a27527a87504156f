// SPDX-License-Identifier: Apache-2.0
#include "capi/status.h"

#include <string>

namespace sluice::capi {

namespace {
thread_local std::string last_error;
}  // namespace

sluice_status record(sluice_status status, const char* sentence) noexcept {
  try {
    last_error = sentence;
  } catch (...) {
    last_error.clear();  // no memory for the sentence; the status still tells
  }
  return status;
}

sluice_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return SLUICE_INVALID_ARGUMENT;
    case ErrorCode::bad_file:
      return SLUICE_BAD_FILE;
    case ErrorCode::not_found:
      return SLUICE_NOT_FOUND;
    case ErrorCode::unsupported:
      return SLUICE_UNSUPPORTED;
    case ErrorCode::out_of_memory:
      return SLUICE_OUT_OF_MEMORY;
    case ErrorCode::io:
      return SLUICE_IO;
    case ErrorCode::cuda:
      return SLUICE_CUDA;
    case ErrorCode::busy:
      return SLUICE_BUSY;
    case ErrorCode::internal:
      return SLUICE_INTERNAL;
  }
  return SLUICE_INTERNAL;
}

void check_text_out(const char* buffer, size_t size) {
  check(buffer != nullptr || size == 0, "buffer is NULL and size is {}; size must be 0 to ask for the length", size);
}

sluice_status copy_text(std::string_view text, char* buffer, size_t size, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  check_text_out(buffer, size);
  if (size > 0) {
    const size_t kept = std::min(text.size(), size - 1);
    std::memcpy(buffer, text.data(), kept);
    buffer[kept] = '\0';
  }
  if (size > text.size()) return SLUICE_OK;
  return record(SLUICE_BUFFER_TOO_SMALL,
                fmt::format("the text needs {} bytes, the buffer has {}", text.size() + 1, size).c_str());
}

}  // namespace sluice::capi

extern "C" {
const char* sluice_version(void) { return SLUICE_VERSION; }
const char* sluice_last_error(void) { return sluice::capi::last_error.c_str(); }
}
