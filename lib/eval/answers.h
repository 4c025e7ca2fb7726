#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::eval {

/// Sets of questions of LLM-Adapters (arXiv 2304.01933), in the order of its tables and S2FT's.
enum class AnswerSet : uint8_t {
  boolq,
  piqa,
  siqa,
  hellaswag,
  winogrande,
  arc_e,
  arc_c,
  obqa,
  multiarith,
  gsm8k,
  addsub,
  aqua,
  singleeq,
  svamp,
  mawps,
};
constexpr std::array<std::string_view, 15> enum_names(AnswerSet) {
  return {"boolq",      "piqa",  "siqa",   "hellaswag", "winogrande", "arc_e", "arc_c", "obqa",
          "multiarith", "gsm8k", "addsub", "aqua",      "singleeq",   "svamp", "mawps"};
}

std::string_view name_of(AnswerSet set);
/// The set of that name; nothing where it names none.
std::optional<AnswerSet> find_set(std::string_view name);

/// Sets whose scores are averaged.
enum class SetGroup : uint8_t { commonsense, arithmetic };
constexpr std::array<std::string_view, 2> enum_names(SetGroup) {
  return {"commonsense", "arithmetic"};
}
std::string_view name_of(SetGroup group);

/// What an answer is.
enum class AnswerForm : uint8_t {
  choice,  // one of a few words
  number,
  letter,  // A to E
};

struct SetFacts {
  std::string_view folder;  // of LLM-Adapters' datasets, which holds test.json
  SetGroup group;
  AnswerForm form;
  std::span<const std::string_view> choices;  // of form choice, in lower case
  int max_tokens;                             // that an answer is given
};
const SetFacts& facts_of(AnswerSet set);
/// In their order, from the first on.
std::vector<AnswerSet> sets_of(SetGroup group);

// How answers are found in the text that a model writes: the rules of LLM-Adapters' programs, which
// S2FT's tables go by too. None of them wants the answer to stand alone, or where the text ends.

/// The first place in the text, in lower case, where one of `choices` stands; inside of longer
/// words too, so that "answer10" gives "answer1".
std::optional<std::string> extract_choice(std::string_view text,
                                          std::span<const std::string_view> choices);

/// The last match of -?\d+\.?\d*, searched from the left, in the text without its commas:
/// "1,234.50" gives "1234.50", "5." gives "5.", "7-2" gives "-2".
std::optional<std::string> extract_number(std::string_view text);

/// The first capital letter from A to E, of a word too: "The answer is Blue" gives "B", and so does
/// "B: Dogs"; "Answer: C" gives "A".
std::optional<std::string> extract_letter(std::string_view text);

/// The one that the set's form asks for.
std::optional<std::string> extract_answer(AnswerSet set, std::string_view text);

/// The mistake in a set's answer to a question, such as "expected one of true, false"; empty if
/// nothing is.
std::string answer_problem(AnswerSet set, std::string_view answer);

/// Whether an answer that was found is the right one, which has no answer_problem: words and
/// letters are equal, in lower case the words; numbers are no more than 0.001 apart. Nothing found
/// is wrong.
bool is_correct(AnswerSet set, const std::optional<std::string>& extracted,
                std::string_view answer);

}  // namespace tandem::eval
