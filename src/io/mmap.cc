// SPDX-License-Identifier: Apache-2.0
#include "io/mmap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
std::pair<int64_t, int64_t> modification_time(const FileHandle& file) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) return {};
  return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}
}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path)
    : file_(open_regular(path)),
      name_(printable(path.native(), 4096)),
      size_(size_of(file_, path)),
      modified_(modification_time(file_)) {
  check_file(size_ > 0, "{} is empty", name_);
  void* p = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file_.fd(), 0);
  if (p == MAP_FAILED)
    fail(errno == ENOMEM ? ErrorCode::out_of_memory : ErrorCode::io, "{} of {} bytes cannot be mapped: {}", name_,
         size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(p);
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_)); }

void MappedFile::check_not_cut() const {
  const int64_t now = size_of(file_, name_);
  check_file(now >= size_, "{} was cut from {} to {} bytes while it was in use", name_, size_, now);
}

void MappedFile::forget(const void* memory, int64_t bytes) const {
  if (bytes <= 0) return;
  // A read maps up to 64 KB around it (fault_around_bytes), which is to go as well. Never memory beside the mapping:
  // there the same advice would lose data. What cannot be advised stays.
  constexpr int64_t kAround = int64_t{64} << 10;
  const int64_t begin = static_cast<const std::byte*>(memory) - data_;
  const int64_t first = begin / kAround * kAround, end = std::min(round_up(begin + bytes, kAround), size_);
  if (begin >= 0 && begin < size_)
    (void)madvise(const_cast<std::byte*>(data_ + first), static_cast<size_t>(end - first), MADV_DONTNEED);
}

void MappedFile::check_unchanged() const {
  check_file(size_of(file_, name_) == size_ && modification_time(file_) == modified_,
             "{} was written to since it was loaded, so that its bytes are not those in use; load it again, or put new "
             "weights into new files",
             name_);
}

namespace {
// Reads "hex" at *at and moves past it.
uintptr_t parse_hex(const char* line, size_t length, size_t* at) {
  uintptr_t value = 0;
  for (; *at < length; ++*at) {
    const char c = line[*at];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) break;
    value = value * 16 + static_cast<uintptr_t>(digit);
  }
  return value;
}
}  // namespace

size_t describe_bus_error(const void* address, char* buffer, size_t capacity) {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  size_t written = 0, length = 0;
  char line[4600];  // PATH_MAX and the numbers before it
  char block[1024];
  ssize_t got = 0;
  while (written == 0 && (got = read(fd, block, sizeof block)) > 0) {
    for (ssize_t i = 0; i < got && written == 0; ++i) {
      if (block[i] != '\n') {
        if (length < sizeof line) line[length++] = block[i];
        continue;
      }
      size_t at = 0;
      const uintptr_t begin = parse_hex(line, length, &at);
      ++at;
      const uintptr_t end = parse_hex(line, length, &at);
      if (wanted >= begin && wanted < end) {
        while (at < length && line[at] != '/') ++at;
        if (at == length) break;
        const auto append = [&](const char* text, size_t n) {
          for (size_t k = 0; k < n && written < capacity; ++k) buffer[written++] = text[k];
        };
        append(line + at, length - at);
        constexpr char kWhy[] = " was cut short or became unreadable while it was in use\n";
        append(kWhy, sizeof kWhy - 1);
      }
      length = 0;
    }
  }
  close(fd);
  return written;
}

}  // namespace sluice::io
