#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace tandem::text {

/// What one thread needs to match: result vector and JIT stack. Usable with any Regex.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_data_8* match_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

/// A compiled Unicode regular expression: PCRE2 with JIT where the system allows it. Classes follow
/// Unicode properties and \s is White_Space exactly, as in Oniguruma, the engine for which
/// tokenizer patterns are written. Shared by threads; each brings its own scratch.
class Regex {
 public:
  struct Match {
    size_t begin, end;
  };

  /// errors   kind input at `where`: the pattern does not compile
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&&) = delete;

  /// First match that begins at or after `start`; false if there is none. `subject` must be UTF-8.
  /// errors   kind input: the pattern goes back more than 16 times a byte of this text, or takes more
  ///          than 64 MiB to remember where it may go back to. PCRE2 does not count how far it
  ///          looks for a literal after a run, so that \s+\s+x takes quadratic time without an
  ///          error
  bool find(std::string_view subject, size_t start, RegexScratch& scratch, Match& match) const;

 private:
  pcre2_real_code_8* code_;
  std::string where_;
};

/// Groups of the first match, the whole match first; those that took no part are empty. For rare
/// use: compiles on each call. `pattern` is a constant of the program.
std::optional<std::vector<std::string>> capture(const char* pattern, std::string_view subject);

}  // namespace tandem::text
