#include <doctest/doctest.h>

#include "recipe/sweep.h"
#include "recipe_testing.h"

using namespace tandem;
using namespace tandem::recipe;

namespace {

std::string values(const std::string& setting) {
  std::vector<SweepAxis> axes;
  add_sweep(axes, setting, "--sweep #1");
  std::string text;
  for (const Node& value : axes.at(0).values) text += (text.empty() ? "" : " ") + value.scalar;
  return text;
}

std::string failure(const std::string& setting) {
  return message([&] { values(setting); });
}

}  // namespace

TEST_SUITE("recipe/sweep") {
  TEST_CASE("lists, ranges, steps and factors") {
    CHECK(values("a=1,2,4") == "1 2 4");
    CHECK(values("a=1-4") == "1 2 3 4");
    CHECK(values("a=0-64+16") == "0 16 32 48 64");
    CHECK(values("a=1-256*4") == "1 4 16 64 256");
    CHECK(values("a=8Ki-32Ki*2") == "8192 16384 32768");
    CHECK(values("a=1-3,full,1e-3") == "1 2 3 full 1e-3");
    CHECK(values("a=\"1-3\"") == "1-3");
    CHECK(values("a=5-5") == "5");
    CHECK(values("a=1-9007199254740991*9007199254740991") == "1 9007199254740991");
  }

  TEST_CASE("mistakes") {
    CHECK(
        failure("a") ==
        "--sweep #1: expected KEY=LIST, found 'a' | for example --sweep run.batch=1,2,4 or --sweep "
        "run.batch=1-256*2");
    CHECK(failure("a=8-1") == "--sweep #1: range '8-1' ends before it begins | ");
    CHECK(failure("a=1-8+0").find("range '1-8+0' never ends") != std::string::npos);
    CHECK(failure("a=1-8*1").find("never ends") != std::string::npos);
    CHECK(failure("a=0-8*2").find("never ends") != std::string::npos);
    CHECK(failure("a=1-1Mi") == "--sweep #1: range '1-1Mi' has more than 10000 values | ");
    CHECK(failure("a=") == "--sweep #1: sweep of 'a' has no values | ");
    for (const char* list : {"1,,2", "1,2,", ",1", "1, ,2"})
      CHECK(failure(std::string("a=") + list) ==
            "--sweep #1: the list '" + std::string(list) +
                "' has an empty value | put one comma between two values");
    CHECK(values("a=\",,\",'x, ,y',[1,2],null") == ",, x, ,y  ");
    CHECK(failure("a=1,2,1") ==
          "--sweep #1: sweep of 'a' has the value 1 twice | name each value once");
    CHECK(failure("a=1-4,4-8").find("has the value 4 twice") != std::string::npos);
    std::vector<SweepAxis> axes;
    for (const char* key : {"a", "b"}) add_sweep(axes, std::string(key) + "=1-1000", "--sweep #1");
    CHECK(message([&] { sweep_points(axes); }) ==
          "sweep: has more than 100000 points | sweep fewer keys or values");
  }

  TEST_CASE("the section is a cross product, last key fastest, and reads back from its dump") {
    Node tree = parse("sweep:\n  run.batch: [1, 8]\n  run.context: 8Ki-16Ki*2\nrun: {seed: 1}\n");
    std::vector<SweepAxis> axes = take_sweep(tree);
    CHECK(tree.find("sweep") == nullptr);
    std::string text;
    for (const SweepPoint& point : sweep_points(axes))
      text += point[0].second.scalar + "/" + point[1].second.scalar + " ";
    CHECK(text == "1/8192 1/16384 8/8192 8/16384 ");
    CHECK(dump_sweep(axes) == "sweep:\n  run.batch: [1, 8]\n  run.context: [8192, 16384]\n");
    Node again = parse(dump_sweep(axes));
    CHECK(dump_sweep(take_sweep(again)) == dump_sweep(axes));
    add_sweep(axes, "run.batch=4", "--sweep #1");
    CHECK(sweep_points(axes).size() == 2);
    CHECK(sweep_points({}).size() == 1);
    Node bad = parse("sweep: {a: {b: null}}");
    CHECK(message([&] { take_sweep(bad); }) ==
          "a.yaml:1:16: sweep of 'a.b': expected a list, found null | ");
  }

  TEST_CASE("keys of the section are dotted or nested, and name one axis") {
    Node tree = parse("sweep:\n  run.batch: [1, 8]\n  run: {batch: [2, 4], seed: 1-3}\n");
    CHECK(dump_sweep(take_sweep(tree)) == "sweep:\n  run.batch: [2, 4]\n  run.seed: [1, 2, 3]\n");
  }

  TEST_CASE("a list in the place of one value is an axis") {
    Sample sample;
    const Field schema = fields_of(sample);
    Node tree = parse(
        "run: {batch: [1, 8], threads: 2}\nstop: [a, b]\ninner: {color: [red, green]}\n"
        "unknown: [1]\n");
    std::vector<SweepAxis> axes;
    add_sweep(axes, "run.batch=16", "--sweep #1");
    take_lists(axes, tree, schema);
    CHECK(dump_sweep(axes) == "sweep:\n  run.batch: [1, 8]\n  inner.color: [red, green]\n");
    CHECK(tree.find_path("run.batch") == nullptr);
    CHECK(tree.find_path("run.threads")->scalar == "2");
    CHECK(tree.find_path("stop")->items.size() == 2);
    CHECK(tree.find_path("unknown")->items.size() == 1);
    Node twice = parse("run: {batch: [1, 1]}");
    CHECK(message([&] {
            take_lists(axes, twice, schema);
          }).find("sweep of 'run.batch' has the value 1 twice") != std::string::npos);
  }
}
