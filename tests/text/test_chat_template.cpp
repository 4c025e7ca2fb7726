#include "text/chat_template.h"

#include <doctest/doctest.h>

#include "io/file.h"
#include "io/json.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::error_of;
using test::json;
using Texts = std::vector<std::string>;

namespace {

const std::string kModel = test::source_path("recipes/models/tiny-2m");

io::OrderedJson golden(const char* file) {
  const std::string path = test::source_path("tests/data/golden/chat/") + file;
  return io::parse_ordered_json(io::read_file(path), path);
}

ChatTemplate made(std::string_view jinja, ChatSettings settings = {}) {
  return {jinja,
          "t",
          std::move(settings),
          {{"bos_token", "<s>"}, {"eos_token", "</s>"}},
          {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}};
}

/// What training learns of a chat.
Texts answers(const ChatTemplate& t, const Chat& chat) {
  const RenderedChat sample = t.sample(chat, "chat");
  Texts texts;
  for (const TextSpan& span : sample.answers)
    texts.push_back(sample.text.substr(span.begin, span.end - span.begin));
  return texts;
}

Chat parsed(const std::string& text) { return parse_chat(io::parse_ordered_json(text, "c"), "c"); }

const char* const kChatml =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const char* const kAlwaysPrompts =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}";
const char* const kMistral =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content | trim + eos_token }}"
    "{% endif %}{% endfor %}";
const char* const kPlain =
    "{% for m in messages %}{{ '### ' + m.role + ':\\n' + m.content + '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}";
const char* const kThinks =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}";
const Chat kTurns = {{"user", "Hi"}, {"assistant", "Yes"}, {"user", "Bye"}, {"assistant", ""}};

}  // namespace

TEST_SUITE("text/chat_template") {
  TEST_CASE("ids of transformers: templates of four families, of many, of the embedded models") {
    const auto tokenizer = load_tokenizer(kModel);
    const auto check = [&](const std::string& jinja, const Chat& chat, const io::OrderedJson& ids,
                           const std::string& bos, const std::string& eos) {
      const ChatTemplate t(jinja, "t", {}, {{"bos_token", bos}, {"eos_token", eos}});
      if (ids == "raises") {
        CHECK_THROWS_AS(t.prompt(chat, "c"), Error);
        return;
      }
      CHECK(tokenizer->encode(t.prompt(chat, "c").text, {.add_bos = false}) ==
            ids.get<std::vector<int32_t>>());
    };
    const io::OrderedJson families = golden("four_families.json");
    REQUIRE(families["templates"].size() == 23);
    for (const auto& [name, c] : families["templates"].items())
      for (const auto& [label, messages] : families["messages"].items()) {
        INFO(name << ", " << label);
        check(c["template"], parse_chat({{"messages", messages}}, "c"), c["ids"][label],
              "<|begin_of_text|>", "<|end_of_text|>");
      }
    const io::OrderedJson all = golden("chat_templates.json");
    size_t n = 0;
    for (const io::OrderedJson& t : all["templates"])
      for (const io::OrderedJson& c : t["cases"]) {
        if (!c.contains("ids") || !c.value("add_generation_prompt", false) ||
            c.value("tools", false) || c.value("documents", false) ||
            !c.value("variables", io::OrderedJson::object()).empty())
          continue;
        INFO(t["name"].get<std::string>() << ", " << c["chat"].get<std::string>());
        const auto token = [&](const char* key) {
          return t.contains(key) && t[key].is_string() ? t[key].get<std::string>() : "";
        };
        check(t["template"],
              parse_chat({{"messages", all["chats"][c["chat"].get<std::string>()]}}, "c"), c["ids"],
              token("bos_token"), token("eos_token"));
        ++n;
      }
    CHECK(n > 40);
    const ChatTemplate own = load_chat_template(kModel, *tokenizer);
    const std::string path = test::source_path("tests/data/golden/tiny/chat.json");
    for (const io::OrderedJson& c : io::parse_ordered_json(io::read_file(path), path)) {
      const Chat chat = parse_chat({{"messages", c["messages"]}}, "c");
      const std::string text =
          (c["add_generation_prompt"] == true ? own.prompt(chat, "c") : own.sample(chat, "c")).text;
      CHECK(text == c["text"].get<std::string>());
      CHECK(tokenizer->encode(text, {.add_bos = false}) == c["ids"].get<std::vector<int32_t>>());
    }
  }

  TEST_CASE("answers to learn: from the end of the prompt to the end of the turn") {
    CHECK(answers(made(kChatml), kTurns) == Texts{"Yes<|im_end|>", "<|im_end|>"});
    CHECK(answers(made(kAlwaysPrompts), kTurns) == Texts{"Yes<|im_end|>", "<|im_end|>"});
    CHECK(answers(made(kMistral), kTurns) == Texts{" Yes</s>", " </s>"});
    CHECK(answers(made(kPlain), {{"user", "Hi"}, {"assistant", "Yes\nNo"}}) == Texts{"Yes\nNo"});
    CHECK(answers(made(kChatml), {{"user", "Hi"}}).empty());
    // Turns without a control token at their end, in a template that closes the chat by one.
    const char* const kCloses =
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}"
        "{{ '[assistant]' if add_generation_prompt else eos_token }}";
    const Chat three = {{"user", "Hi"},      {"assistant", "Yes"}, {"user", "And"},
                        {"assistant", "No"}, {"user", "Bye"},      {"assistant", "Bye now"}};
    CHECK(answers(made(kCloses), three) == Texts{"Yes", "No", "Bye now</s>"});
    Chat one = three;
    one.learned = {{}, true, {}, false, {}, false};
    CHECK(answers(made(kCloses), one) == Texts{"Yes"});
    // An answer may quote the control token of its own end.
    CHECK(answers(made(kChatml), {{"user", "a"}, {"assistant", "<|im_end|> ends"}}) ==
          Texts{"<|im_end|> ends<|im_end|>"});
    const Chat reasons = parsed(
        R"({"messages": [{"role": "user", "content": "1+1"},
            {"role": "assistant", "reasoning_content": "one and one", "content": "2"},
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "reasoning_content": "two and two", "content": "4"}]})");
    const Texts expected = {"2<|im_end|>", "<think>\ntwo and two\n</think>\n\n4<|im_end|>"};
    CHECK(answers(made(kThinks), reasons) == expected);
    CHECK(answers(made(kThinks, {.thinking = false}), {{"user", "Hi"}, {"assistant", "Yes"}}) ==
          Texts{"Yes<|im_end|>"});
    // A later turn may change the text before an answer: the system message goes to the last user.
    const char* const kLastUser =
        "{{ bos_token }}{% for m in messages[1:] %}{% if m.role == 'user' %}[INST] "
        "{% if loop.last or loop.index == messages | length - 2 %}{{ messages[0].content + '\\n' }}"
        "{% endif %}{{ m.content }}[/INST]{% else %}{{ ' ' + m.content + eos_token }}{% endif %}"
        "{% endfor %}";
    CHECK(answers(made(kLastUser), {{"system", "Be brief."},
                                    {"user", "Hi"},
                                    {"assistant", "Yes"},
                                    {"user", "Bye"},
                                    {"assistant", "No"}}) == Texts{" Yes</s>", " No</s>"});
    // An answer that is not written as it is cannot be found then.
    const Error lost = error_of([] {
      answers(made("{% for m in messages %}{{ messages | length }}{{ m.content | upper }}"
                   "{% endfor %}"),
              {{"user", "a"}, {"assistant", "b"}});
    });
    CHECK(lost.message().find("the answer cannot be located") != std::string::npos);
    CHECK(lost.hint_text().find("{% generation %}") != std::string::npos);
  }

  TEST_CASE("generation tags say what is learned") {
    const ChatTemplate t = made(
        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!"
        "{% endgeneration %}{% else %}U:{{ m.content }}{% endif %}{% endfor %}");
    CHECK(answers(t, kTurns) == Texts{"Yes!", "!"});
    Chat marked = kTurns;
    marked.learned[1] = false;
    CHECK(answers(t, marked) == Texts{"!"});
  }

  TEST_CASE("turns that are marked not to be learned are not") {
    const char* const keys[] = {"\"weight\": 0", "\"train\": false", "\"trainable\": false",
                                "\"weight\": 0.0"};
    for (const std::string key : keys)
      CHECK(answers(made(kChatml), parsed(R"({"messages": [{"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "bad", )" +
                                          key + R"(},
                    {"role": "user", "content": "again"},
                    {"role": "assistant", "content": "good", "weight": 1, "train": true}]})")) ==
            Texts{"good<|im_end|>"});
    const auto refused = [](const char* message) {
      return error_of([&] {
               answers(made(kChatml), parsed(std::string("{\"messages\": [") + message + "]}"));
             })
          .message();
    };
    CHECK(refused(R"({"role": "assistant", "content": "a", "weight": 0.5})") ==
          "key 'weight' of a message: expected 0 or 1, found the number 0.5");
    CHECK(refused(R"({"role": "assistant", "content": "a", "train": "no"})") ==
          "key 'train' of a message: expected true or false, found the string 'no'");
    CHECK(refused(R"({"role": "user", "content": "a", "train": true})") ==
          "message 1 is marked for training, but its role is not assistant");
  }

  TEST_CASE("content as parts: as the template takes it, else one part as plain text") {
    const auto prompt = [](const char* jinja, const char* content) {
      return made(jinja)
          .prompt(parsed(std::string(R"({"messages": [{"role": "user", "content": )") + content +
                         "}]}"),
                  "c")
          .text;
    };
    const char* const kParts =
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}";
    const char* const kTwo = R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])";
    const char* const kOne = R"([{"type": "text", "text": "Hi"}])";
    CHECK(prompt(kParts, kTwo) == "<a><b>");
    CHECK(prompt(kChatml, kOne) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    CHECK(prompt("{{ messages[0]['content'] }}", kOne) == "Hi");
    CHECK(error_of([&] { prompt(kChatml, kTwo); }).message() ==
          "content has 2 parts, but the chat template expects one text");
    CHECK(error_of([&] { prompt(kParts, R"([{"type": "image"}])"); }).message() ==
          "a content part of type 'image' is not supported, only text");
    CHECK(error_of([&] { prompt(kParts, "7"); }).message() ==
          "key 'content' of a message: expected text or a list of parts, found the number 7");
    const Chat turns = parsed(
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                         {"role": "assistant", "content": [{"type": "text", "text": "a</s>b"}]}]})");
    CHECK(answers(made(kChatml), turns) == Texts{"a</s>b<|im_end|>"});
    CHECK(answers(made(kMistral), turns) == Texts{" a</s>b</s>"});
    CHECK(answers(made("{% for m in messages %}{{ m.content[0].text }}</s>{% endfor %}"), turns) ==
          Texts{"a</s>b</s>"});
  }

  TEST_CASE("thinking, date and other variables") {
    const Chat hi = {{"user", "Hi"}};
    CHECK(made(kThinks, {.thinking = false}).prompt(hi, "c").text.ends_with("</think>\n\n"));
    CHECK(made(kThinks, {.thinking = true}).prompt(hi, "c").text.ends_with("assistant\n"));
    CHECK(made("{{ thinking }}", {.thinking = true}).prompt(hi, "c").text == "True");
    const Error none = error_of([] { made(kChatml, {.thinking = false}); });
    CHECK(none.kind() == ErrorKind::recipe);
    CHECK(none.where() == "chat.thinking");
    const char* const kDated = "{{ strftime_now('%d %b %Y, %A %H:%M') }}";
    CHECK(made(kDated).prompt(hi, "c").text == "26 Jul 2024, Friday 00:00");
    CHECK(made(kDated, {.date = "2026-02-01"}).prompt(hi, "c").text == "01 Feb 2026, Sunday 00:00");
    CHECK(made(kDated).prompt(hi, "c").has_date);
    CHECK_FALSE(made(kChatml).prompt(hi, "c").has_date);
    CHECK(made("{{ effort }}{{ bos_token }}",
               {.variables = {{"effort", "high"}, {"bos_token", "<b>"}}})
              .prompt(hi, "c")
              .text == "high<b>");
  }

  TEST_CASE("tools and documents come with the chat, else from their files") {
    const test::TemporaryFolder folder;
    folder.write("tools.json", R"([{"name": "tide", "args": {"b": 1, "a": 2}}])");
    const ChatSettings settings{.tools = folder.path() / "tools.json"};
    const char* const kTools = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}";
    CHECK(made(kTools, settings).prompt({{"user", "Hi"}}, "c").text ==
          R"({"name": "tide", "args": {"b": 1, "a": 2}})");
    const Chat own = parsed(R"({"messages": [{"role": "user", "content": "Hi"}],
                                "tools": [{"z": 1, "name": "wind"}], "documents": [{"text": "d"}]})");
    CHECK(made(kTools, settings).prompt(own, "c").text == R"({"z": 1, "name": "wind"})");
    CHECK(made("{{ documents[0].text }}").prompt(own, "c").text == "d");
    folder.write("bad.json", "{}");
    CHECK(error_of([&] { made(kTools, {.tools = folder.path() / "bad.json"}); }).message() ==
          "expected a JSON array of objects, found an object");
  }

  TEST_CASE("messages: null keys are absent, reasoning has several names") {
    const Chat chat = parsed(
        R"({"messages": [{"role": "assistant", "content": null, "reasoning": "r", "x": null}]})");
    const char* const kKeys = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
    CHECK(made(kKeys).prompt(chat, "c").text ==
          R"({"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"})");
    const auto message = [](const char* text) { return error_of([&] { parsed(text); }).message(); };
    CHECK(message(R"({"messages": {"role": "user"}})") ==
          "key 'messages': expected a list of messages, found an object");
    CHECK(message(R"({"messages": []})") ==
          "key 'messages': expected at least one message, found none");
    CHECK(message(R"({"messages": ["Hi"]})") == "expected a message, found the string 'Hi'");
    CHECK(message(R"({"messages": [{"content": "Hi"}]})") ==
          "expected the key 'role' in a message, found none");
    CHECK(message(R"({"messages": [{"role": 1}]})") ==
          "key 'role' of a message: expected text, found the number 1");
  }

  TEST_CASE("tokens that a template may write: those that the tokenizer's files name") {
    const auto tokenizer = load_tokenizer(kModel);
    const test::TemporaryFolder folder;
    folder.write("tokenizer.json", "{}");
    folder.write("chat_template.jinja", "{{ bos_token }}|{{ pad_token }}|{{ image_token }}");
    const auto text = [&](const json& config, const json& map = json::object()) {
      folder.write("tokenizer_config.json", config.dump());
      folder.write("special_tokens_map.json", map.dump());
      return load_chat_template(folder.path(), *tokenizer).prompt({{"user", "Hi"}}, "c").text;
    };
    CHECK(text({{"bos_token", "<s>"}, {"pad_token", {{"content", "P"}}}}) == "<s>|P|");
    // A token that the author left out is not written, although tokenizer.json has one.
    CHECK(text({{"bos_token", nullptr}}) == "||");
    CHECK(text({{"image_token", "I"}}) == "||I");
    CHECK(text({{"extra_special_tokens", {{"image_token", "I"}}}}) == "||I");
    const json map = {{"bos_token", "M"}, {"pad_token", {{"content", "P"}}}};
    CHECK(text({{"bos_token", "<s>"}}, map) == "M|P|");
    CHECK(text({{"bos_token", "<s>"}, {"added_tokens_decoder", json::object()}}, map) == "<s>||");
    std::filesystem::remove(folder.path() / "tokenizer.json");
    CHECK(text(json::object()) == "<|begin_of_text|>||");
  }

  TEST_CASE("where templates are found, and how one of several is chosen") {
    const auto tokenizer = load_tokenizer(kModel);
    const test::TemporaryFolder folder;
    const auto text = [&](ChatSettings settings = {}) {
      return load_chat_template(folder.path(), *tokenizer, std::move(settings))
          .prompt({{"user", "Hi"}}, "c")
          .text;
    };
    const Error none = error_of([&] { text(); });
    CHECK(none.message().find("has no chat template") != std::string::npos);
    CHECK(none.hint_text().find("chat.template=FILE") != std::string::npos);
    folder.write("chat_template.json", R"({"chat_template": "of a processor"})");
    CHECK(text() == "of a processor");
    const auto config = [&](const json& chat_template) {
      folder.write(
          "tokenizer_config.json",
          json{{"chat_template", chat_template}, {"bos_token", {{"content", "<s>"}}}}.dump());
    };
    config("one {{ bos_token }}");
    CHECK(text() == "one <s>");
    config(json{{"default", "a"}, {"tool_use", "b"}});
    CHECK(text() == "a");
    CHECK(text({.choice = "tool_use"}) == "b");
    config(json::array({{{"name", "default"}, {"template", "c"}},
                        {{"name", "rag"}, {"template", "d"}},
                        {{"name", "tool_use"}, {"template", "e"}}}));
    CHECK(text() == "c");
    CHECK(text({.choice = "rag"}) == "d");
    folder.write("tools.json", "[{}]");
    CHECK(text({.tools = folder.path() / "tools.json"}) == "e");
    const Chat with_tools = parsed(R"({"messages": [{"role": "user"}], "tools": [{}]})");
    CHECK(load_chat_template(folder.path(), *tokenizer).prompt(with_tools, "c").text == "e");
    CHECK(load_chat_template(folder.path(), *tokenizer, {.choice = "rag"})
              .prompt(with_tools, "c")
              .text == "d");
    const Error unknown = error_of([&] { text({.choice = "rga"}); });
    CHECK(unknown.where() == "chat.template");
    CHECK(unknown.hint_text() == "the model has these templates: default, rag, tool_use");
    config(json{{"rag", "d"}});
    CHECK(error_of([&] { text(); }).message().find("choose one") != std::string::npos);
    config(7);
    CHECK(error_of([&] { text(); }).message().find("found the number 7") != std::string::npos);
    // transformers reads a template file as it is: line breaks become \n, a mark stays.
    folder.write("chat_template.jinja",
                 "\xEF\xBB\xBF"
                 "f\r\n{{ 'x' }}\r\ng\r\n");
    CHECK(text() ==
          "\xEF\xBB\xBF"
          "f\nx\ng");
    std::filesystem::create_directory(folder.path() / "additional_chat_templates");
    folder.write("additional_chat_templates/rag.jinja", "h");
    CHECK(text({.choice = "rag"}) == "h");
    folder.write("own.jinja", "own");
    CHECK(text({.choice = folder.path() / "own.jinja"}) == "own");
  }
}
