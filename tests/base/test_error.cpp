#include <doctest/doctest.h>

#include "base/check.h"

using namespace tandem;

TEST_SUITE("base/error") {
  TEST_CASE("text, hint and context") {
    Error e = input_error("a.json:3:7", "expected {}, found {}", "','", "'}'").hint("add a comma");
    CHECK(std::string(e.what()) == "a.json:3:7: expected ',', found '}'");
    CHECK(e.hint_text() == "add a comma");
    e.add_context("while loading the tokenizer");
    CHECK(std::string(e.what()) ==
          "a.json:3:7: expected ',', found '}' (while loading the tokenizer)");
    CHECK(exit_status(e.kind()) == 4);
  }

  TEST_CASE("a failed check is an internal error that names its condition") {
    try {
      TANDEM_CHECK(1 + 1 == 3, "sum {}", 2);
      FAIL("not thrown");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::internal);
      CHECK(std::string(e.what()).find("1 + 1 == 3") != std::string::npos);
      CHECK(std::string(e.what()).find("sum 2") != std::string::npos);
    }
  }
}
