#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/probe.h"
#include "io/file.h"
#include "source_dir.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome tree_search(std::vector<std::string> arguments) {
  return run_process(program("sequoia-tree-search"), {.arguments = std::move(arguments)});
}

/// Trees for an acceptance vector kept in a file of this text.
Outcome with_vector(const std::string& text, std::vector<std::string> arguments) {
  const TemporaryFolder folder;
  arguments.insert(arguments.begin(), {"--accept", folder.write("accept.json", text).string()});
  return tree_search(std::move(arguments));
}

std::string vector_file(const std::string& p) {
  return R"({"format": "acceptance-vector/1", "method": "sequoia", "p": )" + p + "}";
}

}  // namespace

TEST_SUITE("cli/sequoia-tree-search") {
  TEST_CASE("the JSON form") {
    const Outcome run = with_vector(vector_file("[0.5, 0.25]"),
                                    {"--set", "tree.sizes=[1,3,4]", "--set", "tree.max_levels=2",
                                     "--set", "tree.max_branch=null", "--format", "json"});
    CHECK(run.status == 0);
    CHECK(run.err.empty());
    CHECK(
        run.out ==
        R"({"trees":[{"size":1,"expected_tokens":1.0,"levels":1,"widths":[1],"algorithm":"greedy"},)"
        R"({"size":3,"expected_tokens":1.75,"levels":2,"widths":[1,2],"algorithm":"greedy"},)"
        R"({"size":4,"expected_tokens":null,"levels":null,"widths":null,"algorithm":"greedy"}]})"
        "\n");
  }

  TEST_CASE("the golden vector, with and without bounds") {
    const auto path = tandem::test::source_dir() / "tests/data/golden/sequoia/dp.json";
    const Json golden = Json::parse(tandem::io::read_file(path));
    const std::string p = golden["vectors"]["repo_demo"]["p"].dump();
    int n_series = 0;
    for (const Json& series : golden["series"]) {
      if (series["vector"] != "repo_demo") continue;
      ++n_series;
      std::vector<int> sizes;
      for (const Json& entry : series["entries"]) sizes.push_back(entry["n"]);
      const Outcome run =
          with_vector(vector_file(p), {"--json", "-s", "tree.sizes=" + Json(sizes).dump(), "-s",
                                       "tree.max_levels=" + series["max_levels"].dump(), "-s",
                                       "tree.max_branch=" + series["max_branch"].dump()});
      REQUIRE(run.status == 0);
      const Json trees = Json::parse(run.out)["trees"];
      REQUIRE(trees.size() == sizes.size());
      for (size_t i = 0; i < trees.size(); ++i) {
        const Json &got = trees[i], &want = series["entries"][i];
        CAPTURE(got.dump());
        CHECK(got["size"] == want["n"]);
        REQUIRE(got["expected_tokens"].is_null() == want["F"].is_null());
        if (want["F"].is_null()) continue;
        CHECK(got["expected_tokens"].get<double>() ==
              doctest::Approx(want["F"].get<double>()).epsilon(1e-10));
        if (want["widths_unique"]) CHECK(got["widths"] == want["widths"]);
      }
    }
    CHECK(n_series == 17);
  }

  TEST_CASE("either algorithm may be forced") {
    const std::string vector = vector_file("[0.5, 0.05, 0.4]");
    for (const auto& [name, tokens] : {std::pair("greedy", 1.875), std::pair("dp", 1.95)}) {
      const Json json = Json::parse(with_vector(vector, {"--json", "-s", "tree.sizes=[4]", "-s",
                                                         std::string("tree.algorithm=") + name})
                                        .out);
      CHECK(json["trees"][0]["algorithm"] == name);
      CHECK(json["trees"][0]["expected_tokens"] == tokens);
    }
    CHECK(Json::parse(with_vector(vector, {"--json", "-s", "tree.sizes=[4]"})
                          .out)["trees"][0]["algorithm"] == "dp");
  }

  TEST_CASE("the reference's demo configuration") {
    const Outcome run = tree_search({"-r", "sequoia/choice-reference", "--json"});
    CHECK(run.status == 0);
    const Json choice = Json::parse(run.out)["choices"][0];
    CHECK(choice["best"]["size"] == 4);
    CHECK(choice["best"]["levels"] == 4);
    CHECK(choice["best"]["ms_per_token"].get<double>() == doctest::Approx(4.887773926867161));
    CHECK(choice["best"]["speedup"].get<double>() == doctest::Approx(2.0459211390755834));
    CHECK(choice["runner_up"]["size"] == 8);
    CHECK(choice["chain"]["size"] == 4);
    CHECK(choice["no_speculation"]["ms_per_token"] == 10.0);
    CHECK(choice["speculate"] == true);
    CHECK(choice["sensitivity"].size() == 4);
    const Outcome text = tree_search({"-r", "sequoia/choice-reference"});
    CHECK(text.out.find("best                  4       4       2.2914") != std::string::npos);
    const Outcome slow =
        tree_search({"-r", "sequoia/choice-reference", "-s", "timing.draft_ms=[20]"});
    CHECK(slow.status == 0);
    CHECK(slow.err.find("speculation does not pay: ") != std::string::npos);
  }

  TEST_CASE("a choice for each context, a file for one") {
    const TemporaryFolder folder;
    const std::string path = (folder / "tree.json").string();
    const Outcome all = tree_search({"-r", "sequoia/choice-contexts", "--json"});
    CHECK(all.status == 0);
    CHECK(Json::parse(all.out)["choices"].size() == 2);
    const Outcome refused = tree_search({"-r", "sequoia/choice-contexts", "-o", path});
    CHECK(refused.status == 3);
    CHECK(refused.err.find("timing.context=N") != std::string::npos);
    const Outcome one = tree_search(
        {"-r", "sequoia/choice-contexts", "-s", "timing.context=4Ki", "-o", path, "--json"});
    CHECK(one.status == 0);
    const Json choice = Json::parse(one.out)["choices"][0], tree = Json::parse(file_text(path));
    CHECK(choice["context"] == 16384);
    CHECK(tree["widths"] == choice["best"]["widths"]);
    CHECK(tree["cost"]["x_ms_per_token"].get<double>() ==
          doctest::Approx(choice["best"]["ms_per_token"].get<double>()));
    CHECK(tree["cost"]["draft_ms_per_level"].size() == tree["levels"]);
    CHECK(tree_search({"-r", "sequoia/choice-contexts", "-s", "timing.context=1Mi"}).status == 3);
    CHECK(tree_search({"-r", "sequoia/choice-contexts", "-s", "tree.sizes=[512]"}).status == 3);
  }

  TEST_CASE("files of one tree") {
    const TemporaryFolder folder;
    const std::string path = (folder / "tree.json").string(), svg = (folder / "tree.svg").string(),
                      dot = (folder / "tree.dot").string();
    std::vector<std::string> arguments = {
        "-r", "sequoia/trees-reference", "-s", "tree.sizes=[64]", "-o", path, "--svg", svg, "--dot",
        dot};
    const Outcome run = tree_search(arguments);
    CHECK(run.status == 0);
    CHECK(run.out.starts_with("size  tokens/step"));
    const Json tree = Json::parse(file_text(path));
    CHECK(tree["format"] == "sequoia-tree/1");
    CHECK(tree["size"] == 64);
    CHECK(tree["widths"] == Json({1, 6, 12, 14, 9, 11, 7, 1, 1, 1, 1}));
    CHECK(tree["algorithm"] == "dp");
    CHECK(tree["vector"]["file"] == "accept-reference.json");
    CHECK(tree["vector"]["method"] == "sequoia");
    CHECK(tree["vector"]["sha256"].get<std::string>().size() == 64);
    CHECK_FALSE(tree.contains("cost"));
    CHECK(file_text(svg).starts_with("<svg "));
    CHECK(file_text(dot).starts_with("digraph "));
    CHECK(tree_search(arguments).status == 2);  // they exist
    arguments.push_back("--overwrite");
    CHECK(tree_search(arguments).status == 0);
    const Outcome pipe =
        tree_search({"-r", "sequoia/trees-reference", "-s", "tree.sizes=[64]", "-o", "-"});
    CHECK(pipe.out == file_text(path));
    const Outcome two = tree_search({"-r", "sequoia/trees-reference", "-s", "tree.sizes=[8, 9]",
                                     "-o", (folder / "no").string()});
    CHECK(two.status == 3);
    CHECK(two.err.find("a timing table to choose by, found 2 sizes") != std::string::npos);
    const Outcome none = tree_search({"-r", "sequoia/trees-reference", "-s", "tree.sizes=[64]",
                                      "-s", "tree.max_levels=2", "-o", (folder / "no").string()});
    CHECK(none.status == 3);
    CHECK(none.err.find("no tree has 64 nodes on 2 levels with at most 32 children a node") !=
          std::string::npos);
    CHECK(folder.n_files() == 3);
  }

  TEST_CASE("bad vectors and impossible settings") {
    const std::vector<std::string> sizes = {"-s", "tree.sizes=[4]"};
    const auto status = [&](const std::string& text) { return with_vector(text, sizes).status; };
    CHECK(status(vector_file("[0.5]")) == 0);
    CHECK(status(vector_file("[]")) == 4);
    CHECK(status(vector_file("[NaN]")) == 4);
    CHECK(status(vector_file("[-0.5]")) == 4);
    CHECK(status(vector_file("[0.9, 0.2]")) == 4);
    CHECK(status("{}") == 4);
    CHECK(status("") == 4);
    CHECK(status("[0, 0.5, 0.5]") == 4);
    const auto bare = [](const std::string& layout) {
      return with_vector("[0, 0.5, 0.5]",
                         {"--json", "-s", "tree.sizes=[3]", "-s", "accept.layout=" + layout});
    };
    CHECK(Json::parse(bare("padded").out)["trees"][0]["expected_tokens"] == 2.0);
    CHECK(Json::parse(bare("padded_residual").out)["trees"][0]["expected_tokens"] == 1.75);
    CHECK(bare("plain").status == 0);
    CHECK(bare("guess").status == 3);

    const Outcome missing = tree_search({"--accept", "/nonexistent.json", "-s", "tree.sizes=[4]"});
    CHECK(missing.status == 4);
    CHECK(missing.err.find("--accept") != std::string::npos);
    CHECK(tree_search({"-s", "tree.sizes=[4]"}).status == 3);
    const std::string vector = vector_file("[0.5]");
    CHECK(with_vector(vector, {"-q"}).status == 3);                  // no sizes
    CHECK(with_vector(vector, {"-s", "tree.sizes=8"}).status == 0);  // a list of one
    for (const char* setting : {"tree.sizes=[0]", "tree.sizes=[-1]", "tree.sizes=[5000]",
                                "tree.sizes=[2.5]", "tree.sizes=x", "tree.max_levels=0",
                                "tree.max_branch=0", "tree.depth=3", "timing.target_ms=[1]"})
      CHECK_MESSAGE(with_vector(vector, {"-s", "tree.sizes=[4]", "-s", setting}).status == 3,
                    setting);
    CHECK(with_vector(vector, {"-s", "tree.sizes=[4]", "--nodes", "3"}).status == 2);
    CHECK(with_vector(vector, {"-s", "tree.sizes=[4]", "--format", "xml"}).status == 2);
    const Outcome timing =
        with_vector(vector, {"-s", "timing.sizes=[2, 4]", "-s", "timing.target_ms=[1, 2]", "-s",
                             "timing.draft_ms=[1]"});
    CHECK(timing.status == 4);
    CHECK(timing.err.find("begins at 2 tokens, expected 1") != std::string::npos);
  }

  TEST_CASE("a sweep, timed") {
    const Outcome run = tree_search({"-r", "sequoia/trees-reference", "-s", "tree.sizes=[100]",
                                     "--sweep", "tree.max_levels=2,4", "--format", "jsonl"});
    CHECK(run.status == 0);
    std::istringstream lines(run.out);
    for (const int levels : {2, 4}) {
      std::string line;
      REQUIRE(std::getline(lines, line));
      const Json record = Json::parse(line);
      CHECK(record["schema"] == "tandem.result/1");
      CHECK(record["workload"]["max_levels"] == levels);
      CHECK(record["timing"]["optimizer"]["p50"] > 0);
      CHECK(record.contains("spec") == (levels == 4));  // 33 nodes at most on 2 levels
    }
    const TemporaryFolder folder;
    const Outcome partial =
        tree_search({"-r", "sequoia/trees-reference", "-s", "tree.sizes=[100]", "--sweep",
                     "tree.max_levels=2,4", "-o", (folder / "tree.json").string()});
    CHECK(partial.status == 8);
    CHECK(partial.err.find("no tree has 100 nodes on 2 levels") != std::string::npos);
    CHECK(folder.n_files() == 1);
  }

  TEST_CASE("the plan, the recipes, the formats") {
    const Outcome plan = tree_search({"-r", "sequoia/trees-reference", "--dry-run"});
    CHECK(plan.status == 0);
    CHECK(plan.out.find("9 sizes up to 1024 nodes, up to 32 levels, up to 32 children") !=
          std::string::npos);
    for (const char* name : {"trees-reference", "trees-llama3-70b-8b", "choice-reference",
                             "choice-contexts", "bench-trees"}) {
      const std::string recipe = std::string("sequoia/") + name;
      const Outcome check = tree_search({"-r", recipe, "--check"});
      CHECK(check.status == 0);
      CHECK(check.out + check.err == "");
      const Outcome printed = tree_search({"-r", recipe, "--print-recipe"});
      const Outcome again = run_process(program("sequoia-tree-search"),
                                        {.arguments = {"-r", "-", "--json"}, .input = printed.out});
      CHECK(again.out == tree_search({"-r", recipe, "--json"}).out);
    }
    CHECK(tree_search({"-r", "sequoia/trees-reference", "--format", "md"})
              .out.starts_with("| size "));
    CHECK(tree_search({"-r", "sequoia/trees-reference", "--format", "csv"})
              .out.starts_with("size,tokens/step,"));
  }

  TEST_CASE("--measure writes a timing table that a search reads") {
    const TemporaryFolder folder;
    const std::string path = (folder / "timing.json").string();
    const std::vector<std::string> flags = {"--measure",
                                            "-m",
                                            "tiny-16m",
                                            "--device",
                                            "cpu",
                                            "-s",
                                            "draft.path=tiny-2m",
                                            "-s",
                                            "tree.sizes=[12]",
                                            "-s",
                                            "timing.contexts=[48,96]"};
    std::vector<std::string> to_file = flags;
    to_file.insert(to_file.end(), {"-o", path});
    const Outcome run = tree_search(to_file);
    CHECK(run.status == 0);
    CHECK(run.out.empty());
    const Json t = Json::parse(tandem::io::read_file(path));
    CHECK(t["format"] == "sequoia-timing/1");
    CHECK(t["target"] == "tiny-16m");
    CHECK(t["skip_deepest"] == true);
    CHECK(t["buckets"].size() == 2);
    CHECK(t["buckets"][1]["context"] == 96);
    CHECK(t["buckets"][0]["target"]["tokens"] == Json({1, 2, 3, 4, 6, 8, 12}));
    const Outcome search =
        with_vector(vector_file("[0.5, 0.25]"), {"--timing", path, "-s", "timing.context=96"});
    CHECK(search.status == 0);
    CHECK(search.out.find("no speculation") != std::string::npos);

    std::vector<std::string> plan = flags;
    plan.push_back("--dry-run");
    CHECK(tree_search(plan).out.find(
              "trees of 1, 2, 3, 4, 6, 8, 12 nodes, contexts of 48, 96 tokens") !=
          std::string::npos);
    const Outcome alone = tree_search({"--measure"});
    CHECK(alone.status == 3);
    CHECK(alone.err.find("model.path: expected the model to time, found none") !=
          std::string::npos);
    CHECK(alone.err.find("draft.path: expected the draft model") != std::string::npos);
  }

  TEST_CASE("a problem names its key once") {
    const Outcome run = with_vector(vector_file("[0.5]"), {});
    CHECK(run.status == 3);
    CHECK(run.err.find("tree.sizes: expected sizes such as") != std::string::npos);
    CHECK(run.err.find("tree.sizes: tree.sizes:") == std::string::npos);
  }
}
