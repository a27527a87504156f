// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <chrono>

#include "base/error.h"
#include "base/thread_time.h"
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

struct RegexSearch::Scratch {
  const Regex::Code& code;
  MatchData data;
  MatchContext context;
  JitStack stack;
  double thread_deadline;
  std::chrono::steady_clock::time_point wall_deadline;
};

RegexSearch::RegexSearch(const Regex& regex, size_t text_bytes) {
  const double seconds = kBaseSeconds + kSecondsPerMegabyte * 1e-6 * static_cast<double>(text_bytes);
  scratch_.reset(new Scratch{
      *regex.code_, MatchData(pcre2_match_data_create(1, nullptr)), MatchContext(pcre2_match_context_create(nullptr)),
      JitStack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)), thread_seconds() + seconds,
      std::chrono::steady_clock::now() +
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds))});
  if (!scratch_->data || !scratch_->context) fail(ErrorCode::out_of_memory, "no memory to match {}", regex.code_->what);
  pcre2_set_match_limit(scratch_->context.get(), kMatchLimit);
  if (scratch_->stack) pcre2_jit_stack_assign(scratch_->context.get(), nullptr, scratch_->stack.get());
}

RegexSearch::~RegexSearch() = default;

void RegexSearch::refuse_slow(size_t at, size_t text_bytes) const {
  fail(ErrorCode::invalid_argument,
       "{} \"{}\" backtracks too much at byte {} of {} bytes of text; a pattern must match in linear time",
       scratch_->code.what, scratch_->code.source, at, text_bytes);
}

bool RegexSearch::step(std::string_view text, size_t& pos) {
  if (pos == text.size()) return false;
  next_code_point(text, pos);
  return true;
}

bool RegexSearch::next(std::string_view text, size_t pos, Match& match) {
  Scratch& s = *scratch_;
  while (true) {
    // The wall clock costs 25 ns to read, the thread's own ten times that: it is asked only when the other is late.
    if (std::chrono::steady_clock::now() > s.wall_deadline && thread_seconds() > s.thread_deadline)
      refuse_slow(pos, text.size());
    pcre2_set_offset_limit(s.context.get(), pos + kStartsPerCall);
    const int rc = pcre2_match(s.code.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), pos,
                               PCRE2_NO_UTF_CHECK, s.data.get(), s.context.get());
    if (rc >= 0) {
      const PCRE2_SIZE* at = pcre2_get_ovector_pointer(s.data.get());
      match = {at[0], at[1]};
      return true;
    }
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT ||
        rc == PCRE2_ERROR_JIT_STACKLIMIT)
      refuse_slow(pos, text.size());
    if (rc != PCRE2_ERROR_NOMATCH)
      fail(ErrorCode::invalid_argument, "{} \"{}\" cannot be matched: {}", s.code.what, s.code.source, message_of(rc));
    if (pos + kStartsPerCall >= text.size()) return false;
    pos += kStartsPerCall;
    while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) ++pos;  // to a character
  }
}

}  // namespace sluice::text
