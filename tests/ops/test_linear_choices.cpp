#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "io/json.h"
#include "ops/linear.h"
#include "ops/linear_choices.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::ops;

namespace {

const LinearProduct kOneRow{.rows = 1, .out = 64, .in = 32};
const LinearProduct kGated{.rows = 20, .out = 64, .in = 32, .gate = Gate::silu};
const LinearProduct kManyRows{.rows = 100, .out = 64, .in = 32, .accumulate = true};

using Kernel = LinearChoice::Kernel;

LinearChoice skinny_choice() {
  return {.kernel = Kernel::skinny, .stages = 4, .microseconds = 7.5};
}
LinearChoice tiled_choice() {
  return {.kernel = Kernel::tiled, .tiling = {3, 2, 1}, .microseconds = 8};
}
LinearChoice library_choice() {
  return {.algorithm = {1, ~uint64_t{0}, 0, 0x123456789abcdef0, 4, 5, 6, 7}, .microseconds = 9};
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_SUITE("ops/linear_choices") {
  TEST_CASE("row counts are themselves up to 16, then share powers of two") {
    for (int64_t rows = 1; rows <= 16; ++rows) CHECK(rows_bucket(rows) == rows);
    CHECK(rows_bucket(17) == 32);
    CHECK(rows_bucket(32) == 32);
    CHECK(rows_bucket(33) == 64);
    CHECK(rows_bucket(4097) == 8192);
  }

  TEST_CASE("what is kept is found again, also by another reader of the file") {
    const test::TemporaryFolder folder;
    const auto file = folder.path() / "new" / "linear.json";
    LinearChoices choices(file, "GPU 1");
    CHECK(!choices.find(kOneRow));
    choices.keep(kOneRow, skinny_choice());
    choices.keep(kManyRows, library_choice());
    choices.keep(kGated, tiled_choice());
    for (const LinearChoices& c : {choices, LinearChoices(file, "GPU 1")}) {
      const auto one = c.find(kOneRow), many = c.find(kManyRows);
      REQUIRE(one);
      REQUIRE(many);
      CHECK(one->kernel == Kernel::skinny);
      CHECK(one->stages == 4);
      CHECK(one->microseconds == 7.5);
      CHECK(many->kernel == Kernel::library);
      CHECK(many->algorithm == library_choice().algorithm);
      const auto gated = c.find(kGated);
      REQUIRE(gated);
      CHECK(gated->kernel == Kernel::tiled);
      CHECK(gated->tiling == tiled_choice().tiling);
    }
  }

  TEST_CASE("a product differs by every one of its properties, a row count by its bucket") {
    const test::TemporaryFolder folder;
    LinearChoices choices(folder.path() / "linear.json", "GPU");
    choices.keep(kManyRows, library_choice());
    const auto found = [&](auto change) {
      LinearProduct p = kManyRows;
      change(p);
      return choices.find(p).has_value();
    };
    CHECK(found([](LinearProduct& p) { p.rows = 128; }));
    CHECK(found([](LinearProduct& p) { p.rows = 65; }));
    CHECK(!found([](LinearProduct& p) { p.rows = 64; }));
    CHECK(!found([](LinearProduct& p) { p.out = 65; }));
    CHECK(!found([](LinearProduct& p) { p.in = 33; }));
    CHECK(!found([](LinearProduct& p) { p.stored = DType::f32; }));
    CHECK(!found([](LinearProduct& p) { p.y_type = DType::bf16; }));
    CHECK(!found([](LinearProduct& p) { p.bias = true; }));
    CHECK(!found([](LinearProduct& p) { p.accumulate = false; }));
    CHECK(!found([](LinearProduct& p) { p.gate = Gate::silu; }));
    choices.keep(kGated, tiled_choice());
    CHECK(choices.find(kGated));
    LinearProduct other_gate = kGated;
    other_gate.gate = Gate::gelu_tanh;
    CHECK(!choices.find(other_gate));
  }

  TEST_CASE("other machines' choices stay in the file and are not taken") {
    const test::TemporaryFolder folder;
    const auto file = folder.path() / "linear.json";
    LinearChoices(file, "GPU 1").keep(kOneRow, skinny_choice());
    LinearChoices other(file, "GPU 2");
    CHECK(!other.find(kOneRow));
    other.keep(kOneRow, library_choice());
    CHECK(LinearChoices(file, "GPU 1").find(kOneRow)->kernel == Kernel::skinny);
    CHECK(LinearChoices(file, "GPU 2").find(kOneRow)->kernel == Kernel::library);
  }

  TEST_CASE("a broken file is no file, and is replaced") {
    const test::TemporaryFolder folder;
    const auto file = folder.path() / "linear.json";
    for (const char* text : {"", "{\"GPU", "[1, 2]", "{\"GPU\": 3}", "{\"GPU\": {\"x\": 1}}"}) {
      CAPTURE(text);
      folder.write("linear.json", text);
      LinearChoices choices(file, "GPU");
      CHECK(!choices.find(kOneRow));
      choices.keep(kOneRow, skinny_choice());
      CHECK(LinearChoices(file, "GPU").find(kOneRow));
    }
  }

  TEST_CASE("a broken entry counts as absent, its neighbours stay") {
    const test::TemporaryFolder folder;
    const auto file = folder.path() / "linear.json";
    LinearChoices choices(file, "GPU");
    choices.keep(kOneRow, skinny_choice());
    choices.keep(kManyRows, library_choice());
    const std::string whole = text_of(file);
    const std::string key = "ffffffffffffffff";
    REQUIRE(whole.find(key) != std::string::npos);
    for (const char* instead : {"fffffffffffffff", "ffffffffffffffgf", "fffffffffffffffff"}) {
      std::string text = whole;
      folder.write("linear.json", text.replace(text.find(key), key.size(), instead));
      LinearChoices read(file, "GPU");
      CHECK(!read.find(kManyRows));
      CHECK(read.find(kOneRow));
    }
  }

  TEST_CASE("a tiling of another form than three small numbers counts as absent") {
    const test::TemporaryFolder folder;
    const auto file = folder.path() / "linear.json";
    LinearChoices(file, "GPU").keep(kGated, tiled_choice());
    io::Json all = io::parse_json(text_of(file), "file");
    for (const char* instead : {"[3, 2]", "[3, 2, 1, 1]", "[3, 2, -1]", "[3, 2, 1.5]",
                                "[3, 2, \"1\"]", "[3, 2, 1000]", "7", "{}"}) {
      CAPTURE(instead);
      all["GPU"].begin().value()["tiled"] = io::parse_json(instead, "test");
      folder.write("linear.json", all.dump());
      CHECK(!LinearChoices(file, "GPU").find(kGated));
    }
  }

  TEST_CASE("a folder that cannot be written, or none, costs nothing but the memory of it") {
    const test::TemporaryFolder folder;
    folder.write("file", "");
    for (const std::filesystem::path& file :
         {folder / "file/linear.json", std::filesystem::path()}) {
      LinearChoices choices(file, "GPU");
      choices.keep(kOneRow, skinny_choice());
      CHECK(choices.find(kOneRow));
    }
  }
}
