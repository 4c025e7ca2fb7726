#include <doctest/doctest.h>

#include "decode/suggested_sampling.h"
#include "error_text.h"
#include "temporary_folder.h"

using namespace tandem;
using decode::parse_suggested_sampling;
using test::input_error_text;

TEST_SUITE("decode/suggested_sampling") {
  TEST_CASE("the keys of generation_config.json") {
    const recipe::Sampling s = parse_suggested_sampling(
        R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1,
            "repetition_penalty": 1.05, "eos_token_id": 2, "num_beams": 1})",
        "g");
    CHECK(s.temperature == 0.6);
    CHECK(s.top_k == 20);
    CHECK(s.top_p == 0.95);
    CHECK(s.min_p == 0.1);
    CHECK(s.repetition_penalty == 1.05);
    const recipe::Sampling few =
        parse_suggested_sampling(R"({"temperature": 1, "top_k": null, "top_p": 0.8})", "g");
    CHECK(few.temperature == 1);
    CHECK_FALSE(few.top_k);
    CHECK(few.top_p == 0.8);
    CHECK_FALSE(few.min_p);
    CHECK_FALSE(few.repetition_penalty);
  }

  TEST_CASE("do_sample decides between greedy text and a temperature of 1") {
    const auto temperature = [](const char* text) {
      return parse_suggested_sampling(text, "g").temperature;
    };
    CHECK(temperature(R"({"do_sample": false, "temperature": 0.6, "top_p": 0.9})") == 0);
    CHECK(temperature(R"({"do_sample": true})") == 1);
    CHECK(temperature(R"({"do_sample": true, "top_k": 5})") == 1);
    CHECK(temperature(R"({"top_p": 0.9})") == 1);
    CHECK(temperature(R"({"eos_token_id": 2})") == 0);
    CHECK(temperature(R"({"repetition_penalty": 1.1})") == 0);
    CHECK(temperature(R"({"temperature": 0})") == 0);
    const test::TemporaryFolder none;
    CHECK_FALSE(decode::suggested_sampling(none.path()).is_set());
    CHECK_FALSE(decode::suggested_sampling("").is_set());
  }

  TEST_CASE("values out of range or of another type are refused with file and key") {
    const auto refused = [](const char* text) {
      return input_error_text([&] { parse_suggested_sampling(text, "g"); });
    };
    CHECK(refused(R"({"temperature": -0.5})") ==
          "g: key 'temperature': -0.5 is out of range, expected >= 0");
    CHECK(refused(R"({"top_p": 1.5})") ==
          "g: key 'top_p': 1.5 is out of range, expected 0 < x <= 1");
    CHECK(refused(R"({"top_p": 0})") == "g: key 'top_p': 0 is out of range, expected 0 < x <= 1");
    CHECK(refused(R"({"min_p": -1})") == "g: key 'min_p': -1 is out of range, expected 0 .. 1");
    CHECK(refused(R"({"repetition_penalty": 0})") ==
          "g: key 'repetition_penalty': 0 is out of range, expected 0.01 .. 100");
    CHECK(refused(R"({"top_k": -1})").find("g: key 'top_k': expected an integer") == 0);
    CHECK(refused(R"({"top_k": 2.5})").find("g: key 'top_k': expected an integer") == 0);
    CHECK(refused(R"({"temperature": "hot"})") ==
          "g: key 'temperature': expected a number, found the string 'hot'");
    CHECK(refused(R"({"do_sample": 1})") ==
          "g: key 'do_sample': expected true or false, found the number 1");
  }
}
