#include <doctest/doctest.h>

#include "eval/answers.h"

using namespace tandem::eval;

namespace {

/// What was found, "-" for nothing.
std::string found(AnswerSet set, std::string_view text) {
  return extract_answer(set, text).value_or("-");
}

bool judged(AnswerSet set, std::string_view text, std::string_view answer) {
  return is_correct(set, extract_answer(set, text), answer);
}

}  // namespace

TEST_SUITE("eval/answers") {
  TEST_CASE("choices: the first that stands in the text, in lower case") {
    CHECK(found(AnswerSet::boolq, "the correct answer is true") == "true");
    CHECK(found(AnswerSet::boolq, "It is not FALSE, it is true") == "false");
    CHECK(found(AnswerSet::boolq, "untrue") == "true");  // inside of words too
    CHECK(found(AnswerSet::boolq, "yes") == "-");
    CHECK(found(AnswerSet::boolq, "") == "-");
    CHECK(found(AnswerSet::piqa, "Solution2 or solution1") == "solution2");
    CHECK(found(AnswerSet::piqa, "solution 1") == "-");
    CHECK(found(AnswerSet::piqa, "solution3") == "-");
    CHECK(found(AnswerSet::siqa, "answer10") == "answer1");
    CHECK(found(AnswerSet::siqa, "answer0, Answer3") == "answer3");
    CHECK(found(AnswerSet::arc_e, "answer5") == "answer5");
    CHECK(found(AnswerSet::obqa, "the correct answer is ANSWER4.") == "answer4");
    CHECK(found(AnswerSet::hellaswag, "ending4 ending1") == "ending4");
    CHECK(found(AnswerSet::winogrande, "\n\noption2\xFF") == "option2");  // no UTF-8
    CHECK(found(AnswerSet::winogrande, "answer1") == "-");                // of another set
  }

  TEST_CASE("numbers: the last in the text without commas") {
    const auto number = [](std::string_view text) { return found(AnswerSet::gsm8k, text); };
    CHECK(number("the answer is 5.") == "5.");
    CHECK(number("1,234.50") == "1234.50");
    CHECK(number("It costs $18.00") == "18.00");
    CHECK(number("$18.00 a day") == "18.00");
    CHECK(number("3 apples and 4 pears") == "4");
    CHECK(number("-7") == "-7");
    CHECK(number("minus - 7") == "7");
    CHECK(number("7-2") == "-2");
    CHECK(number("10--3") == "-3");
    CHECK(number("x=5-") == "5");
    CHECK(number("1.2.3") == "3");  // "1.2", then "3"
    CHECK(number(".5") == "5");
    CHECK(number("12abc") == "12");
    CHECK(number("1,2") == "12");  // a list without spaces becomes one number
    CHECK(number("1e3") == "3");
    CHECK(number("50%") == "50");
    CHECK(number("no number - none.") == "-");
    CHECK(number("") == "-");
    CHECK(number("\xFF"
                 "8\xFF") == "8");
  }

  TEST_CASE("letters: the first capital from A to E, of a word too") {
    CHECK(found(AnswerSet::aqua, "A: 23") == "A");
    CHECK(found(AnswerSet::aqua, "(d) but E") == "E");
    CHECK(found(AnswerSet::aqua, "the answer is C") == "C");
    CHECK(found(AnswerSet::aqua, "Rationale: The Capital is B") == "C");
    CHECK(found(AnswerSet::aqua, "abcde F") == "-");
  }

  TEST_CASE("an answer is right where it is equal, a number within a thousandth") {
    CHECK(judged(AnswerSet::boolq, "True!", "true"));
    CHECK(judged(AnswerSet::boolq, "true", "True"));
    CHECK(!judged(AnswerSet::boolq, "false", "true"));
    CHECK(!judged(AnswerSet::boolq, "maybe", "true"));
    CHECK(judged(AnswerSet::aqua, "B", "B"));
    CHECK(!judged(AnswerSet::aqua, "b", "B"));
    CHECK(judged(AnswerSet::addsub, "The answer is 5.", "5"));
    CHECK(judged(AnswerSet::addsub, "5", "5.0"));
    CHECK(judged(AnswerSet::addsub, "0.667", "0.6666666666666666"));
    CHECK(!judged(AnswerSet::addsub, "0.66", "0.6666666666666666"));
    CHECK(judged(AnswerSet::mawps, "-15", "-15.0"));
    CHECK(!judged(AnswerSet::mawps, "15", "-15.0"));
    CHECK(judged(AnswerSet::gsm8k, "$1,234.50", "1234.5"));
    CHECK(!judged(AnswerSet::gsm8k, "none", "0"));
    // Beyond what a double holds.
    CHECK(!judged(AnswerSet::gsm8k, std::string(400, '9'), "9"));
  }

  TEST_CASE("what a set may have as an answer") {
    CHECK(answer_problem(AnswerSet::boolq, "True").empty());
    CHECK(answer_problem(AnswerSet::boolq, "answer1") == "expected one of true, false");
    CHECK(answer_problem(AnswerSet::boolq, "") == "expected one of true, false");
    CHECK(answer_problem(AnswerSet::svamp, "-3.50").empty());
    for (const char* text : {"", "three", "3 apples", "1,000", "nan", "inf", "+", " 3"})
      CHECK(answer_problem(AnswerSet::svamp, text) == "expected a number");
    CHECK(answer_problem(AnswerSet::aqua, "E").empty());
    for (const char* text : {"", "F", "a", "AB"})
      CHECK(answer_problem(AnswerSet::aqua, text) == "expected a letter from A to E");
  }

  TEST_CASE("groups") {
    CHECK(sets_of(SetGroup::commonsense).size() == 8);
    CHECK(sets_of(SetGroup::arithmetic).size() == 7);
    CHECK(facts_of(AnswerSet::siqa).folder == "social_i_qa");
    CHECK(facts_of(AnswerSet::mawps).folder == "mawps");
    CHECK(facts_of(AnswerSet::obqa).max_tokens == 32);
    CHECK(facts_of(AnswerSet::multiarith).max_tokens == 256);
  }
}
