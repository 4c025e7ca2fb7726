// Ranks that speculate: texts are those of one process that does not.
#include <nlohmann/json.hpp>

#include "cli/rank_runs.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

const Words kPrompt = {"-p", "The keeper of the lighthouse", "-n", "24"};
const Words kExact = {"--device", "cpu", "-s", "model.compute=f32", "-s", "run.threads=1", "-q"};

struct Way {
  std::string tool;
  Words words;
  int ranks = 2;
};

std::string plain_text() {
  const Outcome run = run_process(program("pig-generate"),
                                  {.arguments = Words{"-m", "tiny-16m"} + kPrompt + kExact});
  REQUIRE(run.status == 0);
  return run.out;
}

}  // namespace

TEST_SUITE("cli/rank_speculation") {
  TEST_CASE("greedy texts are those of one process without speculation") {
    const std::string want = plain_text();
    // The draft of tiny-16m, tiny-2m, has 3 query heads: two ranks have all of its layers.
    for (const Way& way : std::vector<Way>{
             {"sequoia-generate", {"-r", "sequoia/tiny-16m"}},
             {"sequoia-generate", {"-r", "sequoia/tiny-16m"}, 3},
             {"sequoia-generate", {"-r", "sequoia/self-tiny-16m"}},
             {"sequoia-generate",
              {"-r", "sequoia/tiny-16m", "-s", "tree.path=", "-s", "spec.gamma=auto"}},
             {"sequoia-generate", {"-m", "tiny-16m", "-s", "spec.draft=ngram"}},
             {"triforce-generate", {"-r", "triforce/tiny-16m"}},
             {"triforce-generate", {"-r", "triforce/tiny-16m", "-s", "spec.draft=auto"}},
             {"sirius-generate", {"-r", "sirius/tiny-16m", "-s", "spec.verify=match"}}}) {
      CAPTURE(way.tool);
      CAPTURE(fmt::format("{}", fmt::join(way.words, " ")));
      const auto all = run_ranks(way.ranks, way.words + kPrompt + kExact, {.tool = way.tool});
      CAPTURE(all[0].err);
      CHECK(all[0].out == want);
      for (const Outcome& o : all) CHECK(o.status == 0);
    }
  }

  TEST_CASE("sampled texts have the target's distribution, by rules that accept and by match") {
    for (const char* rule : {"auto", "match"}) {
      CAPTURE(rule);
      const auto all =
          run_ranks(2,
                    kExact + Words{"-r", "sequoia/tiny-16m", "-s", "eval.n_prompts=4", "-s",
                                   "eval.texts=300", "-s", "eval.temperatures=[1]", "-n", "16",
                                   "-s", fmt::format("spec.verify={}", rule)},
                    {.tool = "spec-check"});
      CAPTURE(all[0].err);
      CHECK(all[0].status == 0);
      CHECK(all[1].status == 0);
      CHECK(has(all[0].out, "greedy texts equal the target's"));
      CHECK_FALSE(has(all[0].out, "FAIL"));
      CHECK(all[1].out.empty());
    }
  }

  TEST_CASE("a benchmark's records are rank 0's, and go on from its file") {
    const TemporaryFolder folder;
    const std::string file = (folder / "r.jsonl").string();
    const Words bench = {"-m",
                         "tiny-16m",
                         "--device",
                         "cpu",
                         "-s",
                         "run.threads=1",
                         "-s",
                         "run.context=200",
                         "-s",
                         "spec.gamma=[1,3,auto]",
                         "-s",
                         "bench={new_tokens: 12, batches: 2, warm_ups: 0, drafts: [{name: s64, "
                         "budget: 64}, {name: small, kind: model, path: tiny-2m}, {name: lookup, "
                         "kind: ngram}]}",
                         "-o",
                         file};
    const auto all = run_ranks(2, bench, {.tool = "magicdec-bench"});
    CAPTURE(all[0].err);
    REQUIRE(all[0].status == 0);
    CHECK(all[1].status == 0);
    const auto records = json_lines(file_text(file));
    CHECK(records.size() == 10);  // plain, and each draft at each gamma
    for (const Json& record : records) CHECK(record["workload"]["ranks"] == 2);
    const auto again = run_ranks(2, bench + Words{"--resume"}, {.tool = "magicdec-bench"});
    CHECK(again[0].status == 0);
    CHECK(json_lines(file_text(file)).size() == records.size());
  }
}
