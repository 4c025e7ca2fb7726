#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include "io/file.h"
#include "text/tokenizer.h"
#include "text/chat_template.h"
TEST_CASE("golden") {
  auto t = tandem::text::load_tokenizer(TANDEM_SOURCE_DIR "/recipes/models/tiny-16m");
  auto g = nlohmann::json::parse(tandem::io::read_file(TANDEM_SOURCE_DIR "/../shared/golden/tiny_models.json"));
  for (auto& c : g["tokenizer"]) {
    auto s = c["text"].get<std::string>();
    CHECK(t->encode(s, {false, true}) == c["ids"].get<std::vector<int>>());
    CHECK(t->encode(s) == c["ids_with_bos"].get<std::vector<int>>());
    CHECK(t->decode(c["ids"].get<std::vector<int>>()) == c["decoded"].get<std::string>());
  }
}
