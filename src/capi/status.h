// SPDX-License-Identifier: Apache-2.0
// Where exceptions stop: every function of the C ABI runs its body in guard().
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "sluice/c.h"

namespace sluice::capi {

// Keeps the sentence for sluice_last_error() of this thread; never throws.
sluice_status record(sluice_status status, const char* sentence) noexcept;
sluice_status status_of(ErrorCode code) noexcept;

template <class Body>
sluice_status guard(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return SLUICE_OK;
    } else {
      return body();
    }
  } catch (const Error& e) {
    return record(status_of(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return record(SLUICE_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return record(SLUICE_INTERNAL, e.what());
  } catch (...) {
    return record(SLUICE_INTERNAL, "an unknown exception");
  }
}

// What a text may be written to. Calls whose text costs time look at it before the work.
void check_text_out(const char* buffer, size_t size);
// The text with its final zero, as much of it as fits, and in *needed (may be NULL) the size that holds all of it.
sluice_status copy_text(std::string_view text, char* buffer, size_t size, size_t* needed);

template <class T>
T& required(T* pointer, const char* name) {
  check(pointer != nullptr, "{} is NULL; it must be given", name);
  return *pointer;
}

// A caller's struct of an older or newer version of c.h: fields that it lacks are zero, fields beyond ours are refused
// unless they are zero too. kLeast is the size of the first version.
template <class T>
T read_struct(const T* given, const char* name, size_t least) {
  const size_t size = required(given, name).struct_size;
  check(size >= least && size <= 4096, "{}.struct_size is {}; set it with SLUICE_INIT, {} bytes now", name, size,
        sizeof(T));
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof(T); i < size; ++i)
    check(bytes[i] == 0, "{} sets a field that this version of the library does not know", name);
  T copy{};
  std::memcpy(&copy, given, std::min(size, sizeof(T)));
  return copy;
}

// A caller's array of such structs. They lie as far apart as a struct of the caller's version is long, which its first
// one says: an element of our own size would be somewhere inside of a newer caller's.
template <class T>
std::vector<T> read_structs(const T* given, size_t count, const char* name, size_t least) {
  std::vector<T> out;
  if (count == 0) return out;
  const size_t stride = required(given, name).struct_size;
  // A struct is as long as a multiple of its alignment, so what is refused here was not set by a compiler.
  check(stride % alignof(T) == 0, "{}[0].struct_size is {}; set it with SLUICE_INIT, {} bytes now", name, stride,
        sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const T* at = reinterpret_cast<const T*>(reinterpret_cast<const char*>(given) + i * stride);
    check(at->struct_size == stride, "{}[{}].struct_size is {}; accepted: {}, as {}[0] has", name, i, at->struct_size,
          stride, name);
    out.push_back(read_struct(at, fmt::format("{}[{}]", name, i).c_str(), least));
  }
  return out;
}

// Whether write_struct() takes it. Calls that work for the result, or change something, look before they do.
template <class T>
void check_struct_out(const T* out, const char* name) {
  const size_t size = required(out, name).struct_size;
  check(size >= sizeof(size_t) && size <= 4096, "{}.struct_size is {}; set it with SLUICE_INIT", name, size);
}

// A result struct keeps its size; an older caller's shorter one gets the fields that it knows.
template <class T>
void write_struct(const T& value, T* out, const char* name) {
  check_struct_out(out, name);
  const size_t size = out->struct_size;
  std::memcpy(reinterpret_cast<char*>(out) + sizeof(size_t), reinterpret_cast<const char*>(&value) + sizeof(size_t),
              std::min(size, sizeof(T)) - sizeof(size_t));
}

}  // namespace sluice::capi
