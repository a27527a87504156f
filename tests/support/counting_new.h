// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of a test program: replaces the global operators, so exactly one file of a program includes
// it. Every form without alignment is here, or a sanitizer finds memory of its own operator freed by one of these (the
// standard library's temporary buffers take the form that does not throw).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: compilers warn of memory from new that free() takes.
__attribute__((noinline)) void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (void* p = operator new(bytes, std::nothrow)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
