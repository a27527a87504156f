// SPDX-License-Identifier: Apache-2.0
// What the library uses of glibc and 2.28 does not have (OldGlibc.cmake). The linker takes these for every reference in
// the library, those of libstdc++.a, libgcc_eh.a and libcudart_static.a included; none leaves it. Each is by the glibc
// that has it first; a system with an older one does without.
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if __GLIBC_PREREQ(2, 30)
// 2.30.
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// 2.30; std::condition_variable waits by the monotonic clock. Before, a condition had one clock for all of its waits,
// the real-time one by default: the time that is left is counted from now by that.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  struct timespec now, end;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += until->tv_sec - now.tv_sec;
  end.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (end.tv_nsec < 0) end.tv_nsec += 1000000000, --end.tv_sec;
  if (end.tv_nsec >= 1000000000) end.tv_nsec -= 1000000000, ++end.tv_sec;
  return pthread_cond_timedwait(condition, mutex, &end);
}
#endif

#if __GLIBC_PREREQ(2, 32)
// 2.32; libstdc++ leaves atomic operations out where it says so.
char __libc_single_threaded = 0;
#endif

#if __GLIBC_PREREQ(2, 33)
// 2.33; inline functions before.
int stat(const char* path, struct stat* out) { return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0); }
int lstat(const char* path, struct stat* out) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat* out) { return (int)syscall(SYS_fstat, fd, out); }
int fstat64(int fd, struct stat64* out) { return (int)syscall(SYS_fstat, fd, out); }
#endif

#if __GLIBC_PREREQ(2, 35)
// 2.35; how libgcc's unwinder finds the tables of the object that holds an address. By dl_iterate_phdr, as it did
// before.
struct search {
  uintptr_t address;
  struct dl_find_object* result;
};
static int holds(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  const struct search* search = data;
  const ElfW(Phdr)* loaded = NULL, *tables = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* p = &info->dlpi_phdr[i];
    if (p->p_type == PT_GNU_EH_FRAME) tables = p;
    if (p->p_type == PT_LOAD && search->address - (info->dlpi_addr + p->p_vaddr) < p->p_memsz) loaded = p;
  }
  if (loaded == NULL) return 0;
  if (tables == NULL) return -1;
  search->result->dlfo_flags = 0;
  search->result->dlfo_map_start = (void*)(info->dlpi_addr + loaded->p_vaddr);
  search->result->dlfo_map_end = (void*)(info->dlpi_addr + loaded->p_vaddr + loaded->p_memsz);
  search->result->dlfo_link_map = NULL;
  search->result->dlfo_eh_frame = (void*)(info->dlpi_addr + tables->p_vaddr);
  return 1;
}
int _dl_find_object(void* address, struct dl_find_object* result) {
  struct search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(holds, &search) == 1 ? 0 : -1;
}
#endif

#if __GLIBC_PREREQ(2, 36)
// 2.36; std::random_device.
uint32_t arc4random(void) {
  uint32_t out = 0;
  for (size_t have = 0; have < sizeof out;) {
    const ssize_t got = getrandom((char*)&out + have, sizeof out - have, 0);
    if (got > 0) have += (size_t)got;
  }
  return out;
}
#endif

// 2.38; what its headers make of strtol() and sscanf(), which then know C23's binary numbers. These do not.
#define PARSE(type, name)                                          \
  extern type old_##name(const char*, char**, int) __asm__(#name); \
  type __isoc23_##name(const char* text, char** end, int base) { return old_##name(text, end, base); }
PARSE(long, strtol)
PARSE(unsigned long, strtoul)
PARSE(long long, strtoll)
PARSE(unsigned long long, strtoull)
PARSE(intmax_t, strtoimax)

extern int old_vsscanf(const char*, const char*, va_list) __asm__("vsscanf");
extern int old_vfscanf(FILE*, const char*, va_list) __asm__("vfscanf");
int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int count = old_vsscanf(text, format, values);
  va_end(values);
  return count;
}
int __isoc23_fscanf(FILE* file, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int count = old_vfscanf(file, format, values);
  va_end(values);
  return count;
}
