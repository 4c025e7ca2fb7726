#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace tandem::text {

/// The pattern of GPT-2, which byte-level pre-tokenisers use by default.
extern const char* const kGpt2Pattern;
/// The pattern of Qwen2 and its successors.
extern const char* const kQwen2Pattern;

/// Cuts text into the words within which merges happen.
class PreTokenizer {
 public:
  /// What a pattern does: every match and every gap between matches is a word, or only one of them.
  enum class Keep { both, matches, gaps };

  void add_split(Regex regex, Keep keep) { steps_.push_back({std::move(regex), keep}); }
  bool empty() const { return steps_.empty(); }

  /// Calls `on_word` for each word in order; words are not empty and lie within `text`.
  /// errors   kind input: a pattern that backtracks without bound on this text
  template <class OnWord>
  void split(std::string_view text, RegexScratch& scratch, const OnWord& on_word) const {
    split_from(0, text, scratch, on_word);
  }

 private:
  struct Step {
    Regex regex;
    Keep keep;
  };

  /// Step `i` on `text`, and the later steps on each of its words by themselves.
  template <class OnWord>
  void split_from(size_t i, std::string_view text, RegexScratch& scratch,
                  const OnWord& on_word) const {
    if (i == steps_.size()) {
      if (!text.empty()) on_word(text);
      return;
    }
    const auto hand_on = [&](size_t begin, size_t end) {
      if (begin < end) split_from(i + 1, text.substr(begin, end - begin), scratch, on_word);
    };
    const Step& step = steps_[i];
    size_t done = 0, start = 0;
    Regex::Match match{};
    while (start <= text.size() && step.regex.find(text, start, scratch, match)) {
      if (step.keep != Keep::matches) hand_on(done, match.begin);
      if (step.keep != Keep::gaps) hand_on(match.begin, match.end);
      done = match.end;
      start = after(text, match);
    }
    if (step.keep != Keep::matches) hand_on(done, text.size());
  }

  /// Where the search continues: past an empty match by one character, or it would be found again.
  static size_t after(std::string_view text, Regex::Match match);

  std::vector<Step> steps_;
};

}  // namespace tandem::text
