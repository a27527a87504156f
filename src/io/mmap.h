// SPDX-License-Identifier: Apache-2.0
// A file seen as memory, read-only. Why mapped and not read into buffers: a warm file is there at 30 GB/s (2 threads,
// MADV_POPULATE_READ), and packing reads it without a buffer between: faults of the mapping and forget() are 7 % of the
// samples of a load. pread into fresh huge pages takes 2-6 GB/s before packing begins and doubles the memory. A cold
// file takes the disk's time either way (both 1.7 GB/s; read_ahead.h asks for large pieces).
//
// What mapping costs: a file that is cut short while it is mapped raises SIGBUS where an error would do. So every view
// is handed out after a look at the file's size, and describe_bus_error() gives an application's signal handler the
// sentence for a file that is cut later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "io/file.h"

namespace sluice::io {

class MappedFile {
 public:
  // Throws as open_regular, and bad_file when the file is empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::string& name() const { return name_; }  // the path, printable

  // Throws bad_file when the file is shorter now than when it was mapped (0.3 us).
  void check_not_cut() const;
  bool holds(const void* memory) const {
    const auto* p = static_cast<const std::byte*>(memory);
    return p >= data_ && p < data_ + size_;
  }
  // Takes the pages of [memory, memory + bytes), which lies in the file, out of this process. They stay in the page
  // cache, and whoever reads them again finds them there: only the process's resident size falls.
  void forget(const void* memory, int64_t bytes) const;

  // Throws bad_file when the file was written to, cut or lengthened since it was mapped.
  void check_unchanged() const;

 private:
  FileHandle file_;
  std::string name_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::pair<int64_t, int64_t> modified_;  // seconds and nanoseconds
};

// For a SIGBUS handler: writes into `buffer` one line (no NUL) naming the mapped file that holds `address`, and returns
// its length, 0 when no file does. Async-signal-safe: reads /proc/self/maps with system calls only.
size_t describe_bus_error(const void* address, char* buffer, size_t capacity);

}  // namespace sluice::io
