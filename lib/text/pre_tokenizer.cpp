#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/utf8.h"

namespace tandem::text {

void PreTokenizer::add_split(std::string_view pattern, Keep keep, const std::string& where) {
  if (const auto rules = WordRules::of(pattern))
    steps_.push_back({*rules, keep});
  else
    steps_.push_back({Regex(pattern, where), keep});
}

bool PreTokenizer::keeps_all() const {
  return std::ranges::none_of(
      steps_, [](const Step& s) { return s.keep == Keep::matches || s.keep == Keep::gaps; });
}

size_t PreTokenizer::after(std::string_view text, Regex::Match match) {
  if (match.end > match.begin) return match.end;
  return match.end < text.size() ? match.end + utf8_length(text[match.end]) : text.size() + 1;
}

bool PreTokenizer::find(const Step& step, std::string_view text, size_t start,
                        RegexScratch& scratch, Regex::Match& match) {
  if (const auto* regex = std::get_if<Regex>(&step.cutter))
    return regex->find(text, start, scratch, match);
  if (start == text.size()) return false;
  match = {start, std::get<WordRules>(step.cutter).end_of_word(text, start)};
  return true;
}

}  // namespace tandem::text
