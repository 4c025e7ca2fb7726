#include <doctest/doctest.h>

#include "text/chat_template.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::error_of;
using test::json;

namespace {

std::unique_ptr<Tokenizer> with_bos_eos() {
  json file =
      test::byte_level_json({}, {test::added_token("<s>", true), test::added_token("</s>", true)});
  const test::TemporaryFolder folder;
  folder.write("tokenizer.json", file.dump());
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  return load_tokenizer(folder.path());
}

std::string rendered(std::string_view jinja, const std::vector<ChatMessage>& messages,
                     const ChatOptions& options = {}) {
  const auto t = with_bos_eos();
  return recognise_chat_template(jinja, *t, "template").render(messages, options).text;
}

// Short templates in the manner of each family; what matters to us is the literals.
const char* const kLlama3 =
    "{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' %}{% if loop.first %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% "
    "endif %}";
const char* const kLlama31 =
    "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = \"26 Jul 2024\" %}"
    "{%- endif %}{{- \"Cutting Knowledge Date: December 2023\\n\" }}"
    "{{- '<|start_header_id|>' + '<|eot_id|>' + message['content'] | trim }}{% if "
    "add_generation_prompt %}";
const char* const kQwen =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are kind. Don\\'t lie.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const char* const kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
    "}}";
const char* const kLlama2 =
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{{ '<<SYS>>\\n' + system_message }}";
const char* const kMistral1 =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}";
const char* const kMistral3 =
    "{{- bos_token }}{%- if loop.last and system_message is defined %}"
    "{{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}"
    "{{- \" \" + message[\"content\"]|trim + eos_token}}";

const std::vector<ChatMessage> kTurns = {{"user", " Hi "}, {"assistant", " Yes "}, {"user", "Bye"}};
const std::vector<ChatMessage> kWithSystem = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Yes"}, {"user", "Bye"}};

}  // namespace

TEST_SUITE("text/chat_template") {
  TEST_CASE("llama-3") {
    const std::string text =
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>";
    CHECK(rendered(kLlama3, kTurns, {.add_generation_prompt = false}) == text);
    CHECK(rendered(kLlama3, kTurns) == text + "<|start_header_id|>assistant<|end_header_id|>\n\n");
  }

  TEST_CASE("llama-3.1 always has a system part with dates") {
    const std::string head =
        "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: ";
    const std::string question =
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
    const ChatOptions plain{.add_generation_prompt = false};
    CHECK(rendered(kLlama31, {{"user", "Hi"}}, plain) == head + "26 Jul 2024\n\n" + question);
    CHECK(rendered(kLlama31, {{"system", "S"}, {"user", "Hi"}}, plain) ==
          head + "26 Jul 2024\n\nS" + question);
    CHECK(rendered(kLlama31, {{"user", "Hi"}},
                   {.add_generation_prompt = false, .date = "1 Jan 2030"}) ==
          head + "1 Jan 2030\n\n" + question);
  }

  TEST_CASE("chatml, with and without a default system message") {
    const std::string text =
        "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n Yes <|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    CHECK(rendered(kChatml, kTurns) == text);
    CHECK(rendered(kQwen, kTurns) ==
          "<|im_start|>system\nYou are kind. Don't lie.<|im_end|>\n" + text);
    CHECK(rendered(kQwen, {{"system", "S"}, {"user", "Hi"}}, {.add_generation_prompt = false}) ==
          "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
    const auto t = with_bos_eos();
    CHECK_FALSE(recognise_chat_template(kQwen, *t, "t").render(kTurns).has_bos);
  }

  TEST_CASE("llama-2") {
    CHECK(rendered(kLlama2, kTurns) == "<s>[INST] Hi [/INST] Yes </s><s>[INST] Bye [/INST]");
    CHECK(rendered(kLlama2, kWithSystem) ==
          "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes </s><s>[INST] Bye [/INST]");
  }

  TEST_CASE("mistral in two variants") {
    CHECK(rendered(kMistral1, kTurns) == "<s>[INST]  Hi  [/INST] Yes </s> [INST] Bye [/INST]");
    CHECK(rendered(kMistral3, kTurns) == "<s>[INST]  Hi [/INST] Yes</s>[INST] Bye[/INST]");
    CHECK(rendered(kMistral3, kWithSystem) ==
          "<s>[INST] Hi[/INST] Yes</s>[INST] Be brief.\n\nBye[/INST]");
    const Error error = error_of([] { rendered(kMistral1, kWithSystem); });
    CHECK(error.kind() == ErrorKind::input);
    CHECK(error.hint_text().find("first user message") != std::string::npos);
  }

  TEST_CASE("answers: all that the assistant writes, up to the end of its turn") {
    const auto answers = [](std::string_view jinja) {
      const auto t = with_bos_eos();
      const std::vector<ChatMessage> chat = {
          {"user", "Hi"}, {"assistant", "Yes"}, {"user", "Bye"}, {"assistant", ""}};
      const RenderedChat rendered = recognise_chat_template(jinja, *t, "template")
                                        .render(chat, {.add_generation_prompt = false});
      std::vector<std::string> texts;
      for (const TextSpan& span : rendered.answers)
        texts.push_back(rendered.text.substr(span.begin, span.end - span.begin));
      return texts;
    };
    using Texts = std::vector<std::string>;
    CHECK(answers(kLlama3) == Texts{"Yes<|eot_id|>", "<|eot_id|>"});
    CHECK(answers(kChatml) == Texts{"Yes<|im_end|>", "<|im_end|>"});
    CHECK(answers(kQwen) == Texts{"Yes<|im_end|>", "<|im_end|>"});
    CHECK(answers(kLlama2) == Texts{" Yes </s>", "  </s>"});
    CHECK(answers(kMistral1) == Texts{"Yes</s>", "</s>"});
    CHECK(answers(kMistral3) == Texts{" Yes</s>", " </s>"});
  }

  TEST_CASE("ids: control tokens are parsed, BOS is not doubled") {
    const auto t = with_bos_eos();
    const RenderedChat chat = recognise_chat_template(kLlama2, *t, "t").render({{{"user", "a"}}});
    CHECK(chat.has_bos);
    const auto ids = t->encode(chat.text, {.add_bos = false});
    CHECK(ids[0] == t->bos_id());
    CHECK(ids[1] == '[');
  }

  TEST_CASE("what cannot be rendered is refused with a remedy") {
    for (const char* jinja :
         {"{{ messages }}", "", "[INST] but no literals", "<|im_start|><|im_end|><think>",
          "<|start_header_id|><|eot_id|>"
          "Cutting Knowledge Date: unknown"}) {
      const Error error = error_of([&] { rendered(jinja, kTurns); });
      CHECK(error.kind() == ErrorKind::input);
      for (const char* part :
           {"llama-2", "llama-3", "chatml", "mistral", "--prompt", "--prompt-ids"})
        CHECK(error.hint_text().find(part) != std::string::npos);
    }
    CHECK(error_of([] { rendered(kChatml, {}); }).kind() == ErrorKind::input);
    CHECK(error_of([] { rendered(kChatml, {{"tool", "x"}}); }).kind() == ErrorKind::input);
    CHECK(error_of([] { rendered(kLlama2, {{"assistant", "x"}}); }).kind() == ErrorKind::input);
    CHECK(error_of([] { rendered(kLlama2, {{"system", "x"}}); }).kind() == ErrorKind::input);
    // Roles come from files: what they do to a terminal is not passed on.
    const ChatOptions at{.where = "p.jsonl:3"};
    CHECK(std::string(error_of([&] {
                        rendered(kChatml, {{"\x1b[2J", "x"}}, at);
                      }).what()) ==
          "p.jsonl:3: unknown role '?[2J', expected system, user or assistant");
    CHECK(
        std::string(error_of([&] {
                      rendered(kLlama2, {{"assistant", "x"}}, at);
                    }).what())
            .starts_with("p.jsonl:3: message 1 after the system message has the role 'assistant'"));
  }

  TEST_CASE("where the template is found") {
    const test::TemporaryFolder folder;
    const auto t = with_bos_eos();
    const Error error = error_of([&] { load_chat_template(folder.path(), *t); });
    CHECK(std::string(error.what()).find("no chat template") != std::string::npos);
    const json named = {{"chat_template",
                         {{{"name", "tool_use"}, {"template", "x"}},
                          {{"name", "default"}, {"template", kLlama2}}}}};
    folder.write("tokenizer_config.json", named.dump());
    CHECK(load_chat_template(folder.path(), *t).family == ChatFamily::llama_2);
    folder.write("chat_template.jinja", kChatml);  // counts before the other
    CHECK(load_chat_template(folder.path(), *t).family == ChatFamily::chatml);
  }
}
