#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "io/quote.h"

namespace tandem::text {
namespace {

/// PCRE2's \s lacks nothing of White_Space but also takes U+180E, which Unicode 6.3 removed from
/// it. Inside and outside classes the property Z plus the six control characters is the exact set.
std::string with_exact_white_space(std::string_view pattern) {
  constexpr std::string_view kSet = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's')
        out += in_class ? std::string(kSet) : fmt::format("[{}]", kSet);
      else if (escaped == 'S' && !in_class)
        out += fmt::format("[^{}]", kSet);
      else
        (out += c) += escaped;
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Greedy runs of one class need no stack; groups that repeat do, some 16 bytes a repetition. It is
// reserved, and touched only on need.
constexpr size_t kJitStackStart = size_t{32} << 10, kJitStackMax = size_t{64} << 20;
// The same for the interpreter, which PCRE2 lets have 20 GB.
constexpr uint32_t kMostHeapKib = 64 << 10;

// One search of a pattern that is linear in the text takes a few steps a byte: \s*[\r\n]+ one for
// each blank of a long run. PCRE2's own limit for any text is 10 million.
constexpr size_t kStepsPerByte = 16, kLeastSteps = 10'000'000;

uint32_t most_steps(size_t text_bytes) {
  return static_cast<uint32_t>(
      std::clamp<size_t>(text_bytes * kStepsPerByte, kLeastSteps, UINT32_MAX));
}

}  // namespace

RegexScratch::RegexScratch()
    : match_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
  if (match_ == nullptr || context_ == nullptr) throw std::bad_alloc();
  pcre2_set_heap_limit(context_, kMostHeapKib);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(match_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

Regex::Regex(std::string_view pattern, const std::string& where) : where_(where) {
  const std::string exact = with_exact_white_space(pattern);
  int code = 0;
  PCRE2_SIZE offset = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(exact.data()), exact.size(),
                        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
  if (code_ == nullptr)
    throw input_error(where_, "the pattern {} does not compile: {} (near its byte {})",
                      io::quote(pattern, 200), pcre2_message(code), offset);
  // Without JIT (a kernel that forbids writable code pages) PCRE2 interprets: slower, same matches.
  pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() { pcre2_code_free(code_); }

Regex::Regex(Regex&& other) noexcept
    : code_(std::exchange(other.code_, nullptr)), where_(std::move(other.where_)) {}

bool Regex::find(std::string_view subject, size_t start, RegexScratch& scratch,
                 Match& match) const {
  pcre2_set_match_limit(scratch.context_, most_steps(subject.size()));
  const int n = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                            start, PCRE2_NO_UTF_CHECK, scratch.match_, scratch.context_);
  if (n == PCRE2_ERROR_NOMATCH) return false;
  if (n < 0)
    throw input_error(where_, "the pattern failed at byte {} of a text part of {} bytes: {}", start,
                      subject.size(), pcre2_message(n))
        .hint("the pattern backtracks too much on this text; simplify it, or pass ids");
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.match_);
  match = {ends[0], ends[1]};
  return true;
}

std::optional<std::vector<std::string>> capture(const char* pattern, std::string_view subject) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, 0, &error,
                    &offset, nullptr),
      pcre2_code_free);
  TANDEM_CHECK(code != nullptr, "pattern '{}': {}", pattern, pcre2_message(error));
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  const int n = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()),
                            subject.size(), 0, 0, match.get(), nullptr);
  if (n < 0) return std::nullopt;
  std::vector<std::string> groups(pcre2_get_ovector_count(match.get()));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
  for (size_t i = 0; i < groups.size(); ++i)
    if (ends[2 * i] != PCRE2_UNSET)
      groups[i] = subject.substr(ends[2 * i], ends[2 * i + 1] - ends[2 * i]);
  return groups;
}

}  // namespace tandem::text
