// SPDX-License-Identifier: Apache-2.0
#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/quote.h"

namespace sluice::io {

FileHandle::FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileHandle::~FileHandle() {
  if (fd_ >= 0) close(fd_);
}

FileHandle open_regular(const std::filesystem::path& path) {
  const std::string name = printable(path.native(), 4096);
  // O_NONBLOCK: opening a FIFO that nobody writes to would block forever.
  FileHandle file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) fail(ErrorCode::not_found, "{} does not exist", name);
    if (errno == ELOOP)
      fail(ErrorCode::bad_file, "{} is a loop of symbolic links; it must lead to a regular file", name);
    if (errno == ENAMETOOLONG) fail(ErrorCode::not_found, "{} does not exist: the name is too long", name);
    fail(ErrorCode::io, "{} cannot be opened for reading: {}", name, std::strerror(errno));
  }
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) fail(ErrorCode::io, "{} cannot be read: {}", name, std::strerror(errno));
  check_file(!S_ISDIR(info.st_mode), "{} is a directory; it must be a regular file", name);
  check_file(!S_ISFIFO(info.st_mode), "{} is a FIFO; it must be a regular file", name);
  check_file(S_ISREG(info.st_mode), "{} is a device or a socket; it must be a regular file", name);
  return file;
}

int64_t size_of(const FileHandle& file, const std::filesystem::path& path) {
  struct stat info {};
  if (fstat(file.fd(), &info) != 0)
    fail(ErrorCode::io, "{} cannot be read: {}", printable(path.native(), 4096), std::strerror(errno));
  return info.st_size;
}

std::string read_file(const std::filesystem::path& path, int64_t max_bytes) {
  const FileHandle file = open_regular(path);
  const std::string name = printable(path.native(), 4096);
  const int64_t size = size_of(file, path);
  check_file(size > 0, "{} is empty", name);
  check_file(size <= max_bytes, "{} has {} bytes; at most {} are read", name, size, max_bytes);
  std::string text(static_cast<size_t>(size), '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = read(file.fd(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io, "{} cannot be read: {}", name, std::strerror(errno));
    check_file(got > 0, "{} was cut from {} to {} bytes while it was read", name, size, done);
    done += static_cast<size_t>(got);
  }
  return text;
}

bool is_present(const std::filesystem::path& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

int descriptor_of(const std::filesystem::path& path) {
  const std::string number = path.filename();
  const char* const end = number.data() + number.size();
  int descriptor = -1;
  const auto [stop, wrong] = std::from_chars(number.data(), end, descriptor);
  if (wrong != std::errc{} || stop != end || descriptor < 0) return -1;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(path.parent_path(), error);
  const bool own = !error && folder == std::filesystem::canonical("/proc/self/fd", error);
  return own ? descriptor : -1;
}

std::filesystem::path follow_links(std::filesystem::path path) {
  for (int i = 0; i < 40 && descriptor_of(path) < 0; ++i) {  // as many as Linux follows
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // an absolute target replaces all
  }
  return path;
}

bool is_mount_point(const std::filesystem::path& path) {
  constexpr uint64_t kMountRoot = 0x2000;  // STATX_ATTR_MOUNT_ROOT, which older headers lack
  struct statx info {};
  // The device's number does not tell: a folder can be mounted within its own file system.
  return statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, 0, &info) == 0 && (info.stx_attributes & kMountRoot) != 0;
}

}  // namespace sluice::io
