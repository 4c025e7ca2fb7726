#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "error_text.h"
#include "eval/eval_testing.h"
#include "eval/own_tasks.h"
#include "temporary_folder.h"

using namespace eval_testing;
using namespace tandem::eval;
namespace test = tandem::test;

namespace {

struct File {
  test::TemporaryFolder folder;

  OwnTask read(const std::string& text, OwnSettings how = {}, uint64_t seed = 0,
               int n = 100) const {
    return read_own_task(how, folder.write("mine.jsonl", text).string(),
                         tandem::decode::open_model(model_path("tiny-2m"), 0), seed, n);
  }
  /// Fails with this message at this line of the file.
  void refuses(const std::string& text, const std::string& line, const std::string& says) const {
    const std::string found = test::error_text([&] { read(text); });
    CAPTURE(found);
    CHECK(found.find("mine.jsonl" + line + ": ") != std::string::npos);
    CHECK(found.find(says) != std::string::npos);
  }
};

/// The question of a file of one.
OwnQuestion one(const std::string& line) {
  const OwnTask task = File().read(line);
  REQUIRE(task.questions.size() == 1);
  return task.questions[0];
}

Ids all_of(const OwnQuestion& q) {
  Ids ids = q.prompt;
  ids.insert(ids.end(), q.question.begin(), q.question.end());
  return ids;
}

}  // namespace

TEST_SUITE("eval/own_tasks") {
  TEST_CASE("an answer begins the text, or stands in it, as words of its own") {
    struct {
      const char *text, *answer;
      bool start, contains;
    } const cases[] = {{" Oslo. It is", "Oslo", true, true},
                       {"oslo", "Oslo", true, true},
                       {"\n OSLO\n", "oslo", true, true},
                       {"It is Oslo.", "Oslo", false, true},
                       {"Oslofjord", "Oslo", false, false},
                       {"NewOslo", "Oslo", false, false},
                       {"the city  of\nOslo", "city of Oslo", false, true},
                       {"", "Oslo", false, false},
                       {" 12.", "12", true, true},
                       {"12, then", "12", true, true},
                       {"123", "12", false, false},
                       {"12.5", "12", false, false},
                       {"12,500", "12", false, false},
                       {"0.12", "12", false, false},
                       {"-12", "12", false, false},
                       {"-12", "-12", true, true},
                       {"9-12", "12", false, true},
                       {"123 or 12", "12", false, true},
                       {"crêpes", "crêpe", false, false},
                       {"東京です", "東京", true, true},
                       {"(b) Oslo", "(b)", true, true}};
    for (const auto& c : cases) {
      CAPTURE(c.text);
      CAPTURE(c.answer);
      CHECK(has_answer(Match::start, c.text, c.answer) == c.start);
      CHECK(has_answer(Match::contains, c.text, c.answer) == c.contains);
    }
  }

  TEST_CASE("a prompt has the ids of generation; its last token or the question is asked") {
    const std::string text = "The keeper is Anna. Who keeps the light?";
    const OwnQuestion whole = one(fmt::format(R"({{"prompt": "{}", "answer": "Anna"}})", text));
    CHECK(all_of(whole) == tokenizer().encode(text));
    CHECK(whole.question.size() == 1);
    CHECK(whole.answers == std::vector<std::string>{"Anna"});
    const OwnQuestion parts = one(
        R"({"prompt": "The keeper is Anna.", "question": " Who keeps the light?", "answer": ["Anna", 7]})");
    CHECK(all_of(parts) == all_of(whole));
    CHECK(parts.question.size() > 1);
    CHECK(parts.answers == std::vector<std::string>{"Anna", "7"});
    const OwnQuestion ids = one(R"({"ids": [5, 6, 7], "id": 3, "answer": 1.5, "other": true})");
    CHECK(all_of(ids) == Ids{5, 6, 7});
    CHECK(ids.id == "3");
    CHECK(ids.answers == std::vector<std::string>{"1.5"});
    const OwnQuestion chat = one(
        R"({"messages": [{"role": "user", "content": "Who keeps the light?"}], "answer": "A"})");
    const std::string shown = tokenizer().decode(all_of(chat), false);
    CHECK(shown.find("Who keeps the light?") != std::string::npos);
    CHECK(shown.find("assistant") != std::string::npos);
  }

  TEST_CASE("choices follow after one space, or after the white space that is there") {
    const auto texts = [](const std::string& line) {
      const OwnQuestion q = one(line);
      std::vector<std::string> list = {tokenizer().decode(all_of(q), true)};
      for (const Ids& choice : q.choices) list.push_back(tokenizer().decode(choice));
      return list;
    };
    using Texts = std::vector<std::string>;
    CHECK(texts(R"({"prompt": "It is", "choices": ["up", "down"], "answer": 1})") ==
          Texts{"It is", " up", " down"});
    CHECK(texts(R"({"prompt": "It is ", "choices": ["up", "down"], "answer": 1})") ==
          Texts{"It is", " up", " down"});
    CHECK(texts(R"({"prompt": "It is\n", "choices": ["up", " down"], "answer": 1})") ==
          Texts{"It is\n", "up", " down"});
    CHECK(
        texts(R"({"prompt": "It", "question": " is ", "choices": ["up", "on"], "answer": "on"})") ==
        Texts{"It is", " up", " on"});
    CHECK(texts(R"({"ids": [5, 6], "choices": ["up", "on"], "answer": "on"})")[1] == "up");
    const OwnQuestion q = one(R"({"prompt": "It is", "choices": ["1", "éa"], "answer": 1})");
    CHECK(q.right == 0);  // the text goes before the index
    CHECK(q.choice_bytes == std::vector<size_t>{1, 3});
    CHECK(q.answers == std::vector<std::string>{"1"});
    CHECK(q.n_tokens() == all_of(q).size() + std::max(q.choices[0].size(), q.choices[1].size()));
    CHECK(one(R"({"prompt": "It is", "choices": [4, 7], "answer": 0})").right == 0);
  }

  TEST_CASE("lines, marks and line ends as editors leave them; texts get room") {
    const std::string a = R"({"prompt": "Once", "answer": "upon a time"})",
                      b = R"({"prompt": "Twice", "answer": "told"})";
    const File file;
    const OwnTask task = file.read("\xEF\xBB\xBF" + a + "\r\n\r\n" + b);
    CHECK(task.n_lines == 2);
    CHECK(task.name.shown() == "mine");
    CHECK(!task.has_choices());
    const auto third = std::ranges::find(task.questions, 2, &OwnQuestion::record);
    CHECK(third->where.ends_with("mine.jsonl:3"));
    const auto answer =
        static_cast<int>(tokenizer().encode(" upon a time", {.add_bos = false}).size());
    CHECK(task.max_tokens == answer + 8);
    CHECK(file.read(a, {.match = Match::contains}).max_tokens == answer + 64);
    CHECK(file.read(a, {.max_tokens = 5}).max_tokens == 5);
  }

  TEST_CASE("fewer questions are drawn, those of a smaller number first") {
    std::string text;
    for (int i = 0; i < 30; ++i)
      text += fmt::format("{{\"prompt\": \"Say {}.\", \"answer\": {}}}\n", i, i);
    const File file;
    const auto records = [&](uint64_t seed, int n) {
      std::vector<int64_t> list;
      for (const OwnQuestion& q : file.read(text, {}, seed, n).questions) list.push_back(q.record);
      return list;
    };
    const auto some = records(1, 10), more = records(1, 20);
    CHECK(std::set(more.begin(), more.end()).size() == 20);
    CHECK(std::equal(some.begin(), some.end(), more.begin()));
    CHECK(some != records(2, 10));
    CHECK(records(1, 500).size() == 30);
  }

  TEST_CASE("a fingerprint differs where a question does") {
    std::set<std::string> seen;
    const char* lines[] = {R"({"prompt": "It is", "answer": "up"})",
                           R"({"prompt": "It was", "answer": "up"})",
                           R"({"prompt": "It is", "answer": "on"})",
                           R"({"prompt": "It is", "answer": ["up", "on"]})",
                           R"({"prompt": "It is", "choices": ["up", "on"], "answer": "up"})",
                           R"({"prompt": "It is", "choices": ["up", "in"], "answer": "up"})",
                           R"({"prompt": "It is", "choices": ["up", "on"], "answer": "on"})"};
    for (const char* line : lines) CHECK(seen.insert(one(line).fingerprint()).second);
    CHECK(one(lines[0]).fingerprint() == one(lines[0]).fingerprint());
  }

  TEST_CASE("bad input is reported with file and line") {
    const File file;
    const std::string good = R"({"prompt": "It is", "answer": "up"})"
                             "\n";
    const auto second = [&](const std::string& line, const std::string& says) {
      file.refuses(good + line + "\n" + good, ":2", says);
    };
    file.refuses("", "", "expected questions, found none");
    file.refuses(" \n\r\n", "", "expected questions, found none");
    file.refuses(std::string("\xFF\xFE{\0\"\0", 6), "", "is UTF-16 text, expected UTF-8");
    file.refuses(good + "{\"prompt\": \"a\xFF\", \"answer\": \"b\"}\n", ":2:14", "UTF-8");
    file.refuses(good + "{\"prompt\": \"a\",\n\"answer\": \"b\"}\n", ":2:16", "malformed JSON");
    second("[1]", "expected a question as an object, found an array");
    second(R"({"prompt": "a"})", "the key 'answer' is missing");
    second(R"({"answer": "b"})", "expected one of the keys prompt, ids, messages, found none");
    second(R"({"prompt": "a", "ids": [1, 2], "answer": "b"})", "found prompt and ids");
    second(R"({"prompt": "", "answer": "b"})", "the prompt is empty");
    second(R"({"prompt": 5, "answer": "b"})", "prompt");
    second(R"({"ids": [1], "answer": "b"})", "expected a prompt of at least two tokens");
    second(R"({"ids": [1, 99999999], "answer": "b"})", "token id 1");
    second(R"({"prompt": "a", "question": "", "answer": "b"})", "the question is empty");
    second(R"({"messages": [{"role": "user", "content": "a"}], "question": "q", "answer": "b"})",
           "expected prompt or ids next to question, found messages");
    for (const char* answer : {"null", "true", "\" \"", "[]", "[\"b\", {}]", "{\"text\": \"b\"}"})
      second(fmt::format(R"({{"prompt": "a", "answer": {}}})", answer),
             "expected an answer that is a text, a number or a list of both, found");
    const auto choices = [&](const std::string& list, const std::string& answer,
                             const std::string& says) {
      const std::string line = R"({"prompt": "a", "choices": )";
      file.refuses(line + R"(["x", "y"], "answer": 0})" + "\n" + line + list +
                       ", \"answer\": " + answer + "}",
                   ":2", says);
    };
    choices("\"x\"", "0", "expected a list of at least two texts as choices, found the string");
    choices("[\"x\"]", "0", "found an array of 1 item");
    choices("[\"x\", \"\"]", "0", "expected a text as choice 1, found the string");
    choices("[\"x\", \"y\", \"x\"]", "0", "choices 0 and 2 are the same: 'x'");
    choices("[\"x\", \"y\"]", "\"z\"",
            "the answer is the string 'z', which is not one of the 2 choices");
    choices("[\"x\", \"y\"]", "2", "the answer is the number 2, which is not one of the 2 choices");
    choices("[\"x\", \"y\"]", "-1", "which is not one of the 2 choices");
    choices("[\"x\", \"y\"]", "[\"x\"]", "which is not one of the 2 choices");
    second(R"({"prompt": "a", "choices": ["x", "y"], "answer": 0})",
           "has choices, but " + (file.folder / "mine.jsonl").string() + ":1 has none");
    second(R"({"prompt": "a", "choises": ["x", "y"], "answer": "x"})", "unknown key 'choises'");
    second(R"({"prompt": "a", "answers": ["x"]})", "unknown key 'answers'");
    second(R"({"promt": "a", "answer": "x"})", "unknown key 'promt'");
    CHECK(file.read(R"({"prompt": "a", "prompts": 1, "question_id": 5, "idx": 3, "answer": "x"})")
              .n_lines == 1);
    CHECK(test::error_text([&] {
            read_own_task({}, "none.jsonl", tandem::decode::open_model(model_path("tiny-2m"), 0), 0,
                          1);
          }) == "none.jsonl: the file does not exist, but eval.tasks names it");
  }
}
