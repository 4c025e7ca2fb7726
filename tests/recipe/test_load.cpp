#include <doctest/doctest.h>

#include "recipe_testing.h"

using namespace tandem;
using namespace tandem::recipe;

TEST_SUITE("recipe/load") {
  TEST_CASE("base chains merge by key, scalars and lists replace") {
    const TemporaryFolder f;
    std::filesystem::create_directory(f / "common");
    f.write("common/a.yaml", "run: {seed: 1, batch: 2}\nstop: [x, y]\n");
    f.write("b.yaml", "base: common/a.yaml\nrun: {seed: 3}\n");
    const std::filesystem::path top =
        f.write("top.yaml", "kind: k\nversion: 1\nbase: [b.yaml]\nstop: [z]\n");
    const Node tree = load_recipe(top, "k");
    CHECK(tree.find_path("run.seed")->scalar == "3");
    CHECK(tree.find_path("run.batch")->scalar == "2");
    CHECK(tree.find_path("run.batch")->origin.text() == (f / "common/a.yaml:1:23").string());
    CHECK(tree.find("stop")->items.size() == 1);
    CHECK(tree.find("kind") == nullptr);
    CHECK(tree.find("base") == nullptr);
  }

  TEST_CASE("null in a later file resets") {
    const TemporaryFolder f;
    f.write("a.yaml", "run: {batch: 2}\n");
    const std::string top =
        f.write("top.yaml", "base: a.yaml\nrun: {batch: null}\nmodel: {path: m}\n");
    Sample sample;
    Field fields = fields_of(sample);
    read_fields(fields, load_recipe(top, "k"));
    CHECK(sample.run.batch == 1);
  }

  TEST_CASE("broken chains name their files") {
    const TemporaryFolder f;
    const std::string a = f.write("a.yaml", "base: b.yaml\n"),
                      b = f.write("b.yaml", "base: a.yaml\n");
    CHECK(message([&] { load_recipe(a, "k"); }) ==
          fmt::format("{0}:1:7: base: the files form a cycle (chain: {1} -> {0} -> {1}) | ", b, a));
    const std::string c = f.write("c.yaml", "base: none.yaml\n").string();
    CHECK(message([&] { load_recipe(c, "k"); }) ==
          fmt::format("{0}:1:7: base 'none.yaml' not found (chain: {0} -> {1}) | give a path "
                      "relative to the file that names it, or a recipe's name as for -r",
                      c, (f / "none.yaml").string()));
    f.write("d9.yaml", "");
    for (int i = 0; i < 9; ++i)
      f.write(fmt::format("d{}.yaml", i), fmt::format("base: d{}.yaml\n", i + 1));
    CHECK(message([&] {
            load_recipe(f / "d0.yaml", "k");
          }).find("base: the chain has more than 8 files") != std::string::npos);
    CHECK(message([&] { load_recipe(f / "d2.yaml", "k"); }) == "none");  // eight files
    const std::string e = f.write("e.yaml", "base: {x: 1}\n").string();
    CHECK(message([&] { load_recipe(e, "k"); }) ==
          e + ":1:7: base: expected a path or a list of paths, found a map | ");
  }

  TEST_CASE("kind and version") {
    const TemporaryFolder f;
    const auto failure = [&](const std::string& text) {
      return message([&] { load_recipe(f.write("r.yaml", text), "generate"); });
    };
    const std::string r = (f / "r.yaml").string();
    CHECK(failure("kind: train\n") ==
          r + ":1:7: expected a recipe of kind 'generate', found 'train' | give the recipe to the "
              "tool it was written for");
    CHECK(failure("version: 3\n") == r + ":1:10: recipe version 3 is newer than this build, which "
                                         "reads up to 2 | update tandem");
    CHECK(failure("version: one\n") ==
          r + ":1:10: version: expected an integer of at least 1, found 'one' | ");
    CHECK(failure("- a\n") == r + ":1:1: expected a map of sections, found a list | ");
    CHECK(failure("") == "none");
  }

  TEST_CASE("lists of bases do not multiply without end") {
    const TemporaryFolder f;
    for (int i = 0; i < 7; ++i) {
      const std::string next = fmt::format("l{}.yaml", i + 1);
      std::string list;
      for (int k = 0; k < 12; ++k) list += next + ", ";
      f.write(fmt::format("l{}.yaml", i), "base: [" + list + "]\n");
    }
    f.write("l7.yaml", "");
    const std::string text = message([&] { load_recipe(f / "l0.yaml", "k"); });
    CHECK(text.find("base: one recipe reads more than 256 files (chain: ") != std::string::npos);
    CHECK(text.find((f / "l0.yaml").string() + " -> ") != std::string::npos);
    CHECK(text.ends_with(" | a base is read again each time a recipe names it: name each once"));
    CHECK(message([&] { load_recipe(f / "l6.yaml", "k"); }) == "none");
  }

  TEST_CASE("settings") {
    Node tree = parse("run: {seed: 1}");
    apply_setting(tree, "run.seed=2", "--set #1");
    apply_setting(tree, "run={batch: 3}", "--set #2");
    apply_setting(tree, "lengths=[1, 2]", "--set #3");
    CHECK(tree.find_path("run.seed")->scalar == "2");
    CHECK(tree.find_path("run.seed")->origin.text() == "--set #1");
    CHECK(tree.find_path("run.batch")->origin.text() == "--set #2");
    CHECK(tree.find("lengths")->items.size() == 2);
    for (const char* bad : {"run.seed", "=3"})
      CHECK(message([&] { apply_setting(tree, bad, "--set #4"); }) ==
            fmt::format("--set #4: expected KEY=VALUE, found '{}' | for example --set run.seed=1",
                        bad));
    Node literal = literal_node("[not, yaml", "--stop");
    CHECK(literal.scalar == "[not, yaml");
  }

  TEST_CASE("recipes are found by path, then by name") {
    const TemporaryFolder f;
    std::filesystem::create_directory(f / "pig");
    const std::string file = f.write("pig/x.yaml", "").string();
    CHECK(find_recipe(file, {}) == file);
    CHECK(find_recipe("pig/x", {f.path()}) == file);
    CHECK(find_recipe("pig/x.yaml", {"/nowhere", f.path()}) == file);
    CHECK(find_recipe("-", {}) == "-");
    const auto lost = [&](const std::string& name) {
      return message([&] { find_recipe(name, {f.path()}); });
    };
    const std::string looked = "looked in the working directory, " + f.path().string();
    CHECK(lost("pig/abc") == "--recipe: recipe 'pig/abc' not found | " + looked);
    for (const char* name : {"pig/y", "x", "ipg/x"})
      CHECK(lost(name) == fmt::format("--recipe: recipe '{}' not found | did you mean 'pig/x'?  {}",
                                      name, looked));
  }

  TEST_CASE("recipes have names by folder; the first folder that has one wins") {
    const TemporaryFolder f, g;
    std::filesystem::create_directory(f / "pig");
    const auto x = f.write("pig/x.yaml", "run: {seed: 1}\n");
    f.write("pig/x.json", "");
    g.write("a.yaml", "");
    std::filesystem::create_directory(g / "pig");
    g.write("pig/x.yaml", "");
    std::string names;
    for (const NamedRecipe& recipe : named_recipes({"/nowhere", f.path(), g.path()}))
      names += recipe.name + (recipe.file == x ? "! " : " ");
    CHECK(names == "a pig/x! ");
    const std::string own = g.write("own.yaml", "base: pig/x\n").string();
    CHECK(load_recipe(own, "k", {f.path()}).find_path("run.seed")->scalar == "1");
  }
}
