// SPDX-License-Identifier: Apache-2.0
#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/mmap.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
constexpr int kAttempts = 1000;  // names to try when earlier crashes left files behind

// A descriptor of its own for what `descriptor` writes, at the same position: a file that the shell opened keeps what
// is in it, and what the program prints comes after the output. Opening the file by its name would begin at 0.
FileHandle duplicate(int descriptor, const std::string& name) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY)
    fail(ErrorCode::io, "{} is open for reading only; the output must be open for writing", name);
  return FileHandle(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}
}  // namespace

OutputFile::OutputFile(std::filesystem::path path, Temp temp)
    : path_(std::move(path)), name_(printable(path_.native(), 4096)) {
  check(!path_.empty(), "the output \"\" has an empty name; accepted: the name of a file");
  struct stat info {};
  const int missing = stat(path_.c_str(), &info) == 0 ? 0 : errno;
  check(missing != 0 || !S_ISDIR(info.st_mode), "{} is a folder; the output must be a file", name_);
  const std::filesystem::path target = follow_links(path_);
  if (const int descriptor = descriptor_of(target); descriptor >= 0) {
    file_ = duplicate(descriptor, name_);
    direct_ = true;
  } else if (missing == 0 && !S_ISREG(info.st_mode)) {
    file_ = FileHandle(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    direct_ = true;
  } else if (missing != 0 && missing != ENOENT) {
    errno = missing;  // such as a link that the system does not follow
  } else {
    path_ = target;  // a rename would replace the link
    check(!is_mount_point(path_), "{} is a mount point, which cannot be replaced; accepted: the name of another file",
          name_);
    const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
    if (temp == Temp::unnamed) file_ = FileHandle(open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
    for (int i = 0; !file_.is_open() && i < kAttempts; ++i) {
      temp_path_ = temp_path(i);
      file_ = FileHandle(open(temp_path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
      if (!file_.is_open() && errno != EEXIST) break;
    }
  }
  if (!file_.is_open()) {
    const int error = errno;
    temp_path_.clear();
    fail(error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io, "{} cannot be created: {}", name_,
         std::strerror(error));
  }
}

OutputFile::~OutputFile() {
  if (!temp_path_.empty()) unlink(temp_path_.c_str());
}

std::filesystem::path OutputFile::temp_path(int attempt) const {
  return path_.native() + fmt::format(".tmp-{}-{}", getpid(), attempt);
}

void OutputFile::fail_write(int error, const void* data) const {
  // The system call saw what would be a SIGBUS in our own code.
  char cut[4600];
  if (const size_t length = error == EFAULT ? describe_bus_error(data, cut, sizeof cut) : 0; length > 0)
    fail(ErrorCode::bad_file, "{}", std::string_view(cut, length - 1));
  fail(ErrorCode::io, "{} cannot be written: {}", name_, std::strerror(error));
}

void OutputFile::write(const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  for (const int64_t goal = end_ + bytes; end_ < goal;) {
    // A FIFO takes no offset.
    const auto left = static_cast<size_t>(goal - end_);
    const ssize_t n = direct_ ? ::write(file_.fd(), from, left) : pwrite(file_.fd(), from, left, end_);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_write(n < 0 ? errno : ENOSPC, from);
    from += n;
    end_ += n;
  }
}

void OutputFile::write_at(int64_t offset, const void* data, int64_t bytes) {
  if (direct_) {
    check(offset == end_, "{} is written from its beginning to its end, so byte {} cannot come after byte {}", name_,
          offset, end_);
    return write(data, bytes);
  }
  const char* from = static_cast<const char*>(data);
  for (const int64_t goal = offset + bytes; offset < goal;) {
    const ssize_t n = pwrite(file_.fd(), from, static_cast<size_t>(goal - offset), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_write(n < 0 ? errno : ENOSPC, from);
    from += n;
    offset += n;
  }
}

void OutputFile::reserve(int64_t bytes) {
  if (direct_ || bytes == 0) return;
  // Not posix_fallocate: where the file system cannot reserve, glibc writes every block. There we do without.
  if (fallocate(file_.fd(), 0, 0, bytes) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
    fail_write(errno);
}

void OutputFile::commit() {
  if (direct_) return;
  // Delayed allocation and network file systems report a full disk only here.
  if (fdatasync(file_.fd()) != 0) fail_write(errno);
  if (temp_path_.empty()) {
    const std::string self = fmt::format("/proc/self/fd/{}", file_.fd());
    const auto link_to = [&](const std::filesystem::path& to) {
      return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_to(path_)) return;
    // A link cannot replace a file: take a name beside it first, then rename.
    for (int i = 0; temp_path_.empty() && errno == EEXIST && i < kAttempts; ++i)
      if (link_to(temp_path(i))) temp_path_ = temp_path(i);
    if (temp_path_.empty()) fail_write(errno);
  }
  if (std::rename(temp_path_.c_str(), path_.c_str()) != 0) fail_write(errno);
  temp_path_.clear();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.commit();
}

}  // namespace sluice::io
