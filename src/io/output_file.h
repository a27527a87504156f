// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name only when it is complete. Where the file system can (O_TMPFILE: ext4, xfs, btrfs,
// tmpfs) the unfinished file has no name at all, so nothing is left behind by an exception, Ctrl-C, a full disk, kill
// -9 or a power cut, and an application needs no signal handler. Elsewhere (NFS, FUSE) it is "<path>.tmp-<pid>-<n>" and
// the destructor removes it: there an application turns SIGINT into a flag, and lets its Context::progress throw.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/file.h"

namespace sluice::io {

class OutputFile {
 public:
  enum class Temp { unnamed, named };  // named: as on file systems without O_TMPFILE

  // An existing file stays as it is until commit(), and a symbolic link stays a link to what is written. Devices, FIFOs
  // and the process's own descriptors (/dev/stdout, also where it is a file) are written directly. Throws not_found (no
  // such folder), invalid_argument (the path is empty, a folder or a mount point) or io.
  explicit OutputFile(std::filesystem::path path, Temp temp = Temp::unnamed);
  ~OutputFile();  // without commit(): the file never was
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Throw io, naming the path and the reason (no space left on device); bad_file when the data lie in a mapped file
  // that was cut meanwhile.
  void write(const void* data, int64_t bytes);  // after what was appended so far
  // Anywhere, and the end of write() stays where it is. What is written directly takes bytes in their order only:
  // invalid_argument where `offset` is not the end, which moves.
  void write_at(int64_t offset, const void* data, int64_t bytes);

  // Reserves room, so that a full disk is noticed before hours of work and not after.
  void reserve(int64_t bytes);

  // Flushes to the disk and gives the file its name, replacing what was there in one step.
  void commit();

  const std::string& name() const { return name_; }  // the final path, printable

 private:
  [[noreturn]] void fail_write(int error, const void* data = nullptr) const;
  std::filesystem::path temp_path(int attempt) const;

  std::filesystem::path path_, temp_path_;  // temp_path_ is empty while the file has no name
  std::string name_;
  FileHandle file_;
  int64_t end_ = 0;
  bool direct_ = false;
};

// A small file at once, e.g. config.json.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sluice::io
