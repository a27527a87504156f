// SPDX-License-Identifier: Apache-2.0
// Opening files that a user or another file named: only regular files, with one sentence for everything else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace sluice::io {

// An open file descriptor; closed with the object.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Opens for reading. Never waits for a FIFO's writer. Throws not_found (no such path), bad_file (a directory, a FIFO,
// a device, a loop of symbolic links) or io (not readable).
FileHandle open_regular(const std::filesystem::path& path);

// Bytes of the open file now. Throws io.
int64_t size_of(const FileHandle& file, const std::filesystem::path& path);

// The whole file as bytes. Throws as open_regular, and bad_file when it is empty or longer than `max_bytes`: a text
// file that is parsed into a tree costs about twenty times its size in memory.
std::string read_file(const std::filesystem::path& path, int64_t max_bytes);

// True when the folder has an entry of this name, also a link that leads nowhere: opening it gives the right sentence.
bool is_present(const std::filesystem::path& path);

// N when `path` is /proc/self/fd/N, also by another name of that folder, such as /dev/fd; else -1.
int descriptor_of(const std::filesystem::path& path);

// What the symbolic link `path` leads to at last, which need not exist; any other path as it is. /dev/stdout leads to
// descriptor 1, whatever that is, and no further. A loop ends at one of its links.
std::filesystem::path follow_links(std::filesystem::path path);

// True for the root of a mounted file system and for a file or folder that is mounted on its own: nothing can be
// renamed to it.
bool is_mount_point(const std::filesystem::path& path);

}  // namespace sluice::io
