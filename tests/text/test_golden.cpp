#include <doctest/doctest.h>

#include "io/file.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::json;

// Hugging Face's ids and decoded text for the embedded models' tokenizer.
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
}
