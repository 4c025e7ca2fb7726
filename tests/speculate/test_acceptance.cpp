#include <doctest/doctest.h>

#include "base/sha256.h"
#include "error_text.h"
#include "speculate/tree/acceptance.h"
#include "temporary_folder.h"
#include "tree_testing.h"

using namespace tandem;
using namespace tandem::speculate;
using test::hint_text;
using test::input_error_text;
using Row = std::vector<double>;

namespace {

AcceptanceVector parse(const std::string& text, std::optional<VectorLayout> layout = {}) {
  return parse_acceptance(text, "a.json", layout);
}

std::string error_of(const std::string& text, std::optional<VectorLayout> layout = {}) {
  return input_error_text([&] { parse(text, layout); });
}

/// An acceptance-vector/1 with these members beside its format.
std::string file(const std::string& members) {
  return R"({"format": "acceptance-vector/1", "method": "sequoia", )" + members + "}";
}

}  // namespace

TEST_SUITE("speculate/acceptance") {
  TEST_CASE("records have one vector, whatever the lengths of their lines") {
    const auto record = [](const std::string& rest) {
      return R"({"schema":"tandem.result/1")" + rest + "}";
    };
    const std::string vector = R"(,"acceptance":{"vector":)" + file(R"("p": [0.5])") + "}";
    const std::string with = record(vector), without = record("");
    CHECK(parse(with + "\n" + without + "\n").rows == parse(without + "\n\n" + with).rows);
    CHECK(error_of(with + "\n" + with).find("found 2") != std::string::npos);
    const std::string padding = "," + ("\"text\":\"" + std::string(2000, 'x')) + "\"";
    CHECK(error_of(record(vector + padding) + "\n" + with).find("found 2") != std::string::npos);
    CHECK(error_of(without + "\n" + record(padding)).find("found 0") != std::string::npos);
  }

  TEST_CASE("format, method and p are enough") {
    const std::string text = file(R"("p": [0.5, 0.25, 0])");
    const AcceptanceVector v = parse(text);
    CHECK(v.rows == test::Rows{{.5, .25, 0}});
    CHECK(v.method == "sequoia");
    CHECK(v.file == "a.json");
    CHECK(v.sha256 == sha256_hex(text));
    CHECK(v.row(0) == v.row(7));
  }

  TEST_CASE("depth rows, and members that are not needed") {
    const AcceptanceVector v = parse(file(
        R"("p": [9], "rows": [[0.5, 0.25], [0.125]], "samples": 667, "stderr": null, "draft": "d")"));
    CHECK(v.rows == test::Rows{{.5, .25}, {.125}});
    CHECK(v.row(1) == Row{.125});
    CHECK(v.row(9) == Row{.125});
    CHECK(v.first_children(1).rows == test::Rows{{.5}, {.125}});
    CHECK(v.non_increasing());
    CHECK_FALSE(parse(file(R"("rows": [[0.5], [0.1, 0.2]])")).non_increasing());
  }

  TEST_CASE("a bare array needs its layout") {
    CHECK(parse("[0.5, 0.25]", VectorLayout::plain).rows == test::Rows{{.5, .25}});
    CHECK(parse("[0, 0.5, 0.25]", VectorLayout::padded).rows == test::Rows{{.5, .25}});
    CHECK(parse("[0, 0.5, 0.25, 0.25]", VectorLayout::padded_residual).rows ==
          test::Rows{{.5, .25}});
    CHECK(error_of("[0, 0.5]") == "a.json: is an array without a layout");
    CHECK(hint_text([] { parse("[0, 0.5]"); }).find("accept.layout to plain, padded") !=
          std::string::npos);
    CHECK(error_of("[0.5, 0.25]", VectorLayout::padded) ==
          "a.json: layout padded must begin with 0, found 0.5");
    CHECK(error_of("[0, 0.5, 0.25]", VectorLayout::padded_residual) ==
          "a.json: layout padded_residual ends with the residual and must sum to 1, found 0.75");
    CHECK(error_of("[0, 1]", VectorLayout::padded_residual) ==
          "a.json: layout padded_residual needs 2 entries in addition to the probabilities, found "
          "2 in total");
    CHECK(error_of(file(R"("p": [0.5])"), VectorLayout::plain) ==
          "a.json: is an object, but accept.layout is only for plain arrays");
  }

  TEST_CASE("numbers that are no acceptance vector") {
    CHECK(error_of(file(R"("p": [])")) ==
          "a.json: p is empty, expected the acceptance probability of each child");
    CHECK(error_of(file(R"("p": [0.5, -0.1])")) ==
          "a.json: p[1] is -0.1, expected a probability from 0 to 1");
    CHECK(error_of(file(R"("p": [1.5])")) ==
          "a.json: p[0] is 1.5, expected a probability from 0 to 1");
    CHECK(error_of(file(R"("p": [0.5, NaN])")).starts_with("a.json:1:"));
    CHECK(error_of(file(R"("p": [0.5, null])")) ==
          "a.json: p[1]: expected a probability, found null");
    CHECK(error_of(file(R"("p": [0.5, 0.4, 0.2])")) == "a.json: p sums to 1.1, expected at most 1");
    CHECK(error_of(file(R"("rows": [[0.5], []])")) ==
          "a.json: rows[1] is empty, expected the acceptance probability of each child");
    CHECK(error_of(file(R"("rows": [])")) ==
          "a.json: rows is empty, expected one list for each depth");
    CHECK(error_of(file(R"("rows": [0.5])")) ==
          "a.json: rows[0]: expected an array of probabilities, found the number 0.5");
    CHECK(parse(file(R"("p": [0.5, 0.5])")).rows[0].size() == 2);  // sum 1 is legal
    CHECK(parse(file(R"("p": [0.6000005, 0.4])")).rows[0].size() == 2);
  }

  TEST_CASE("files that are something else") {
    CHECK(error_of("3") ==
          "a.json: expected an object of format 'acceptance-vector/1', found the number 3");
    CHECK(error_of(R"({"format": "sequoia-tree/1", "method": "sequoia", "p": [0.5]})") ==
          "a.json: expected format 'acceptance-vector/1', found 'sequoia-tree/1'");
    CHECK(error_of(R"({"p": [0.5]})").find("format") != std::string::npos);
    CHECK(error_of(R"({"format": "acceptance-vector/1", "p": [0.5]})").find("method") !=
          std::string::npos);
    CHECK(error_of(file(R"("q": 1)")).find("'p'") != std::string::npos);
    const test::TemporaryFolder folder;
    CHECK(input_error_text([&] { read_acceptance(folder / "none.json"); }).find("cannot open") !=
          std::string::npos);
    CHECK(read_acceptance(folder.write("v.json", file(R"("p": [0.5])"))).file ==
          (folder / "v.json").string());
  }
}
