#include <doctest/doctest.h>

#include "recipe_testing.h"

using namespace tandem;
using namespace tandem::recipe;

namespace {

std::string failure(const std::string& text) {
  return message([&] { parse(text); });
}

}  // namespace

TEST_SUITE("recipe/yaml") {
  TEST_CASE("values keep line and column") {
    const Node tree = parse("a: 1\nb:\n  - x\n  - {c: 'y'}\n");
    CHECK(tree.find("a")->origin.text() == "a.yaml:1:4");
    const Node& list = *tree.find("b");
    CHECK(list.items[0].origin.text() == "a.yaml:3:5");
    CHECK(list.items[1].find("c")->origin.text() == "a.yaml:4:9");
    CHECK(list.items[1].find("c")->quoted);
    CHECK(tree.find_path("b.c") == nullptr);
    CHECK(tree.find_path("b.1.c")->scalar == "y");
    for (const char* none : {"b.2", "b.-1", "b.1x"}) {
      CAPTURE(none);
      CHECK(tree.find_path(none) == nullptr);
    }
    CHECK(parse("").kind == Node::Kind::null);
    CHECK(parse("# only a comment\n").kind == Node::Kind::null);
  }

  TEST_CASE("what recipes do not use is refused with its position") {
    CHECK(failure("a: 1\na: 2\n") == "a.yaml:2:1: duplicate key 'a' | first set at a.yaml:1:1");
    CHECK(failure("a: !!int 3\n") ==
          "a.yaml:1:4: tags such as 'tag:yaml.org,2002:int' are not supported | remove the tag; "
          "types come from the key");
    CHECK(failure("a: &x 3\n") ==
          "a.yaml:1:4: anchors are not supported | write the value out, or use base: to share "
          "settings");
    CHECK(failure("a: 1\n---\nb: 2\n") ==
          "a.yaml:3:1: expected one YAML document, found several | keep one document, or combine "
          "files with base: or several -r");
    CHECK(failure("? [a, b]\n: 1\n") ==
          "a.yaml:1:3: expected a plain word as a key | is a bracket, brace or quote left open?");
    CHECK(failure("<<: *x\n").find("a.yaml:1:5: not valid YAML") == 0);
    CHECK(failure("a: [1, 2\nb: 3\n").find("a.yaml:") == 0);
    CHECK(failure("a: \"x\\q\"\n") == "a.yaml:1:8: not valid YAML: unknown escape character: q | ");
    CHECK(failure("a:\n\t- b\n") ==
          "a.yaml:2:1: not valid YAML: a tab in the indentation | indent with spaces");
    CHECK(failure("a:\n  b: 1\n  \tc: 2\n") ==
          "a.yaml:3:3: not valid YAML: a tab in the indentation | indent with spaces");
    CHECK(failure("a: \xff\n") ==
          "a.yaml:1:4: byte 0xff is not UTF-8 text | save the file as UTF-8 text");
    CHECK(failure(std::string("a: \0b\n", 6)) ==
          "a.yaml:1:4: byte 0x00 is not UTF-8 text | save the file as UTF-8 text");
  }

  TEST_CASE("depth and width are bounded") {
    CHECK(failure(std::string(40, '[') + std::string(40, ']')) ==
          "a.yaml:1:33: nested deeper than 32 levels | ");
    CHECK(failure(std::string(100000, '[')) != "none");
    std::string lists;
    for (int i = 0; i < 100000; ++i) lists += "- ";
    CHECK(failure(lists) == "a.yaml:1:65: nested deeper than 32 levels | ");
    std::string wide;
    for (int i = 0; i < 1025; ++i) wide += fmt::format("k{}: 1\n", i);
    CHECK(failure(wide) == "a.yaml:1025:1: a map has more than 1024 keys | ");
  }

  TEST_CASE("unreadable files") {
    const TemporaryFolder folder;
    const std::string missing = (folder / "none.yaml").string();
    CHECK(message([&] { parse_yaml_file(missing); }) ==
          missing + ": cannot open: No such file or directory | ");
    const std::string big = folder.write("big.yaml", "#" + std::string(2 << 20, 'x')).string();
    CHECK(message([&] { parse_yaml_file(big); }).find("larger than") != std::string::npos);
    const std::string wide = folder.write("wide.yaml", "\xFF\xFE").string();
    CHECK(message([&] { parse_yaml_file(wide); }) ==
          wide +
              ": is UTF-16 text, expected UTF-8 | convert it first: iconv -f UTF-16 -t UTF-8 FILE");
  }

  TEST_CASE("a byte order mark is no part of the first key") {
    const TemporaryFolder folder;
    const Node tree = parse_yaml_file(folder.write("a.yaml",
                                                   "\xEF\xBB\xBF"
                                                   "a: 1\n"));
    REQUIRE(tree.find("a") != nullptr);
    CHECK(tree.find("a")->scalar == "1");
  }
}
