#include <doctest/doctest.h>

#include "error_text.h"
#include "io/jsonl.h"

using namespace tandem;

TEST_SUITE("io/jsonl") {
  TEST_CASE("what a killed run has left of a line may be cut off; another's text may not") {
    const auto whole = [](std::string_view text) {
      return io::whole_lines(text, "log", "{\"schema\":");
    };
    CHECK(whole("") == 0);
    for (const char* torn : {"{", "{\"sche", "{\"schema\":", "{\"schema\":\"tandem.res"})
      CHECK(whole(torn) == 0);
    CHECK(whole("{\"schema\":1}\n") == 13);
    CHECK(whole("{\"schema\":1}\n{\"case\":") == 13);
    CHECK(whole("\n{\"sche") == 1);
    const auto refused = [&](std::string_view text) {
      return test::input_error_text([&] { whole(text); });
    };
    CHECK(refused("my only notes") ==
          "log: the last line, 'my only notes', has no line break and does not begin a record");
    for (const char* other : {"{\"name\":", "\xff\xfe", " {\"schema\":1}", "\n{\"name\": \"x\"}",
                              "{\"schema\":1}\nnotes", "{\"schema\":1}\n\t"})
      CHECK(refused(other).starts_with("log: the last line, "));
    CHECK(test::hint_text([&] { whole("notes"); }) ==
          "give -o a new file, or one that an earlier run wrote (one JSON object a line)");
  }
}
