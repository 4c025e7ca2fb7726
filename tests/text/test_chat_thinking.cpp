#include <doctest/doctest.h>

#include "text/chat_template.h"
#include "text/streamer.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::error_of;

// What is expected here is what transformers' way of calling Jinja makes of Qwen3's own template.
namespace {

using Messages = std::vector<ChatMessage>;

/// In the manner of Qwen3's template: the parts that decide the text, without those for tools.
const std::string kTurns = R"jinja(
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages|length - loop.index %}
    {%- if ns.searching and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "user" or message.role == "system" and not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = message.reasoning_content or '' %}
        {%- if message.reasoning_content is not string and '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
)jinja";
const std::string kSwitch = R"jinja(    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %})jinja";
const std::string kAlways = R"jinja(    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %})jinja";
const std::string kNever = R"jinja(    {{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}
{%- endif %})jinja";
const std::string kQwen3 = kTurns + kSwitch;
const char* const kPlain =
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::unique_ptr<Tokenizer> qwen_tokenizer() {
  return test::from_json(test::byte_level_json(
      {}, {test::added_token("<|im_start|>", true), test::added_token("<|im_end|>", true),
           test::added_token("<think>", false), test::added_token("</think>", false)}));
}

std::string rendered(const std::string& jinja, const Messages& messages,
                     const ChatOptions& options = {}) {
  const auto t = qwen_tokenizer();
  return recognise_chat_template(jinja, *t, "template").render(messages, options).text;
}

std::string error_text(const std::string& jinja, std::optional<bool> thinking = {}) {
  const Error error = error_of([&] { rendered(jinja, {{"user", "Hi"}}, {.thinking = thinking}); });
  CHECK(error.kind() == (thinking ? ErrorKind::recipe : ErrorKind::input));
  CHECK(!error.hint_text().empty());
  return error.what();
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

const Messages kChat = {{"system", "S"},
                        {"user", "Hi"},
                        {"assistant", "<think>\nhm\n</think>\n\nYes"},
                        {"user", "Bye"}};
const std::string kChatText =
    "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n";
const std::string kOpening = "<|im_start|>assistant\n", kEmpty = "<think>\n\n</think>\n\n";

}  // namespace

TEST_SUITE("text/chat_thinking") {
  TEST_CASE("reasoning of earlier answers is left out; a prompt may rule out more") {
    CHECK(rendered(kQwen3, kChat, {.add_generation_prompt = false}) == kChatText);
    CHECK(rendered(kQwen3, kChat) == kChatText + kOpening);
    CHECK(rendered(kQwen3, kChat, {.thinking = true}) == kChatText + kOpening);
    CHECK(rendered(kQwen3, kChat, {.thinking = false}) == kChatText + kOpening + kEmpty);
  }

  TEST_CASE(
      "an answer to the last question keeps its reasoning, the last one even an empty place") {
    const ChatOptions whole{.add_generation_prompt = false};
    Messages chat = kChat;
    chat.push_back({"assistant", "<think>\n\nwell\n</think>\n\nSo long"});
    CHECK(rendered(kQwen3, chat, whole) ==
          kChatText + kOpening + "<think>\nwell\n</think>\n\nSo long<|im_end|>\n");
    const std::string question = "<|im_start|>user\nHi<|im_end|>\n";
    CHECK(rendered(kQwen3, {{"user", "Hi"}, {"assistant", "Yes", "hm\n"}}, whole) ==
          question + kOpening + "<think>\nhm\n</think>\n\nYes<|im_end|>\n");
    CHECK(rendered(kQwen3, {{"user", "Hi"}, {"assistant", "\nYes"}}, whole) ==
          question + kOpening + kEmpty + "Yes<|im_end|>\n");
  }

  TEST_CASE("what a tool answered is no question") {
    CHECK(rendered(kQwen3,
                   {{"user", "Hi"},
                    {"assistant", "Let me see", "hm"},
                    {"user", "<tool_response>4</tool_response>"},
                    {"assistant", "\nAh"},
                    {"assistant", "4"}},
                   {.add_generation_prompt = false}) ==
          "<|im_start|>user\nHi<|im_end|>\n" + kOpening +
              "<think>\nhm\n</think>\n\nLet me see<|im_end|>\n"
              "<|im_start|>user\n<tool_response>4</tool_response><|im_end|>\n" +
              kOpening + "\nAh<|im_end|>\n" + kOpening + kEmpty + "4<|im_end|>\n");
  }

  TEST_CASE("a chat without a question has no reasoning") {
    CHECK(rendered(kQwen3, {{"system", "S"}, {"assistant", "<think>x</think>A"}},
                   {.add_generation_prompt = false}) ==
          "<|im_start|>system\nS<|im_end|>\n" + kOpening + "A<|im_end|>\n");
  }

  TEST_CASE("templates of models that always think, and of those that never do") {
    CHECK(rendered(kTurns + kAlways, kChat) == kChatText + kOpening + "<think>\n");
    CHECK(rendered(kTurns + kAlways, kChat, {.thinking = true}) ==
          kChatText + kOpening + "<think>\n");
    CHECK(error_text(kTurns + kAlways, false) ==
          "chat.thinking: the model always thinks: expected true, found false");
    CHECK(rendered(kTurns + kNever, kChat) == kChatText + kOpening + kEmpty);
    CHECK(rendered(kTurns + kNever, kChat, {.thinking = false}) == kChatText + kOpening + kEmpty);
    CHECK(
        error_text(kTurns + kNever, true) ==
        "chat.thinking: the model's chat template has no place for thinking: expected false, found "
        "true");
  }

  TEST_CASE("a template that knows no thinking leaves what it is given as it is") {
    const std::string answer = "<think>x</think>A";
    CHECK(rendered(kPlain, {{"user", "Hi"}, {"assistant", answer}},
                   {.add_generation_prompt = false}) ==
          "<|im_start|>user\nHi<|im_end|>\n" + kOpening + answer + "<|im_end|>\n");
    for (const bool thinking : {false, true})
      CHECK(error_text(kPlain, thinking) ==
            "chat.thinking: the model's chat template knows no thinking");
  }

  TEST_CASE("white space outside literals, quotes and real line breaks are no matter") {
    std::string other = kQwen3;
    for (size_t at = 0; (at = other.find("\\n", at)) != other.npos;) other.replace(at, 2, "\n");
    CHECK(rendered(other, kChat, {.thinking = false}) == kChatText + kOpening + kEmpty);
    CHECK(rendered(replaced(kQwen3, "'<|im_start|>assistant\\n'", "\"<|im_start|>assistant\\n\""),
                   kChat) == kChatText + kOpening);
    CHECK(rendered(replaced(kQwen3, "loop.index0 > ns", "loop.index0>ns") + "\n", kChat) ==
          kChatText + kOpening);
  }

  TEST_CASE("reasoning that is rewritten in another way is refused") {
    const std::string refusal =
        "template: a chatml template that rewrites reasoning in an unknown way";
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"loop.index0 > ns.last_query_index", "true"},
             {"\\n</think>\\n\\n", "\\n</think>\\n"},
             {"rstrip('\\n')", "rstrip()"},
             {"message.content.startswith('<tool_response>')", "false"},
             {"enable_thinking is false", "enable_thinking is true"},
             {"assistant\\n' }}", "assistant\\n<think>\\n' }}"}})
      CHECK(error_text(replaced(kQwen3, from, to)) == refusal);
    CHECK(error_text(kQwen3 + "{{ eos_token }}") == refusal);
    CHECK(error_text("<|im_start|><|im_end|><think>") == refusal);
  }

  TEST_CASE("<think> is a token that is shown, in prompts and in what streams out") {
    const auto t = qwen_tokenizer();
    const auto think = t->id_of("<think>"), close = t->id_of("</think>"),
               end = t->id_of("<|im_end|>");
    const RenderedChat chat =
        recognise_chat_template(kQwen3, *t, "t").render({{{"user", "a"}}}, {.thinking = false});
    const auto ids = t->encode(chat.text, {.add_bos = false});
    CHECK(std::ranges::count(ids, *think) == 1);
    CHECK(std::ranges::count(ids, *close) == 1);
    CHECK(t->decode(ids, true).ends_with("assistant\n" + kEmpty));
    Streamer streamer(*t);
    std::string text;
    for (const int32_t id : {*think, int32_t{'\n'}, int32_t{0xC3}, int32_t{0xBC}, *close, *end})
      text += streamer.push(id);
    CHECK(text + streamer.flush() == "<think>\n\u00FC</think>");
  }
}
