#include <doctest/doctest.h>

#include "error_text.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/quote.h"

using namespace tandem;
using namespace tandem::io;
using test::input_error_text;

namespace {

std::string parse_error(std::string_view text, const JsonOptions& options = {}) {
  return input_error_text([&] { parse_json(text, "a.json", options); });
}

}  // namespace

TEST_SUITE("io/json") {
  TEST_CASE("a document comes out as it is written") {
    const Json j =
        parse_json(R"( {"a": [1, -2, 2.5, "x\u00e9", null, true], "b": {"c": {}}} )", "");
    CHECK(j.dump() == "{\"a\":[1,-2,2.5,\"x\u00e9\",null,true],\"b\":{\"c\":{}}}");
    CHECK(parse_json("18446744073709551615", "").get<uint64_t>() == UINT64_MAX);
    CHECK(parse_json("\xEF\xBB\xBF[]", "") == Json::array());
    CHECK(parse_json("[[],[[1],2],{}]", "").dump() == "[[],[[1],2],{}]");
  }

  TEST_CASE("syntax errors carry line and column") {
    CHECK(parse_error("") ==
          "a.json:1:1: malformed JSON while parsing value - unexpected end of input; expected '[', "
          "'{', or a literal");
    CHECK(parse_error("{\"a\": tru}") ==
          "a.json:1:10: malformed JSON while parsing value - invalid literal");
    CHECK(parse_error("{\"a\": 1,\n \"b\" 2}") ==
          "a.json:2:6: malformed JSON while parsing object separator - unexpected number literal; "
          "expected ':'");
    CHECK(parse_error("[1, 2") ==
          "a.json:1:6: malformed JSON while parsing array - unexpected end of input; expected ']'");
    CHECK(
        parse_error("[1] 2") ==
        "a.json:1:5: malformed JSON while parsing value - unexpected number literal; expected end "
        "of input");
    CHECK(parse_error("[1e999]") == "a.json:1:6: malformed JSON number overflow parsing '1e999'");
    CHECK(parse_error("[\"\xff\"]") ==
          "a.json:1:3: malformed JSON while parsing value - invalid string: ill-formed UTF-8 byte");
    CHECK(parse_error(std::string_view("{}\0{}", 5)) == "a.json:1:3: malformed JSON: a zero byte");
    CHECK(parse_error("[NaN]") ==
          "a.json:1:2: malformed JSON while parsing value - invalid literal");
  }

  TEST_CASE("columns count characters") {
    CHECK(parse_error("{\"\u00e9\u00e9\": x}") ==
          "a.json:1:8: malformed JSON while parsing value - invalid literal");
  }

  TEST_CASE("an excerpt of the file never floods the message") {
    const std::string letters(100000, 'a'), digits(100000, '0');
    CHECK(parse_error("[\"" + letters).size() < 250);
    CHECK(parse_error("[\"'; expected \x01") == parse_error("[\"aaaaaaaaaaaa\x01"));
    CHECK(parse_error("[1" + digits + "e999999]").size() < 250);
  }

  TEST_CASE("nesting is limited, at the bracket that is one too deep") {
    CHECK_NOTHROW(parse_json(std::string(128, '[') + std::string(128, ']'), ""));
    CHECK(parse_error(std::string(129, '[')) == "a.json:1:129: nested deeper than 128 levels");
    CHECK(parse_error(std::string(1000000, '[')) == "a.json:1:129: nested deeper than 128 levels");
    CHECK(parse_error("[{\"a\":[]}]", {.max_depth = 2}) ==
          "a.json:1:7: nested deeper than 2 levels");
  }

  TEST_CASE("a key given twice is an error unless allowed") {
    CHECK(parse_error("{\"a\": 1,\n  \"b\": 2, \"a\": 3}") == "a.json:2:11: key 'a' appears twice");
    CHECK(parse_error(R"({"x\"y": 1, "x\"y": 2})") == "a.json:1:13: key 'x\"y' appears twice");
    CHECK(parse_json(R"({"a": 1, "a": 2})", "", {.allow_duplicate_keys = true})["a"] == 2);
    CHECK_NOTHROW(parse_json(R"([{"a": 1}, {"a": 2}])", ""));
  }

  TEST_CASE("typed getters name key, expectation and finding") {
    const Json j = parse_json(
        R"({"i": 7, "big": 18446744073709551615, "f": 2.0, "s": "x", "b": true, "n": null,
            "a": [1], "o": {}})",
        "");
    CHECK(get_int(j, "i", "w", 7, 7) == 7);
    CHECK(get_double(j, "i", "w") == 7.0);
    CHECK(get_bool(j, "b", "w"));
    CHECK(get_string(j, "s", "w") == "x");
    CHECK(get_array(j, "a", "w").size() == 1);
    CHECK(get_object(j, "o", "w").empty());
    const auto int_error = [&](const char* key, int64_t min, int64_t max) {
      return input_error_text([&] { get_int(j, key, "w", min, max); });
    };
    CHECK(int_error("i", 8, 9) ==
          "w: key 'i': expected an integer from 8 to 9, found the number 7");
    CHECK(int_error("i", 8, kAnyMax) == "w: key 'i': expected an integer >= 8, found the number 7");
    CHECK(int_error("f", 0, 9) ==
          "w: key 'f': expected an integer from 0 to 9, found the number 2.0");
    CHECK(int_error("big", kAnyMin, kAnyMax) ==
          "w: key 'big': expected an integer, found the number 18446744073709551615");
    CHECK(int_error("n", kAnyMin, kAnyMax) == "w: key 'n': expected an integer, found null");
    CHECK(int_error("q", 1, 2) == "w: key 'q' is missing, expected an integer from 1 to 2");
    CHECK(input_error_text([&] { get_double(j, "s", "w"); }) ==
          "w: key 's': expected a number, found the string 'x'");
    CHECK(input_error_text([&] { get_bool(j, "i", "w"); }) ==
          "w: key 'i': expected true or false, found the number 7");
    CHECK(input_error_text([&] { get_string(j, "a", "w"); }) ==
          "w: key 'a': expected a string, found an array of 1 item");
    CHECK(input_error_text([&] { get_array(j, "o", "w"); }) ==
          "w: key 'o': expected an array, found an object");
    CHECK(input_error_text([&] { get_object(j, "b", "w"); }) ==
          "w: key 'b': expected an object, found true");
    CHECK(input_error_text([&] { get_int(Json::array(), "i", "w"); }) ==
          "w: document: expected an object, found an array of 0 items");
  }

  TEST_CASE("optional getters take absent and null alike, and nothing else") {
    const Json j = parse_json(R"({"n": null, "s": "x"})", "");
    for (const char* key : {"n", "absent"}) {
      CHECK_FALSE(find_int(j, key, "w"));
      CHECK_FALSE(find_double(j, key, "w"));
      CHECK_FALSE(find_bool(j, key, "w"));
      CHECK_FALSE(find_string(j, key, "w"));
      CHECK(find_object(j, key, "w") == nullptr);
      CHECK(find_array(j, key, "w") == nullptr);
    }
    CHECK(*find_string(j, "s", "w") == "x");
    CHECK(input_error_text([&] { find_int(j, "s", "w"); }) ==
          "w: key 's': expected an integer, found the string 'x'");
  }

  TEST_CASE("quoted text is safe to print") {
    CHECK(quote("plain") == "'plain'");
    CHECK(quote("a\x1b[31m\n\x7f") ==
          "'a?[31m?"
          "?'");
    CHECK(quote("\u00e9\xff\u4e2d") == "'\u00e9?\u4e2d'");
    CHECK(quote("\xC2\x9B"
                "31m") == "'?31m'");  // a one-character escape sequence starter
    CHECK(quote("\xED\xA0\x80") ==
          "'?"
          "?"
          "?'");  // a surrogate
    const std::string shown(80, 'a');
    CHECK(quote(std::string(500, 'a')) == "'" + shown + "...'");
  }
}

TEST_SUITE("io/jsonl") {
  TEST_CASE("lines are values with their place") {
    std::vector<std::string> seen;
    for_each_jsonl("\xEF\xBB\xBF{\"a\":1}\r\n\n  \n[2]\n3", "p.jsonl",
                   [&](const Json& value, const std::string& where) {
                     seen.push_back(where + " " + value.dump());
                   });
    CHECK(seen == std::vector<std::string>{"p.jsonl:1 {\"a\":1}", "p.jsonl:4 [2]", "p.jsonl:5 3"});
    CHECK(input_error_text([] {
            for_each_jsonl("1\n\n{]", "p.jsonl", [](auto&, auto&) {});
          }).starts_with("p.jsonl:3:2: malformed JSON while parsing object key"));
  }

  TEST_CASE("a written line is always valid") {
    CHECK(jsonl_line({{"text", "a\nb"}}) == "{\"text\":\"a\\nb\"}\n");
    CHECK(jsonl_line({{"text", "\xe2\x82"}}) == "{\"text\":\"\xEF\xBF\xBD\"}\n");
  }
}
