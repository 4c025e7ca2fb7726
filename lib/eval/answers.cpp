#include "eval/answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::eval {
namespace {

using std::string_view;

constexpr string_view kTruth[] = {"true", "false"};
constexpr string_view kSolutions[] = {"solution1", "solution2"};
// Questions of ARC have up to five.
constexpr string_view kAnswers[] = {"answer1", "answer2", "answer3", "answer4", "answer5"};
constexpr string_view kEndings[] = {"ending1", "ending2", "ending3", "ending4"};
constexpr string_view kOptions[] = {"option1", "option2"};

// Tokens that the programs of LLM-Adapters let a model write: "the correct answer is answer3" takes
// few, a calculation many.
constexpr int kFewTokens = 32, kManyTokens = 256;

constexpr SetFacts choice(string_view folder, std::span<const string_view> choices) {
  return {folder, SetGroup::commonsense, AnswerForm::choice, choices, kFewTokens};
}
constexpr SetFacts calculation(string_view folder, AnswerForm form = AnswerForm::number) {
  return {folder, SetGroup::arithmetic, form, {}, kManyTokens};
}

constexpr std::array<SetFacts, enum_names(AnswerSet{}).size()> kFacts = {
    choice("boolq", kTruth),
    choice("piqa", kSolutions),
    choice("social_i_qa", kAnswers),
    choice("hellaswag", kEndings),
    choice("winogrande", kOptions),
    choice("ARC-Easy", kAnswers),
    choice("ARC-Challenge", kAnswers),
    choice("openbookqa", kAnswers),
    calculation("MultiArith"),
    calculation("gsm8k"),
    calculation("AddSub"),
    calculation("AQuA", AnswerForm::letter),
    calculation("SingleEq"),
    calculation("SVAMP"),
    calculation("mawps")};

constexpr double kTolerance = 0.001;  // of the programs; two decimals of an amount stay apart

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Of its ASCII letters: no choice has another, and none has one that another letter becomes.
std::string lower(string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// Nothing where the whole text is no decimal number, or one beyond a double.
std::optional<double> number_of(string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

/// Length of the match of -?\d+\.?\d* at the front; 0 for none.
size_t number_length(string_view text) {
  const auto digits = [&](size_t at) {
    while (at < text.size() && is_digit(text[at])) ++at;
    return at;
  };
  const size_t begin = text.starts_with('-') ? 1 : 0;
  const size_t end = digits(begin);
  if (end == begin) return 0;
  return end < text.size() && text[end] == '.' ? digits(end + 1) : end;
}

bool is_letter(string_view text) {
  return text.size() == 1 && text.front() >= 'A' && text.front() <= 'E';
}

}  // namespace

string_view name_of(AnswerSet set) { return enum_names(set)[static_cast<size_t>(set)]; }

string_view name_of(SetGroup group) { return enum_names(group)[static_cast<size_t>(group)]; }

std::optional<AnswerSet> find_set(string_view name) {
  constexpr auto names = enum_names(AnswerSet{});
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<AnswerSet>(found - names.begin());
}

const SetFacts& facts_of(AnswerSet set) { return kFacts[static_cast<size_t>(set)]; }

std::vector<AnswerSet> sets_of(SetGroup group) {
  std::vector<AnswerSet> sets;
  for (size_t i = 0; i < kFacts.size(); ++i)
    if (kFacts[i].group == group) sets.push_back(static_cast<AnswerSet>(i));
  return sets;
}

std::optional<std::string> extract_choice(string_view text, std::span<const string_view> choices) {
  const std::string lowered = lower(text);
  size_t first = std::string::npos;
  string_view found;
  for (const string_view word : choices)
    if (const size_t at = lowered.find(word); at < first) {
      first = at;
      found = word;
    }
  if (found.empty()) return std::nullopt;
  return std::string(found);
}

std::optional<std::string> extract_number(string_view text) {
  std::string plain(text);
  std::erase(plain, ',');
  string_view last;
  for (size_t at = 0; at < plain.size();) {
    const size_t n = number_length(string_view(plain).substr(at));
    if (n > 0) last = string_view(plain).substr(at, n);
    at += std::max(n, size_t{1});
  }
  if (last.empty()) return std::nullopt;
  return std::string(last);
}

std::optional<std::string> extract_letter(string_view text) {
  const size_t at = text.find_first_of("ABCDE");
  if (at == string_view::npos) return std::nullopt;
  return std::string(1, text[at]);
}

std::optional<std::string> extract_answer(AnswerSet set, string_view text) {
  const SetFacts& facts = facts_of(set);
  if (facts.form == AnswerForm::choice) return extract_choice(text, facts.choices);
  return facts.form == AnswerForm::number ? extract_number(text) : extract_letter(text);
}

std::string answer_problem(AnswerSet set, string_view answer) {
  const SetFacts& facts = facts_of(set);
  if (facts.form == AnswerForm::number)
    return number_of(answer) ? std::string() : "expected a number";
  if (facts.form == AnswerForm::letter)
    return is_letter(answer) ? std::string() : "expected a letter from A to E";
  const bool known = std::ranges::find(facts.choices, lower(answer)) != facts.choices.end();
  return known ? std::string() : fmt::format("expected one of {}", fmt::join(facts.choices, ", "));
}

bool is_correct(AnswerSet set, const std::optional<std::string>& extracted, string_view answer) {
  if (!extracted) return false;
  const AnswerForm form = facts_of(set).form;
  if (form == AnswerForm::letter) return *extracted == answer;
  if (form == AnswerForm::choice) return *extracted == lower(answer);
  // A number beyond a double is far from every answer.
  const auto found = number_of(*extracted), right = number_of(answer);
  return found && right && std::abs(*found - *right) <= kTolerance;
}

}  // namespace tandem::eval
