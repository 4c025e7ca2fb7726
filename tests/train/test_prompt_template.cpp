#include <doctest/doctest.h>

#include "error_text.h"
#include "temporary_folder.h"
#include "train_testing.h"

using namespace tandem;
using namespace tandem::train;
using test::instruction;
using test::TemporaryFolder;

namespace {

/// The text of a record, its answers in double brackets.
std::string marked(const Record& record, const DataSettings& settings,
                   const std::filesystem::path& folder = test::tiny_folder()) {
  const RecordWriter writer(settings, test::tiny_tokenizer(), folder, {});
  const text::RenderedChat written = writer.write(record);
  std::string text;
  size_t at = 0;
  for (const text::TextSpan& span : written.answers) {
    text += written.text.substr(at, span.begin - at) + "[[" +
            written.text.substr(span.begin, span.end - span.begin) + "]]";
    at = span.end;
  }
  return text + written.text.substr(at);
}

DataSettings with(TemplateName name) {
  DataSettings settings;
  settings.template_name = name;
  return settings;
}

const std::string kHeader =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.";
const std::string kEnd = "<|end_of_text|>";
const Chat kChat = {{"system", "Be brief."},
                    {"user", "Hi"},
                    {"assistant", "Yes"},
                    {"user", "Bye"},
                    {"assistant", "No"}};

}  // namespace

TEST_SUITE("train/prompt_template") {
  TEST_CASE("the S2FT program's prompts, byte by byte") {
    const Record plain = instruction("Add 1.", "the answer</s> is 2</s>");
    const Record with_input = instruction("Add.", "3", "1 2");
    const std::string spaces = "                ";
    CHECK(marked(plain, with(TemplateName::s2ft_train)) ==
          "<s> " + kHeader + "  \n\n### Instruction:\nAdd 1.\n" + spaces +
              "\n### Response:\n[[the answer is 2 " + kEnd + "]]");
    CHECK(marked(with_input, with(TemplateName::s2ft_train)) ==
          "<s> " + kHeader + "  \n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n" + spaces +
              "\n### Response:\n[[3 " + kEnd + "]]");
    CHECK(marked(plain, with(TemplateName::s2ft_eval)) ==
          "<s> " + kHeader + " \n\n### Instruction:\nAdd 1.\n\n### Response:\n[[the answer is 2 " +
              kEnd + "]]");
  }

  TEST_CASE("a prompt is what stands before the answer") {
    const auto check = [](const Record& record, const DataSettings& settings) {
      const RecordWriter writer(settings, test::tiny_tokenizer(), test::tiny_folder(), {});
      const auto written = writer.write(record);
      REQUIRE(written.answers.size() == 1);
      const auto& asked = std::get<Instruction>(record.content);
      CHECK(writer.prompt({asked.instruction, asked.input, {}}, "r") ==
            written.text.substr(0, written.answers[0].begin));
    };
    for (const TemplateName name : {TemplateName::alpaca, TemplateName::plain, TemplateName::chat,
                                    TemplateName::s2ft_train, TemplateName::s2ft_eval}) {
      check(instruction("Add 1.", "2"), with(name));
      check(instruction("Add.", "3", "1 2"), with(name));
    }
    DataSettings own = with(TemplateName::custom);
    own.custom.prompt = "Q: {instruction}\nA:";
    check(instruction("Add.", "3", "1 2"), own);
  }

  TEST_CASE("alpaca and plain") {
    CHECK(marked(instruction("Add 1.", "2"), with(TemplateName::alpaca)) ==
          kHeader + "\n\n### Instruction:\nAdd 1.\n\n### Response:\n[[2" + kEnd + "]]");
    CHECK(marked(instruction("Add.", "3", "1 2"), with(TemplateName::alpaca)) ==
          "Below is an instruction that describes a task, paired with an input that provides "
          "further context. Write a response that appropriately completes the request.\n\n"
          "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n[[3" +
              kEnd + "]]");
    CHECK(marked(instruction("Add 1.", "2"), with(TemplateName::plain)) ==
          "Add 1.\n[[2" + kEnd + "]]");
    CHECK(marked(instruction("Add.", "3", "1 2"), with(TemplateName::plain)) ==
          "Add.\n1 2\n[[3" + kEnd + "]]");
  }

  TEST_CASE("a recipe's own template: fields are copied, not filled in again") {
    DataSettings settings = with(TemplateName::custom);
    settings.custom = {
        .prompt = "Q {1}: {instruction} {", .prompt_with_input = {}, .answer = " {output}!"};
    CHECK(marked(instruction("{output}{input}", "a {eos}"), settings) ==
          "Q {1}: {output}{input} {[[ a {eos}!]]");
    CHECK(marked(instruction("Add.", "3", "1 2"), settings) == "Q {1}: Add.\n\n1 2 {[[ 3!]]");
    settings.custom.prompt_with_input = "{input} {instruction} {eos}";
    CHECK(marked(instruction("Add.", "3", "1 2"), settings) == "1 2 Add. " + kEnd + "[[ 3!]]");
    CHECK(template_problem("{\"a\": {input}, {A}} {}").empty());
    CHECK(template_problem("Q {intput}") ==
          "unknown field '{intput}'; expected one of {instruction}, {input}, {output}, {eos}");
  }

  TEST_CASE("chats: the model's template writes them, and every answer is learned") {
    const std::string expected =
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[Yes<|eot_id|>]]"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[No<|eot_id|>]]";
    CHECK(marked({kChat, "r"}, {}) == expected);
    CHECK(marked(instruction("Add.", "3", "1 2"), with(TemplateName::chat)) ==
          "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nAdd.\n\n1 2<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n[[3<|eot_id|>]]");
    CHECK(marked(instruction("Add.", ""), with(TemplateName::chat)).find("[[") ==
          std::string::npos);
  }

  TEST_CASE("a chat that cannot be written") {
    const TemporaryFolder folder;
    const auto error = [&] {
      return test::input_error_text([&] { marked({kChat, "d.json:7"}, {}, folder.path()); });
    };
    CHECK(error().ends_with("(for the chat in d.json:7)"));
    CHECK(error().find("the model has no chat template") != std::string::npos);
    folder.write("chat_template.jinja", "{{ messages.no.such }}");
    CHECK(error().find("chat_template.jinja:1:") != std::string::npos);
    CHECK(error().find("'list object' has no attribute 'no'") != std::string::npos);
    CHECK(marked(instruction("Add 1.", "2"), with(TemplateName::plain), folder.path()) ==
          "Add 1.\n[[2" + kEnd + "]]");  // which needs none
  }

  TEST_CASE("texts are answers as a whole; documents end") {
    CHECK(marked({Document{.text = "one", .ends = true}, "r"}, {}) == "[[one" + kEnd + "]]");
    CHECK(marked({Document{.text = "one"}, "r"}, {}) == "[[one]]");
  }
}
