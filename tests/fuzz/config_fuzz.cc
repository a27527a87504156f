// SPDX-License-Identifier: Apache-2.0
// Any bytes as config.json, read as a model loader reads it.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tests/io/config_defects.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    sluice::io::read_like_a_model(
        sluice::io::Config::parse({reinterpret_cast<const char*>(data), size}, "config.json"));
  } catch (const sluice::Error&) {
  }
  return 0;
}
