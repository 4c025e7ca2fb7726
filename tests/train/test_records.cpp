#include <doctest/doctest.h>

#include <algorithm>

#include "error_text.h"
#include "temporary_folder.h"
#include "train/data/records.h"

using namespace tandem;
using namespace tandem::train;
using test::hint_text;
using test::input_error_text;

namespace {

std::vector<Record> parse(std::string_view bytes, RecordForm form = RecordForm::automatic) {
  return parse_records(bytes, form, "d.json");
}

/// A record that the test writes on several lines.
Record first_record(std::string bytes) {
  std::ranges::replace(bytes, '\n', ' ');
  return parse(bytes).front();
}

const Instruction& first(const std::vector<Record>& records) {
  return std::get<Instruction>(records.front().content);
}

}  // namespace

TEST_SUITE("train/records") {
  TEST_CASE("instructions: an array as LLM-Adapters has it, and JSON lines") {
    const auto array =
        parse(R"([{"instruction": "Add.", "input": "1 2", "output": "3", "answer": "x"},)"
              "\n"
              R"( {"instruction": "Say a", "input": "", "output": "a"}])");
    REQUIRE(array.size() == 2);
    CHECK(first(array).instruction == "Add.");
    CHECK(first(array).input == "1 2");
    CHECK(first(array).output == "3");
    CHECK(array[1].where == "d.json: record 2");
    const auto lines = parse("\xEF\xBB\xBF\n{\"question\": \"Q\", \"answer\": \"A\\n#### 1\"}\r\n");
    REQUIRE(lines.size() == 1);
    CHECK(first(lines).instruction == "Q");
    CHECK(first(lines).output == "A\n#### 1");
    CHECK(lines[0].where == "d.json:2");
  }

  TEST_CASE("other names of the two fields, the first that is there") {
    for (const char* key : {"instruction", "prompt", "question", "Problem", "problem"})
      CHECK(first(parse(fmt::format(R"([{{"{}": "Q", "output": "A"}}])", key))).instruction == "Q");
    for (const char* key : {"output", "chosen", "answer", "Rationale", "rationale", "solution"})
      CHECK(first(parse(fmt::format(R"([{{"prompt": "Q", "{}": "A"}}])", key))).output == "A");
    const auto both = parse(R"([{"solution": "2", "answer": "1", "output": null, "prompt": "Q"}])");
    CHECK(first(both).output == "1");
    const auto input_alone = parse(R"([{"input": "Q", "output": "A"}])");
    CHECK(first(input_alone).instruction == "Q");
    CHECK(first(input_alone).input.empty());
  }

  TEST_CASE("chats and texts") {
    const auto chats = parse(
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    const auto& chat = std::get<Chat>(chats.front().content);
    REQUIRE(chat.messages.size() == 2);
    CHECK(*chat.messages[1].dict()->named("role")->string() == "assistant");
    const auto texts = parse("{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    REQUIRE(texts.size() == 2);
    CHECK(std::get<Document>(texts[1].content).text == "two");
    CHECK(std::get<Document>(texts[1].content).ends);
    const auto whole = parse("  The lamp\nwas lit.\n");
    REQUIRE(whole.size() == 1);
    CHECK(std::get<Document>(whole[0].content).text == "  The lamp\nwas lit.\n");
    CHECK(!std::get<Document>(whole[0].content).ends);
  }

  TEST_CASE("tokens") {
    const auto sample = [](std::string_view line) {
      return std::get<Sample>(parse(line).front().content);
    };
    const Sample some = sample(R"({"ids": [3, 0, 5, 7], "supervised": [[1, 2], [3, 4]]})");
    CHECK(some.ids == std::vector<int32_t>{3, 0, 5, 7});
    REQUIRE(some.supervised.size() == 2);
    CHECK(some.supervised[1].begin == 3);
    const Sample all = sample(R"({"ids": [3, 0, 5]})");
    REQUIRE(all.supervised.size() == 1);
    CHECK(all.supervised[0].begin == 1);
    CHECK(all.supervised[0].end == 3);
    for (const auto& [line, error] : std::vector<std::pair<const char*, const char*>>{
             {R"({"ids": [3]})", "d.json:1: expected at least 2 token ids, found 1"},
             {R"({"ids": [3, -1]})",
              "d.json:1: token id: expected an integer from 0 to 2147483647, found the number -1"},
             {R"({"ids": [3, 1], "supervised": [[0, 1]]})",
              "d.json:1: begin of supervised: expected an integer from 1 to 1, found the number 0"},
             {R"({"ids": [3, 1, 2], "supervised": [[1, 3], [2, 3]]})",
              "d.json:1: begin of supervised: expected an integer from 3 to 2, found the number 2"},
             {R"({"ids": [3, 1], "supervised": [1]})",
              "d.json:1: supervised: expected [begin, end], found the number 1"}}) {
      CAPTURE(line);
      CHECK(input_error_text([&] { parse(line); }) == error);
    }
  }

  TEST_CASE("a file named .txt is a text, whatever it begins with") {
    const test::TemporaryFolder folder;
    const auto path = folder.write("a.txt", "[sic] he wrote");
    const auto records = read_records(path, RecordForm::automatic);
    CHECK(std::get<Document>(records.at(0).content).text == "[sic] he wrote");
    CHECK(input_error_text([&] {
            read_records(folder.write("a.md", "[sic]"), RecordForm::text);
          }).find("malformed JSON") != std::string::npos);
  }

  TEST_CASE("a byte order mark in front is dropped from every form, and UTF-16 is refused") {
    const std::string mark = "\xEF\xBB\xBF";
    CHECK(first(parse(mark + R"([{"instruction": "Q", "output": "A"}])")).instruction == "Q");
    CHECK(std::get<Document>(parse(mark + "Once upon").at(0).content).text == "Once upon");
    const test::TemporaryFolder folder;
    const auto text = [&](const std::string& bytes) {
      const auto records = read_records(folder.write("a.txt", bytes), RecordForm::automatic);
      return std::get<Document>(records.at(0).content).text;
    };
    CHECK(text(mark + "[sic]") == "[sic]");
    CHECK(text("[sic]" + mark) == "[sic]" + mark);
    CHECK(input_error_text([&] { text("\xFF\xFE"); }) ==
          (folder / "a.txt").string() + ": is UTF-16 text, expected UTF-8");
    CHECK(input_error_text([&] { parse("\xFE\xFF"); }) == "d.json: is UTF-16 text, expected UTF-8");
  }

  TEST_CASE("what is no record says where and what to do") {
    CHECK(input_error_text([] { parse(""); }) == "d.json: expected records, found none");
    CHECK(input_error_text([] { parse("[]"); }) == "d.json: expected records, found none");
    CHECK(input_error_text([] { parse("[1]"); }) ==
          "d.json: record 1: expected a record as an object, found the number 1");
    const auto unknown = [] { parse("\n{\"id\": 3, \"equation\": \"x=1\"}"); };
    CHECK(input_error_text(unknown) ==
          "d.json:2: expected a record of a known form, found the keys 'equation', 'id'");
    CHECK(hint_text(unknown) ==
          "a record needs instruction and output, messages, conversations, text or ids");
    CHECK(input_error_text([] { parse(R"([{"prompt": "Q", "Output": "A"}])"); }) ==
          "d.json: record 1: expected one of the answer keys output, completion, response, chosen, "
          "answer, Rationale, rationale, solution, found none");
    CHECK(input_error_text([] { parse(R"([{"prompt": "Q", "output": 3}])"); }) ==
          "d.json: record 1: key 'output': expected a string, found the number 3");
    CHECK(input_error_text([] {
            parse("{\"prompt\": \"Q\", \"output\": \"A\"}\n{\"prompt\": }\n");
          }).starts_with("d.json:2:12: malformed JSON"));
    CHECK(input_error_text([] { parse("{\"text\": \"a\"}", RecordForm::chat); }) ==
          "d.json:1: expected a record of form chat, found text");
    CHECK(input_error_text([] { parse("some text", RecordForm::instructions); }) ==
          "d.json: expected JSON: an array of records, or one record a line");
  }

  TEST_CASE("chats as other programs write them") {
    // Each message as role, content and whether it is learned.
    const auto turns = [](const std::string& text) {
      std::string out;
      const Record record = first_record(text);
      const auto& chat = std::get<Chat>(record.content);
      for (size_t i = 0; i < chat.messages.size(); ++i)
        out += *chat.messages[i].dict()->named("role")->string() + "=" +
               *chat.messages[i].dict()->named("content")->string() +
               (chat.learned[i] ? *chat.learned[i] ? "+ " : "- " : " ");
      return out;
    };
    CHECK(turns(R"({"conversations": [{"from": "human", "value": "a"},
                                      {"from": "gpt", "value": "b", "weight": 0},
                                      {"from": "user", "value": "c"},
                                      {"from": "assistant", "value": "d"}]})") ==
          "user=a assistant=b- user=c assistant=d ");
    CHECK(turns(R"([{"system": "s", "conversations": [{"from": "human", "value": "a"}]}])") ==
          "system=s user=a ");
    CHECK(turns(R"({"conversations": [{"role": "user", "content": "a"},
                                      {"from": "observation", "value": "b"}]})") ==
          "user=a tool=b ");
    CHECK(turns(R"({"prompt": [{"role": "user", "content": "a"},
                               {"role": "assistant", "content": "b"}],
                    "completion": [{"role": "assistant", "content": "c"}]})") ==
          "user=a- assistant=b- assistant=c ");
    for (const char* answer : {"completion", "response"}) {
      const auto records = parse(std::string(R"({"prompt": "Q", ")") + answer + R"(": "A"})");
      const Instruction& plain = first(records);
      CHECK(plain.instruction == "Q");
      CHECK(plain.output == "A");
    }
    const Record with_tools = first_record(R"({"messages": [{"role": "user", "content": "a"}],
                                               "tools": "[{\"name\": \"f\"}]"})");
    CHECK(std::get<Chat>(with_tools.content).tools.sequence()->items.size() == 1);
    CHECK(input_error_text([] {
            parse(R"({"conversations": [{"from": "parrot", "value": "a"}]})");
          }) == "d.json:1: conversations: unknown speaker 'parrot'");
    CHECK(
        input_error_text([] { parse(R"({"conversations": "a"})"); }).starts_with("d.json:1: key"));
    CHECK(input_error_text([] {
            parse(R"({"prompt": [{"role": "user", "content": "a"}], "completion": "b"})");
          }) == "d.json:1: expected the answer as a list of messages, like its prompt");
  }
}
