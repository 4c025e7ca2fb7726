#include <doctest/doctest.h>

#include "io/file.h"
#include "text/chat_template.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::json;

// Hugging Face's ids, decoded text and rendered chats for the embedded models' tokenizer.
TEST_SUITE("text/golden") {
  TEST_CASE("tokenizer cases") {
    for (const char* model : {"tiny-16m", "tiny-2m"}) {
      const auto t = load_tokenizer(test::source_path("recipes/models/") + model);
      const json cases =
          json::parse(io::read_file(test::source_path("tests/data/golden/tiny/tokenizer.json")));
      REQUIRE(cases.size() > 20);
      for (const json& c : cases) {
        const auto text = c["text"].get<std::string>();
        const auto ids = c["ids"].get<std::vector<int32_t>>();
        INFO(text);
        CHECK(t->encode(text, {.add_bos = false}) == ids);
        CHECK(t->encode(text) == c["ids_with_bos"].get<std::vector<int32_t>>());
        CHECK(t->decode(ids) == c["decoded"].get<std::string>());
      }
    }
  }

  TEST_CASE("chat cases") {
    const std::string folder = test::source_path("recipes/models/tiny-16m");
    const auto t = load_tokenizer(folder);
    const ChatTemplate chat = load_chat_template(folder, *t);
    const json cases =
        json::parse(io::read_file(test::source_path("tests/data/golden/tiny/chat.json")));
    REQUIRE(cases.size() > 5);
    for (const json& c : cases) {
      std::vector<ChatMessage> messages;
      for (const json& m : c["messages"]) messages.push_back({m["role"], m["content"]});
      const RenderedChat rendered =
          chat.render(messages, {.add_generation_prompt = c["add_generation_prompt"], .date = ""});
      CHECK(rendered.text == c["text"].get<std::string>());
      CHECK(rendered.has_bos);
      CHECK(t->encode(rendered.text, {.add_bos = false}) == c["ids"].get<std::vector<int32_t>>());
    }
  }
}
