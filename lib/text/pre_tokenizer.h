#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "text/word_rules.h"

namespace tandem::text {

/// Cuts text into the words within which merges happen: by WordRules where a pattern is known,
/// else by Regex.
class PreTokenizer {
 public:
  /// The words that a pattern makes: matches and the gaps between them, or only one of the two.
  /// A match ends the word before it (with_previous) or begins the word after it (with_next).
  enum class Keep { both, matches, gaps, with_previous, with_next };

  /// errors   kind input at `where`: the pattern does not compile
  void add_split(std::string_view pattern, Keep keep, const std::string& where);
  bool empty() const { return steps_.empty(); }
  /// Returns true if every byte of a text is in a word.
  bool keeps_all() const;

  /// Calls `on_word` for each word in order, until it returns false; words are not empty and lie
  /// within `text`.
  /// result   false if `on_word` stopped it
  /// errors   kind input: a pattern that backtracks without bound on this text
  template <class OnWord>
  bool split(std::string_view text, RegexScratch& scratch, const OnWord& on_word) const {
    return split_from(0, text, scratch, on_word);
  }

 private:
  struct Step {
    std::variant<WordRules, Regex> cutter;
    Keep keep;
  };

  /// Step `i` on `text`, and the later steps on each of its words by themselves.
  template <class OnWord>
  bool split_from(size_t i, std::string_view text, RegexScratch& scratch,
                  const OnWord& on_word) const {
    if (i == steps_.size()) return text.empty() || on_word(text);
    const auto hand_on = [&](size_t begin, size_t end) {
      return begin >= end || split_from(i + 1, text.substr(begin, end - begin), scratch, on_word);
    };
    const Step& step = steps_[i];
    size_t done = 0, start = 0;
    Regex::Match match{};
    while (start <= text.size() && find(step, text, start, scratch, match)) {
      const bool joined = step.keep == Keep::with_previous;
      if (joined && !hand_on(done, match.end)) return false;
      if (!joined && step.keep != Keep::matches && !hand_on(done, match.begin)) return false;
      const bool alone = step.keep == Keep::both || step.keep == Keep::matches;
      if (alone && !hand_on(match.begin, match.end)) return false;
      done = step.keep == Keep::with_next ? match.begin : match.end;
      start = after(text, match);
    }
    return step.keep == Keep::matches || hand_on(done, text.size());
  }

  /// The step's next match, at `start` or after it.
  static bool find(const Step& step, std::string_view text, size_t start, RegexScratch& scratch,
                   Regex::Match& match);
  /// Where the search continues: past an empty match by one character, or it would be found again.
  static size_t after(std::string_view text, Regex::Match match);

  std::vector<Step> steps_;
};

}  // namespace tandem::text
