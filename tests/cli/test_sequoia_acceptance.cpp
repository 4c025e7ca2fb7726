#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/probe.h"
#include "io/file.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome acceptance(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-r", "sequoia/acceptance-tiny-16m", "--device", "cpu"});
  return run_process(TANDEM_SEQUOIA_ACCEPTANCE, {.arguments = std::move(arguments)});
}

}  // namespace

TEST_SUITE("cli/sequoia-acceptance") {
  TEST_CASE("a vector that the tree search reads, the same on every run") {
    const TemporaryFolder folder;
    const std::string path = (folder / "accept.json").string();
    const std::vector<std::string> flags = {"-p", "Once upon a time", "-n", "60", "-s",
                                            "accept.width=4"};
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

    std::vector<std::string> to_file = flags;
    to_file.insert(to_file.end(), {"-o", path});
    CHECK(acceptance(to_file).out.empty());
    CHECK(tandem::io::read_file(path) == run.out);
    const Outcome tree = run_process(TANDEM_SEQUOIA_TREE_SEARCH,
                                     {.arguments = {"--accept", path, "-s", "tree.sizes=[4]"}});
    CHECK(tree.status == 0);
  }

  TEST_CASE("rows by depth, which the tree search reads") {
    const TemporaryFolder folder;
    const std::string path = (folder / "accept.json").string();
    const Outcome run = acceptance({"-p", "Once upon a time", "-n", "80", "-s", "accept.width=3", "-s",
                                    "accept.depths=3", "-o", path});
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
    const Outcome tree = run_process(TANDEM_SEQUOIA_TREE_SEARCH,
                                     {.arguments = {"--accept", path, "-s", "tree.sizes=[4]"}});
    CHECK(tree.status == 0);
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

  TEST_CASE("what cannot be measured") {
    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    for (const Case& c :
         {Case{{}, 2, "nothing to continue"},
          Case{{"-p", "a", "-n", "1"}, 3, "the target must write 2 tokens at least"},
          Case{{"-p", "a", "-s", "accept.width=0"}, 3, "accept.width"},
          Case{{"-p", "a", "-s", "draft.path=synthetic:llama-68m"}, 4, "has 32000 tokens"}}) {
      CAPTURE(c.says);
      const Outcome run = acceptance(c.flags);
      CHECK(run.status == c.status);
      CHECK(run.out.empty());
      CHECK(run.err.find(c.says) != std::string::npos);
    }
    const Outcome plan = acceptance({"--dry-run", "-s", "run.context=256"});
    CHECK(plan.status == 0);
    CHECK(plan.out.find("draft weights") != std::string::npos);
  }
}
