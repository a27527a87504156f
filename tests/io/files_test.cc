// SPDX-License-Identifier: Apache-2.0
// Files that are none, files that change under us, and outputs that must not be left half-written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "io/file.h"
#include "io/mmap.h"
#include "io/output_file.h"
#include "io/quote.h"
#include "io/read_ahead.h"
#include "tests/io/child.h"
#include "tests/io/expect_error.h"
#include "tests/io/temp_dir.h"

namespace sluice::io {
namespace {

template <class Open>
void expect_only_regular_files(const Open& open) {
  TempDir dir;
  expect_error(ErrorCode::not_found, {(dir / "none").string(), "does not exist"}, [&] { open(dir / "none"); });
  expect_error(ErrorCode::not_found, {"does not exist"}, [&] { open(dir / std::string(300, 'x')); });
  expect_error(ErrorCode::bad_file, {dir.path().string(), "directory"}, [&] { open(dir.path()); });
  expect_error(ErrorCode::bad_file, {"empty"}, [&] { open(dir.put("empty", "")); });
  expect_error(ErrorCode::not_found, {"does not exist"}, [&] { open(dir.put("file", "x") / "below"); });
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  expect_error(ErrorCode::bad_file, {"fifo", "FIFO"}, [&] { open(dir / "fifo"); });
  expect_error(ErrorCode::bad_file, {"/dev/null", "device"}, [&] { open("/dev/null"); });
  std::filesystem::create_symlink(dir / "loop_b", dir / "loop_a");
  std::filesystem::create_symlink(dir / "loop_a", dir / "loop_b");
  expect_error(ErrorCode::bad_file, {"loop_a", "symbolic"}, [&] { open(dir / "loop_a"); });
}

TEST(Files, OnlyRegularOnesAreMapped) {
  expect_only_regular_files([](const auto& p) { MappedFile file(p); });
}
TEST(Files, OnlyRegularOnesAreRead) {
  expect_only_regular_files([](const auto& p) { read_file(p, 100); });
}

TEST(Files, UnreadableOnesAreNamed) {
  TempDir dir;
  const auto path = dir.put("secret", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  const int result = in_child([&] {
    if (geteuid() == 0 && setuid(65534) != 0) return 2;  // root reads everything
    try {
      read_file(path, 100);
      return 1;
    } catch (const Error& e) {
      return e.code() == ErrorCode::io && std::strstr(e.what(), "Permission denied") ? 0 : 1;
    }
  });
  EXPECT_EQ(result, 0);
}

TEST(Files, LongerThanAllowedIsRefused) {
  TempDir dir;
  const auto path = dir.put("f", "12345");
  EXPECT_EQ(read_file(path, 5), "12345");
  expect_error(ErrorCode::bad_file, {"5 bytes", "4"}, [&] { read_file(path, 4); });
}

TEST(MappedFile, CutIsAnErrorNotASignal) {
  TempDir dir;
  const auto path = dir.put("f", std::string(1 << 20, 'x'));
  const MappedFile file(path);
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  expect_error(ErrorCode::bad_file, {path.string(), "1048576", "5000"}, [&] { file.check_not_cut(); });
}

// Pages of the file [begin, end) that this process has mapped, as /proc/self/pagemap says.
int64_t mapped_pages(const MappedFile& file) {
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  const int maps = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  int64_t count = 0;
  for (int64_t at = 0; at < file.size(); at += page) {
    uint64_t entry = 0;
    const auto number =
        static_cast<off_t>(reinterpret_cast<uintptr_t>(file.data() + at) / static_cast<uintptr_t>(page));
    EXPECT_EQ(pread(maps, &entry, sizeof entry, number * static_cast<off_t>(sizeof entry)), 8);
    count += static_cast<int64_t>(entry >> 63);
  }
  close(maps);
  return count;
}

TEST(MappedFile, ForgottenPagesLeaveTheProcessAndReadTheSame) {
  TempDir dir;
  std::string text((1 << 20) + 4321, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  const MappedFile file(dir.put("f", text));
  const auto is_text = [&] { return std::memcmp(file.data(), text.data(), text.size()) == 0; };
  int64_t all = 0;
  for (int i = 0; i < 100 && all < 258; ++i) {  // a system short of memory takes pages away
    ASSERT_TRUE(is_text());
    all = mapped_pages(file);
  }
  EXPECT_EQ(all, 258);
  file.forget(file.data() + 70001, 0);
  EXPECT_EQ(mapped_pages(file), all) << "no byte";
  file.forget(file.data() + 200001, 1);
  EXPECT_LT(mapped_pages(file), all) << "one byte is in one page";
  EXPECT_GE(mapped_pages(file), all - 16) << "what is forgotten beside it is 64 KB at most";
  file.forget(file.data() + file.size() - 1, 1);
  ASSERT_TRUE(is_text()) << "read again from the page cache";
  for (int64_t at = 0; at < file.size(); at += 50000) file.forget(file.data() + at, 50000);
  EXPECT_EQ(mapped_pages(file), 0) << "pieces of odd sizes, the last beyond the end";
  EXPECT_TRUE(is_text());
  EXPECT_TRUE(file.holds(file.data() + file.size() - 1));
  EXPECT_FALSE(file.holds(file.data() + file.size()));
  std::string own(1 << 20, 'x');
  EXPECT_FALSE(file.holds(own.data()));
  file.forget(own.data(), 1 << 20);
  EXPECT_EQ(own, std::string(1 << 20, 'x')) << "memory beside the mapping loses nothing";
}

// Forgotten pages of a file that was cut meanwhile: nothing raises a signal, and the sentence stays.
TEST(MappedFile, ForgettingACutFile) {
  TempDir dir;
  const auto path = dir.put("f", std::string(1 << 20, 'x'));
  const MappedFile file(path);
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  file.forget(file.data(), file.size());
  read_ahead(file.data(), file.size());
  expect_error(ErrorCode::bad_file, {path.string(), "5000"}, [&] { file.check_not_cut(); });
}

// A copy by the kernel meets the cut as an error of its own.
TEST(MappedFile, CutWhileItIsWrittenElsewhere) {
  TempDir dir;
  const auto path = dir.put("weights.safetensors", std::string(1 << 20, 'x'));
  const MappedFile file(path);
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  OutputFile out(dir / "out");
  expect_error(ErrorCode::bad_file, {path.string(), "was cut short"},
               [&] { out.write_at(0, file.data() + (1 << 19), 1 << 10); });
}

void explain_and_exit(int, siginfo_t* info, void*) {
  char text[4200];
  const size_t length = describe_bus_error(info->si_addr, text, sizeof text);
  _exit(length > 0 && write(STDOUT_FILENO, text, length) == static_cast<ssize_t>(length) ? 3 : 4);
}

TEST(MappedFile, BusErrorCanBeExplained) {
  TempDir dir;
  const auto path = dir.put("weights.safetensors", std::string(1 << 20, 'x'));
  const auto said = dir / "said";
  const int result = in_child([&] {
    const int out = open(said.c_str(), O_CREAT | O_WRONLY, 0600);
    dup2(out, STDOUT_FILENO);
    struct sigaction action {};
    action.sa_sigaction = explain_and_exit;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
    const MappedFile file(path);
    if (truncate(path.c_str(), 10) != 0) return 1;
    return static_cast<int>(*static_cast<const volatile std::byte*>(file.data() + (1 << 19)));
  });
  EXPECT_EQ(result, 3);
  EXPECT_EQ(slurp(said), path.string() + " was cut short or became unreadable while it was in use\n");
  char text[64];
  int local = 0;
  EXPECT_EQ(describe_bus_error(&local, text, sizeof text), 0u);
}

class OutputFileTest : public testing::TestWithParam<OutputFile::Temp> {};
INSTANTIATE_TEST_SUITE_P(Both, OutputFileTest, testing::Values(OutputFile::Temp::unnamed, OutputFile::Temp::named));

TEST_P(OutputFileTest, AppearsOnlyWhenComplete) {
  TempDir dir;
  dir.put("out", "old");
  {
    OutputFile file(dir / "out", GetParam());
    file.write("new", 3);
    file.write_at(5, "er", 2);
    EXPECT_EQ(slurp(dir / "out"), "old");
  }
  EXPECT_EQ(slurp(dir / "out"), "old");
  EXPECT_EQ(dir.list().size(), 1u);
  for (const char* name : {"out", "fresh"}) {
    OutputFile file(dir / name, GetParam());
    file.write("ne", 2);
    file.write("w", 1);
    file.commit();
    EXPECT_EQ(slurp(dir / name), "new");
  }
  EXPECT_EQ(dir.list().size(), 2u);
}

TEST_P(OutputFileTest, FullDiskLeavesNothing) {
  TempDir dir;
  const int result = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};  // a file beyond 1 MiB fails as on a full disk
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string block(1 << 19, 'x');
    try {
      OutputFile file(dir / "out", GetParam());
      for (int i = 0; i < 4; ++i) file.write(block.data(), static_cast<int64_t>(block.size()));
      file.commit();
      return 1;
    } catch (const Error& e) {
      return e.code() == ErrorCode::io && std::strstr(e.what(), "out cannot be written") ? 0 : 2;
    }
  });
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(dir.list().empty());
}

TEST(OutputFile, KilledProcessLeavesNothing) {
  TempDir dir;
  if (const int fd = open(dir.path().c_str(), O_TMPFILE | O_WRONLY, 0600); fd >= 0) {
    close(fd);
  } else {
    GTEST_SKIP() << "the file system of " << dir.path() << " has no files without a name";
  }
  const int result = in_child([&] {
    OutputFile file(dir / "out");
    file.write("half", 4);
    raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(result, 128 + SIGKILL);
  EXPECT_TRUE(dir.list().empty());
}

TEST_P(OutputFileTest, LinksStayAndTheirTargetIsReplaced) {
  TempDir dir;
  std::filesystem::create_directories(dir / "far" / "deep");
  const auto target = dir.path() / "far" / "target";
  std::filesystem::create_symlink("../target", dir / "far" / "deep" / "second");  // from the link's folder, not ours
  std::filesystem::create_symlink(dir / "far" / "deep" / "second", dir / "first");
  for (const std::string old : {"", "old"}) {  // at first the links lead nowhere
    if (!old.empty()) dir.put("far/target", old);
    OutputFile file(dir / "first", GetParam());
    file.write("new", 3);
    EXPECT_EQ(slurp(target), old);
    file.commit();
    EXPECT_EQ(slurp(target), "new");
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "first"));
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "far" / "deep" / "second"));
  }
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) ++files;
  EXPECT_EQ(files, 5) << "two folders, two links, the target";
}

// What the shell opened: `> file`, `>> file`.
TEST(OutputFile, OwnDescriptorsAreWrittenDirectly) {
  TempDir dir;
  for (const int append : {0, O_APPEND}) {
    const auto path = dir.put("file", "");
    const int fd = open(path.c_str(), O_WRONLY | append);
    ASSERT_EQ(write(fd, "before ", 7), 7);
    const std::string number = std::to_string(fd);
    std::filesystem::remove(dir / "link");
    std::filesystem::create_symlink("/dev/fd/" + number, dir / "link");
    for (const std::string& name : {"/dev/fd/" + number, "/proc/self/fd/" + number, (dir / "link").string(),
                                    "/proc/" + std::to_string(getpid()) + "/fd/" + number}) {
      OutputFile file(name);
      file.write("a", 1);
      file.write_at(1, "b", 1);
      file.commit();
    }
    ASSERT_EQ(write(fd, " after", 6), 6);
    close(fd);
    EXPECT_EQ(slurp(path), "before abababab after");
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
    EXPECT_EQ(dir.list().size(), 2u);
    expect_error(ErrorCode::io, {"/dev/fd/" + number, "cannot be created"}, [&] { OutputFile("/dev/fd/" + number); });
    const int only_read = open(path.c_str(), O_RDONLY);
    expect_error(ErrorCode::io, {"/dev/fd/", "open for reading only"},
                 [&] { OutputFile("/dev/fd/" + std::to_string(only_read)); });
    close(only_read);
  }
}

TEST(OutputFile, StandardStreamsAreWrittenDirectly) {
  TempDir dir;
  const std::pair<const char*, int> streams[] = {{"/dev/stdout", STDOUT_FILENO}, {"/dev/stderr", STDERR_FILENO}};
  for (const auto& [name, fd] : streams) {
    const auto leads_to = std::filesystem::read_symlink(name);
    const int result = in_child([&] {
      dup2(open((dir / "said").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), fd);
      write_file(name, "text");
      return 0;
    });
    EXPECT_EQ(result, 0) << name;
    EXPECT_EQ(slurp(dir / "said"), "text") << name;
    EXPECT_EQ(std::filesystem::read_symlink(name), leads_to);
  }
  EXPECT_EQ(dir.list(), std::vector<std::string>{"said"});
}

TEST(OutputFile, PipesTakeBytesInTheirOrder) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const FileHandle reader(open((dir / "fifo").c_str(), O_RDONLY | O_NONBLOCK));
  OutputFile file(dir / "fifo");
  file.write("ab", 2);
  file.write_at(2, "cd", 2);
  expect_error(ErrorCode::invalid_argument, {"fifo", "byte 7", "byte 4"}, [&] { file.write_at(7, "x", 1); });
  expect_error(ErrorCode::invalid_argument, {"fifo", "byte 0"}, [&] { file.write_at(0, "x", 1); });
  file.write("e", 1);
  file.commit();
  char text[8];
  ASSERT_EQ(read(reader.fd(), text, sizeof text), 5);
  EXPECT_EQ(std::string(text, 5), "abcde");
}

TEST(OutputFile, MountPointsAreRefused) {
  TempDir dir;
  const auto file = dir.put("file", "old");
  EXPECT_TRUE(is_mount_point("/proc"));
  EXPECT_FALSE(is_mount_point(dir.path()));
  EXPECT_FALSE(is_mount_point(file));
  const int result = in_child_with_mount(file, [&] {
    try {
      OutputFile out(file);
      return 1;
    } catch (const Error& e) {
      return e.code() == ErrorCode::invalid_argument && std::strstr(e.what(), "file is a mount point") ? 0 : 2;
    }
  });
  if (result == kNoMount) GTEST_SKIP() << "nothing may be mounted here";
  EXPECT_EQ(result, 0);
}

TEST(OutputFile, RefusalsNameThePath) {
  TempDir dir;
  expect_error(ErrorCode::invalid_argument, {"the output \"\" has an empty name"}, [] { OutputFile(""); });
  std::filesystem::create_symlink("loop", dir / "loop");
  expect_error(ErrorCode::io, {(dir / "loop").string(), "symbolic links"}, [&] { OutputFile file(dir / "loop"); });
  expect_error(ErrorCode::not_found, {"loop/out"}, [&] { OutputFile file(dir.put("file", "") / "loop/out"); });
  expect_error(ErrorCode::not_found, {(dir / "none/out").string()}, [&] { OutputFile file(dir / "none/out"); });
  expect_error(ErrorCode::invalid_argument, {dir.path().string(), "folder"}, [&] { OutputFile file(dir.path()); });
  expect_error(ErrorCode::io, {"/dev/full", "No space left"}, [] { OutputFile("/dev/full").write("x", 1); });
  write_file("/dev/null", "text");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(Quote, HostileTextIsMadePrintable) {
  EXPECT_EQ(quote("a\x1b[2J\n\x7f"), "\"a\\x1b[2J\\x0a\\x7f\"");
  EXPECT_EQ(quote("\xc3\xa9 \xff\xc3"), "\"\xc3\xa9 \\xff\\xc3\"");
  EXPECT_EQ(printable(std::string(500, 'x'), 3), "xxx...");
  EXPECT_EQ(printable("", 3), "");
}

// A hint changes nothing, wherever it points.
TEST(ReadAhead, TakesAnyMemory) {
  TempDir dir;
  const MappedFile file(dir.put("file", std::string(100000, 'x')));
  read_ahead(file.data() + 4097, 50000);
  read_ahead(file.data(), 0);
  std::string text(10000, 'y');
  read_ahead(text.data() + 3, 9000);
  read_ahead(nullptr, 5);
  EXPECT_EQ(text, std::string(10000, 'y'));
  EXPECT_TRUE(std::all_of(file.data(), file.data() + file.size(), [](std::byte b) { return b == std::byte{'x'}; }));
}

}  // namespace
}  // namespace sluice::io
