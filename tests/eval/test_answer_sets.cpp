#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "error_text.h"
#include "eval/answer_log.h"
#include "eval/answer_sets.h"
#include "eval/eval_testing.h"
#include "io/file.h"
#include "io/json.h"
#include "shared_data.h"

using namespace eval_testing;
using namespace tandem::eval;
namespace test = tandem::test;
using tandem::train::TemplateName;

namespace {

std::string failure(std::string_view bytes, AnswerSet set = AnswerSet::boolq) {
  return test::error_text([&] { parse_set(bytes, set, "s.json"); });
}

SetsSettings in(const std::filesystem::path& folder, TemplateName name = TemplateName::plain) {
  return {.path = folder, .template_name = name, .custom = {}};
}

std::vector<Question> questions(const SetsSettings& settings, AnswerSet set, uint64_t seed, int n) {
  return read_questions(settings, set, prompt_encoder(settings, tokenizer(), {}), seed, n);
}

}  // namespace

TEST_SUITE("eval/answer_sets") {
  TEST_CASE("a set is an array of questions with answers, words or numbers") {
    const auto set = parse_set(
        R"([{"instruction": "Is it?", "input": "", "output": "it is", "answer": "True"},
            {"instruction": "And this?", "input": "This.", "answer": "false", "more": 1}])",
        AnswerSet::boolq, "s.json");
    REQUIRE(set.size() == 2);
    CHECK(set[0].question.instruction == "Is it?");
    CHECK(set[0].question.output.empty());  // never in a prompt
    CHECK(set[0].answer == "True");
    CHECK(set[1].question.input == "This.");
    const auto sums = parse_set(R"([{"instruction": "1+1", "answer": 2},
                                    {"instruction": "1-3", "answer": "-2.0"}])",
                                AnswerSet::addsub, "s.json");
    CHECK(sums[0].answer == "2");
    CHECK(is_correct(AnswerSet::addsub, "2", sums[0].answer));
    CHECK(sums[1].answer == "-2.0");
  }

  TEST_CASE("mistakes are reported with their place") {
    CHECK(failure("[]").find("s.json: expected questions, found none") != std::string::npos);
    CHECK(failure("{}").find("s.json: expected an array of questions, found an") !=
          std::string::npos);
    CHECK(failure("[{\"instruction\": \"a\",\n \"answer\" \"true\"}]").find("s.json:2:") !=
          std::string::npos);
    CHECK(failure("").find("s.json:1:") != std::string::npos);
    const std::string good = R"([{"instruction": "a", "answer": "true"}, )";
    const auto second = [&](const std::string& record, const std::string& says) {
      const std::string text = failure(good + record + "]");
      CAPTURE(text);
      CHECK(text.find("s.json: record 2: ") != std::string::npos);
      CHECK(text.find(says) != std::string::npos);
    };
    second("7", "expected a question as an object");
    second(R"({"answer": "true"})", "instruction");
    second(R"({"instruction": 5, "answer": "true"})", "instruction");
    second(R"({"instruction": "b"})", "answer");
    second(R"({"instruction": "b", "answer": null})", "answer");
    second(R"({"instruction": "b", "answer": true})", "answer");
    second(R"({"instruction": "b", "answer": "answer1"})",
           "the answer is 'answer1': expected one of true, false for boolq");
    CHECK(failure(R"([{"instruction": "a", "answer": "ten"}])", AnswerSet::gsm8k)
              .find("the answer is 'ten': expected a number for gsm8k") != std::string::npos);
    CHECK(failure(R"([{"instruction": "a", "answer": "F"}])", AnswerSet::aqua)
              .find("expected a letter from A to E") != std::string::npos);
  }

  TEST_CASE("a draw is without repeats, by seed and set, and one of the next larger") {
    const auto some = draw_records(1000, AnswerSet::boolq, 3, 40);
    REQUIRE(some.size() == 40);
    CHECK(std::set(some.begin(), some.end()).size() == 40);
    CHECK(std::ranges::all_of(some, [](int64_t i) { return i >= 0 && i < 1000; }));
    // Not the first ones: half of these lie in each half.
    const auto low = std::ranges::count_if(some, [](int64_t i) { return i < 500; });
    CHECK(low >= 10);
    CHECK(low <= 30);
    CHECK(draw_records(1000, AnswerSet::boolq, 3, 40) == some);
    CHECK(draw_records(1000, AnswerSet::boolq, 4, 40) != some);
    CHECK(draw_records(1000, AnswerSet::piqa, 3, 40) != some);
    auto all = draw_records(1000, AnswerSet::boolq, 3, 5000);
    CHECK(std::equal(some.begin(), some.end(), all.begin()));
    std::ranges::sort(all);
    for (int64_t i = 0; i < 1000; ++i) CHECK(all[static_cast<size_t>(i)] == i);
  }

  TEST_CASE("questions are prompts of the template, ids as training has them") {
    const test::TemporaryFolder folder;
    std::filesystem::create_directory(folder / "boolq");
    folder.write("boolq/test.json",
                 R"([{"instruction": "Is it?", "answer": "true"},
                     {"instruction": "Is this?", "input": "This.", "answer": "false"}])");
    for (const TemplateName name : {TemplateName::s2ft_eval, TemplateName::alpaca}) {
      const SetsSettings settings = in(folder.path(), name);
      const auto encoder = prompt_encoder(settings, tokenizer(), {});
      for (const Question& q : read_questions(settings, AnswerSet::boolq, encoder, 0, 9)) {
        const bool first = q.record == 1;
        CHECK(q.answer == (first ? "true" : "false"));
        const auto sample = encoder.encode(
            {tandem::train::Instruction{first ? "Is it?" : "Is this?", first ? "" : "This.", "yes"},
             "r"});
        REQUIRE(!sample.supervised.empty());
        const auto n = static_cast<size_t>(sample.supervised[0].begin);
        CHECK(std::ranges::equal(q.prompt, std::span(sample.ids).first(n)));
      }
    }
    const auto plain = questions(in(folder.path()), AnswerSet::boolq, 0, 1);
    REQUIRE(plain.size() == 1);
    CHECK(tokenizer().decode(plain[0].prompt, true) ==
          (plain[0].record == 1 ? "Is it?\n" : "Is this?\nThis.\n"));
  }

  TEST_CASE("a set that is not there is named, and where it comes from") {
    const test::TemporaryFolder folder;
    const std::string text =
        test::error_text([&] { questions(in(folder.path()), AnswerSet::hellaswag, 0, 1); });
    CHECK(text.find((folder / "hellaswag/test.json").string() + ": the file does not exist") !=
          std::string::npos);
    CHECK(text.find("task hellaswag") != std::string::npos);
  }

  TEST_CASE("the sets of LLM-Adapters") {
    const auto folder = test::unpacked("llm_adapters");
    if (!folder) return;
    int n_sets = 0;
    for (const SetGroup group : {SetGroup::commonsense, SetGroup::arithmetic})
      for (const AnswerSet set : sets_of(group)) {
        const auto file = set_file(*folder, set);
        if (!std::filesystem::exists(file)) {
          MESSAGE("skipped: " << file.string() << " is absent");
          continue;
        }
        ++n_sets;
        const auto records = parse_set(tandem::io::read_file(file), set, file.string());
        CHECK(records.size() >= 200);
        const bool is_word = facts_of(set).form == AnswerForm::choice;
        for (const SetRecord& record : records)
          if (is_word)
            CHECK(is_correct(set,
                             extract_answer(set, "the correct answer is " + record.answer + "\n"),
                             record.answer));
          else
            CHECK(is_correct(set, extract_answer(set, "so 7 or 8, hence " + record.answer + "."),
                             record.answer));
        CHECK(questions(in(*folder, TemplateName::s2ft_eval), set, 0, 20).size() == 20);
      }
    CHECK(n_sets >= 14);
  }
}

TEST_SUITE("eval/answer_log") {
  TEST_CASE("a question's line is read as it was written") {
    const std::vector<std::string> names = {"full", "near"};
    const AnswerRecord written{
        .set = AnswerSet::svamp,
        .record = 17,
        .answer = "8.0",
        .answers = {{.policy = 0,
                     .correct = true,
                     .extracted = "8.",
                     .text = "It is 8.\n\"so\"",
                     .n_tokens = 6,
                     .ended = true,
                     .reads = Reads{1, 0, 100}},
                    {.policy = 1, .text = "no", .n_tokens = 256, .rounds = RoundCounts{3, 9}}}};
    const std::string line = answer_line(written, names);
    CHECK(line.back() == '\n');
    const auto json = tandem::io::parse_json(line, "l");
    CHECK(json.at("policies").at("full").at("extracted") == "8.");
    CHECK(!json.at("policies").at("near").contains("extracted"));
    const AnswerRecord read = read_answer(json, AnswerSet::svamp, names, "l");
    CHECK(answer_line(read, names) == line);
    CHECK(read.answers[1].policy == 1);
    CHECK(read.answers[1].rounds->emitted == 9);
    for (const char* bad :
         {R"({})", R"({"record": 0, "answer": "1", "policies": {}})",
          R"({"record": 1, "policies": {}})", R"({"record": 1, "answer": "1", "policies": {}})",
          R"({"record": 1, "answer": "1", "policies": {"full": {"correct": 1}, "near": {}}})"})
      CHECK(test::error_text([&] {
              read_answer(tandem::io::parse_json(bad, "l"), AnswerSet::svamp, names, "l");
            }) != "nothing thrown");
  }
}
