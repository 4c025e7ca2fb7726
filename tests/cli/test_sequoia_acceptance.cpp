#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/probe.h"
#include "io/file.h"
#include "source_dir.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome acceptance(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-r", "sequoia/acceptance-tiny-16m", "--device", "cpu"});
  return run_process(program("sequoia-acceptance"), {.arguments = std::move(arguments)});
}

}  // namespace

TEST_SUITE("cli/sequoia-acceptance") {
  TEST_CASE("a vector that the tree search reads, the same on every run") {
    const TemporaryFolder folder;
    const std::string path = (folder / "accept.json").string();
    const std::vector<std::string> flags = {"-p", "Once upon a time", "-n", "60",
                                            "-s", "accept.width=4"};
    const Outcome run = acceptance(flags);
    CHECK(run.status == 0);
    const Json v = Json::parse(run.out);
    CHECK(v["format"] == "acceptance-vector/1");
    CHECK(v["method"] == "sequoia");
    CHECK(v["samples"] == 60);
    CHECK(v["target"] == "tiny-16m");
    CHECK(v["draft"] == "tiny-2m");
    CHECK(v["p"].size() == 4);
    CHECK(v["stderr"].size() == 4);
    double sum = v["residual"].get<double>();
    for (const Json& p : v["p"]) {
      CHECK(p.get<double>() >= 0);
      sum += p.get<double>();
    }
    CHECK(sum == doctest::Approx(1));
    CHECK(v["p"][0].get<double>() > 0.2);

    const auto in_form = [&](const char* form) {
      std::vector<std::string> all = flags;
      all.insert(all.end(), {"--format", form});
      return acceptance(all).out;
    };
    const std::string csv = in_form("csv");
    CHECK(
        csv.starts_with(fmt::format("depth,child,accepted,stderr,positions\n,1,{:.6f},{:.6f},60\n",
                                    v["p"][0].get<double>(), v["stderr"][0].get<double>())));
    CHECK(std::ranges::count(csv, '\n') == 5);
    CHECK(in_form("md").starts_with("| depth | child | accepted |"));
    CHECK(in_form("text").starts_with("depth  child  accepted"));
    CHECK(in_form("jsonl") == run.out);

    std::vector<std::string> to_file = flags;
    to_file.insert(to_file.end(), {"-o", path});
    CHECK(acceptance(to_file).out.empty());
    CHECK(tandem::io::read_file(path) == run.out);
    const Outcome tree = run_process(program("sequoia-tree-search"),
                                     {.arguments = {"--accept", path, "-s", "tree.sizes=[4]"}});
    CHECK(tree.status == 0);
  }

  TEST_CASE("rows by depth, which the tree search reads") {
    const TemporaryFolder folder;
    const std::string path = (folder / "accept.json").string();
    const Outcome run = acceptance({"-p", "Once upon a time", "-n", "80", "-s", "accept.width=3",
                                    "-s", "accept.depths=3", "-o", path});
    CHECK(run.status == 0);
    CHECK(run.err.find("depth 0: ") != std::string::npos);
    const Json v = Json::parse(tandem::io::read_file(path));
    CHECK_FALSE(v.contains("p"));
    REQUIRE(v["rows"].size() >= 2);
    CHECK(v["rows"].size() <= 3);
    CHECK(v["samples"].size() == v["rows"].size());
    int64_t nodes = 0;
    for (size_t d = 0; d < v["rows"].size(); ++d) {
      CHECK(v["rows"][d].size() == 3);
      CHECK(v["stderr"][d].size() == 3);
      nodes += v["samples"][d].get<int64_t>();
    }
    CHECK(nodes == 79);
    const Outcome tree = run_process(program("sequoia-tree-search"),
                                     {.arguments = {"--accept", path, "-s", "tree.sizes=[4]"}});
    CHECK(tree.status == 0);
  }

  TEST_CASE("of a tree: its rounds' tokens, and rows that predict them within 5 %") {
    const TemporaryFolder folder;
    const std::string accept = (folder / "accept.json").string();
    const std::string prompts = (folder / "prompts.jsonl").string();
    const std::string log =
        file_text(tandem::test::source_dir() / "recipes/demo/lighthouse-logbook.txt");
    std::ofstream list(prompts);
    for (size_t i = 0; i < 12; ++i)
      list << Json{{"prompt", log.substr(1000 * i, 200)}}.dump() << "\n";
    list.close();
    // Uneven: what follows a first child goes deep, what follows the others ends soon.
    const std::string shapes[] = {"[6,2,1,1,0,0,0,2,0,1,0,1,0,1,1,0,0]",
                                  "[6,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0,0,0,0]"};
    for (const std::string& counts : shapes) {
      CAPTURE(counts);
      const Json shape = Json::parse(counts);
      const std::string tree = (folder / "tree.json").string();
      std::ofstream(tree) << Json{{"format", "sequoia-tree/1"}, {"branch_counts", shape}}.dump();
      const std::vector<std::string> texts = {"--prompts", prompts, "-n", "60",
                                              "-t",        "1",     "-s", "model.compute=f32"};
      std::vector<std::string> flags = texts;
      flags.insert(flags.end(), {"-s", "accept.tree=" + tree, "-s", "accept.width=6", "-v", "-o",
                                 accept, "--overwrite"});
      const Outcome run = acceptance(flags);
      CHECK(run.status == 0);
      const Json v = Json::parse(tandem::io::read_file(accept));
      CHECK(v["tree"]["tokens_lost"] == 0);
      CHECK(v["tree"]["nodes"] == shape.size());
      const double measured = v["tree"]["tokens_per_round"],
                   predicted = v["tree"]["expected_tokens"];
      CAPTURE(measured);
      CHECK(predicted == doctest::Approx(measured).epsilon(0.05));

      // The very rounds of the tool that generates.
      flags = {"-r", "sequoia/tiny-16m",         "--device", "cpu",
               "-s", "sampling.temperature=0.6", "-s",       "run.batch=1",
               "-s", "tree.path=" + tree,        "--format", "jsonl",
               "-s", "spec.verify=sequoia"};
      flags.insert(flags.end(), texts.begin(), texts.end());
      const std::string out = run_process(program("sequoia-generate"), {.arguments = flags}).out;
      const Json summary = Json::parse(out.substr(out.rfind('\n', out.size() - 2) + 1));
      CHECK(summary["spec"]["mean_tokens_per_round"].get<double>() == doctest::Approx(measured));
    }
  }

  TEST_CASE("a level that no round passes has a mean of zero") {
    // Twelve levels of one child, few rounds: the deepest level that is reached accepts none.
    const TemporaryFolder folder;
    const std::string tree = (folder / "chain.json").string();
    std::ofstream(tree)
        << R"({"format":"sequoia-tree/1","branch_counts":[1,1,1,1,1,1,1,1,1,1,1,1,0]})";
    const Outcome run =
        acceptance({"-p", "Once upon a time", "-n", "4", "-t", "1", "-s", "accept.width=2", "-s",
                    "accept.tree=" + tree, "-s", "accept.rule=block"});
    CHECK(run.status == 0);
    const Json rows = Json::parse(run.out)["rows"];
    REQUIRE(rows.size() >= 1);
    for (const Json& row : rows) CHECK(row.size() == 1);  // the tree has one child a node
    CHECK(rows.back()[0].get<double>() == 0);
  }

  TEST_CASE("rounds recorded for a search by replay, the same on every run") {
    const TemporaryFolder folder;
    const std::string prompts = (folder / "prompts.jsonl").string();
    std::ofstream list(prompts);
    for (const char* text : {"Once upon a time", "The storm", "Early in the morning"})
      list << Json{{"prompt", text}}.dump() << "\n";
    list.close();
    const std::string tree = (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    const auto record = [&](const std::string& to) {
      return acceptance({"--prompts", prompts, "-n", "30", "-s", "accept.tree=" + tree, "-s",
                         "accept.record=" + to, "-v"});
    };
    const std::string one = (folder / "one").string(), two = (folder / "two").string();
    const Outcome run = record(one);
    CHECK(run.status == 0);
    CHECK(run.err.find("speculation steps of 8 nodes in " + one) != std::string::npos);
    CHECK(record(two).status == 0);
    CHECK(tandem::io::read_file(one) == tandem::io::read_file(two));
    const Outcome again = record(one);
    CHECK(again.status == 2);
    CHECK(again.err.find("exists") != std::string::npos);

    const auto search = [&](std::vector<std::string> flags) {
      flags.insert(flags.begin(), {"--replay", one});
      return run_process(program("sequoia-tree-search"), {.arguments = std::move(flags)});
    };
    const std::string found = (folder / "tree.json").string();
    const Outcome best = search({"-s", "tree.sizes=[5]", "--json"});
    CHECK(best.status == 0);
    const Json result = Json::parse(best.out);
    CHECK(result["rule"] == "traversal");
    CHECK(result["trees"][0]["size"] == 5);
    CHECK(result["trees"][0]["tokens"] >= result["trees"][0]["start_tokens"]);
    CHECK(search({"-s", "tree.sizes=[5]", "-o", found}).status == 0);
    const Json file = Json::parse(tandem::io::read_file(found));
    CHECK(file["format"] == "sequoia-tree/1");
    CHECK(file["size"] == 5);
    CHECK(file["replay"]["rule"] == "traversal");
    CHECK(file["replay"]["file"] == "one");
    CHECK(search({"-s", "tree.sizes=[3,5]"}).out.find("searched tree") != std::string::npos);
    CHECK(search({"--dry-run", "-s", "tree.sizes=[3,5]"}).out.find("8 nodes on 6 levels") !=
          std::string::npos);
    const Json timed = Json::parse(search({"--json", "-s", "timing.sizes=[1,8]", "-s",
                                           "timing.target_ms=[9,10]", "-s", "timing.draft_ms=[1]"})
                                       .out);
    CHECK(timed["choices"][0]["speedup"] > 1);

    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    const std::string accept =
        (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    for (const Case& c :
         {Case{{"-s", "tree.sizes=[9]"}, 3, "tree.sizes: expected 2 to 8 nodes"},
          Case{{"-s", "tree.sizes=[5]", "--replay", accept}, 4, "tree-8.json"},
          Case{{"-s", "tree.sizes=[5]", "--svg", "a.svg"}, 3, "drawings need an acceptance vector"},
          Case{{"-s", "tree.sizes=[5]", "-s", "model.path=tiny-16m"},
               4,
               "was recorded at temperature 0.6, this run samples at 0"},
          Case{{"-s", "tree.sizes=[5]", "-s", "model.path=tiny-2m"},
               4,
               "was recorded with the model 'tiny-16m', this run has 'tiny-2m'"}}) {
      CAPTURE(c.says);
      const Outcome refused = search(c.flags);
      CHECK(refused.status == c.status);
      CHECK(refused.err.find(c.says) != std::string::npos);
      CHECK((c.status == 3 || refused.err.find("hint: ") != std::string::npos));
    }
    const std::string bytes = tandem::io::read_file(two);
    std::ofstream(two, std::ios::binary) << bytes.substr(0, bytes.size() - 9);
    CHECK(search({"--replay", two, "-s", "tree.sizes=[5]"}).status == 4);

    // The tool that generates searches by the same rounds.
    const std::string times =
        folder
            .write("times.json",
                   R"({"format": "sequoia-timing/1", "buckets": [{"context": 1024, "target": )"
                   R"({"tokens": [1, 64], "ms": [9, 10]}, "draft": {"tokens": [1], "ms": [1]}}]})")
            .string();
    const auto generate = [&](std::vector<std::string> flags) {
      flags.insert(flags.begin(),
                   {"-r", "sequoia/tiny-16m", "--device", "cpu", "-p", "Once upon a time", "-n",
                    "12", "-s", "tree.path=auto", "-s", "tree.replay=" + one, "-s",
                    "tree.timing=" + times, "-s", "sampling.temperature=0.6"});
      return run_process(program("sequoia-generate"), {.arguments = std::move(flags)});
    };
    const Outcome text = generate({});
    CHECK(text.status == 0);
    CHECK(text.err.find(" tokens per step and ") != std::string::npos);
    for (const auto& [flag, says] :
         {std::pair{"sampling.temperature=1", "was recorded at temperature 0.6"},
          std::pair{"draft.path=tiny-16m", "was recorded with the draft"},
          std::pair{"spec.verify=match", "needs an acceptance rule for sampled tokens"}}) {
      CAPTURE(says);
      const Outcome refused = generate({"-s", flag});
      CHECK(refused.status != 0);
      CHECK(refused.err.find(says) != std::string::npos);
    }
  }

  TEST_CASE("each rule of verification has its own name") {
    for (const auto& [flags, method] :
         {std::pair{std::vector<std::string>{"-s", "sampling.temperature=0"}, "topk-greedy"},
          std::pair{std::vector<std::string>{"-s", "accept.rule=topk"}, "topk-sample"}}) {
      std::vector<std::string> all = {"-p", "Once upon a time", "-n", "20"};
      all.insert(all.end(), flags.begin(), flags.end());
      CHECK(Json::parse(acceptance(all).out)["method"] == method);
    }
  }

  TEST_CASE("the target under another policy has a vector, too") {
    const Outcome run =
        acceptance({"-s", "spec.draft={kind: self, cache: {kind: streaming, recent: 16}}", "-s",
                    "accept.width=4", "-s", "sampling.temperature=0", "-p",
                    "The keeper climbed the stairs and lit the lamp, for the fog had come in from "
                    "the west. He",
                    "-n", "20"});
    CAPTURE(run.err);
    REQUIRE(run.status == 0);
    const auto p = nlohmann::json::parse(run.out).at("p").get<std::vector<double>>();
    CHECK(p.size() == 4);
    CHECK(p[0] > 0.3);
    CHECK(p[0] <= 1);
    CHECK(
        acceptance({"-s", "spec.draft=ngram", "-p", "a"}).err.find("expected kind model or self") !=
        std::string::npos);
  }

  TEST_CASE("what cannot be measured") {
    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    const std::string tree = (tandem::test::source_dir() / "recipes/sequoia/tree-8.json").string();
    for (const Case& c :
         {Case{{}, 2, "expected a prompt, found none"},
          Case{{"-p", "a", "-n", "1"}, 3, "expected at least 2 tokens of the target"},
          Case{{"-p", "a", "-s", "accept.width=0"}, 3, "accept.width"},
          Case{{"-p", "a", "-s", "accept.tree=" + tree, "-s", "accept.width=1"},
               3,
               "accept.width: is 1, but a node of"},
          Case{{"-p", "a", "-s", "accept.tree=" + tree, "-s", "accept.depths=2"},
               3,
               "accept.depths: cannot be combined with accept.tree"},
          Case{{"-p", "a", "-s", "accept.tree=" + tree, "-s", "accept.rule=topk"},
               3,
               "topk does not support accept.tree at a temperature above 0"},
          Case{{"-p", "a", "-s", "accept.record=r"}, 3, "accept.record: needs accept.tree"},
          Case{{"-p", "a", "-s", "bench.drafts=[{name: s, cache: {kind: streaming}}]", "-s",
                "accept.depths=2"},
               3,
               "'s' reads the target's KV cache"},
          Case{{"-p", "a", "-s", "bench.temperatures=[0, 1]", "-s", "sampling.temperature=null"},
               3,
               "measure more with magicdec-acceptance -s accept.width=16"},
          Case{{"-p", "a", "-s", "draft.path=synthetic:llama-68m"}, 4, "has 32000 tokens"}}) {
      CAPTURE(c.says);
      const Outcome run = acceptance(c.flags);
      CHECK(run.status == c.status);
      CHECK(run.out.empty());
      CHECK(run.err.find(c.says) != std::string::npos);
    }
    const Outcome plan = acceptance({"--dry-run", "-s", "run.context=256"});
    CHECK(plan.status == 0);
    CHECK(plan.out.find("tiny-2m weights") != std::string::npos);
  }
}
