// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <chrono>

#include "base/error.h"
#include "text/oniguruma.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// One call of PCRE2 tries this many starting points and the clock is read between calls; a match limit alone does
// not bound a pattern that fails slowly from each of millions of starting points.
constexpr size_t kStartsPerCall = 16;
constexpr uint32_t kMatchLimit = 10'000'000;                     // steps of backtracking from one starting point
constexpr double kBaseSeconds = 2.0, kSecondsPerMegabyte = 2.0;  // real patterns take about 0.05 s for a megabyte
constexpr size_t kJitStackStart = 32 * 1024, kJitStackMax = 8 * 1024 * 1024;

// The thread's own time, so that a loaded machine does not make a good pattern look bad.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};

using CodePtr = std::unique_ptr<pcre2_code, Freed<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>>;

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  CodePtr code;
  std::string source, what;
};

Regex::Regex(std::string_view pattern, bool literal, std::string what) : code_(std::make_unique<Code>()) {
  code_->source = pattern;
  code_->what = std::move(what);
  check_file(to_valid_utf8(pattern) == pattern, "{} is not valid UTF-8", code_->what);
  check_file(!literal || !pattern.empty(), "{} is an empty string; it must have a character", code_->what);
  const std::string translated = literal ? std::string(pattern) : from_oniguruma(pattern, code_->what);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) fail(ErrorCode::out_of_memory, "no memory to compile {}", code_->what);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // In Oniguruma ^ and $ are always those of lines. \C would split characters.
  const uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_USE_OFFSET_LIMIT |
                           (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                                  &offset, context.get()));
  check_file(code_->code != nullptr, "{} \"{}\" is not a regular expression: {}", code_->what, pattern,
             message_of(error));
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);  // where there is no JIT the interpreter runs
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Match> Regex::find_all(std::string_view text) const {
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  const JitStack stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
  if (!data || !context) fail(ErrorCode::out_of_memory, "no memory to match {}", code_->what);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());

  // The wall clock costs 25 ns to read, the thread's own ten times that: it is asked only when the other is late.
  const double seconds = kBaseSeconds + kSecondsPerMegabyte * 1e-6 * static_cast<double>(text.size());
  const double thread_deadline = thread_seconds() + seconds;
  const auto wall_deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto slow = [&](size_t at) {
    fail(ErrorCode::invalid_argument,
         "{} \"{}\" backtracks too much at byte {} of {} bytes of text; a pattern must match in linear time",
         code_->what, code_->source, at, text.size());
  };

  std::vector<Match> out;
  for (size_t pos = 0; pos <= text.size();) {
    if (std::chrono::steady_clock::now() > wall_deadline && thread_seconds() > thread_deadline) slow(pos);
    pcre2_set_offset_limit(context.get(), pos + kStartsPerCall);
    const int rc = pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos,
                               PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (pos + kStartsPerCall >= text.size()) break;
      pos += kStartsPerCall;  // not "+ 1": starting inside a character is undefined, so step to a boundary
      while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) ++pos;
      continue;
    }
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT ||
        rc == PCRE2_ERROR_JIT_STACKLIMIT)
      slow(pos);
    if (rc < 0)
      fail(ErrorCode::invalid_argument, "{} \"{}\" cannot be matched: {}", code_->what, code_->source, message_of(rc));
    const PCRE2_SIZE* at = pcre2_get_ovector_pointer(data.get());
    const Match m{at[0], at[1]};
    const bool empty = m.begin == m.end;
    if (!empty || out.empty() || out.back().end != m.begin) out.push_back(m);
    pos = m.end;
    if (empty) {
      if (pos == text.size()) break;
      next_code_point(text, pos);
    }
  }
  return out;
}

}  // namespace sluice::text
