#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/probe.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

Outcome sirius_generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-r", "sirius/tiny-16m", "--device", "cpu"});
  return run_process(program("sirius-generate"), {.arguments = std::move(arguments)});
}

/// The summary of a run with --format jsonl.
}  // namespace

TEST_SUITE("cli/sirius-generate") {
  TEST_CASE("by match the text is pig-generate's, and the summary has Sirius' figures") {
    const std::vector<std::string> how = {
        "-s", "model.compute=f32", "-p", "The keeper of the lighthouse", "-n", "40"};
    std::vector<std::string> plain = how, sparse = how;
    plain.insert(plain.begin(), {"-m", "tiny-16m", "--device", "cpu"});
    sparse.insert(sparse.end(), {"-s", "spec.verify=match"});
    const Outcome want = run_process(program("pig-generate"), {.arguments = plain});
    const Outcome got = sirius_generate(sparse);
    CAPTURE(got.err);
    CHECK(got.status == 0);
    CHECK(got.out == want.out);
    CHECK(has(got.err, "\nchannels cats: drafts read 50.0 % of the FFN's"));
    sparse.insert(sparse.end(), {"--format", "jsonl"});
    const Json channels = json_lines(sirius_generate(sparse).out).back()["spec"]["channels"];
    CHECK(channels["policy"] == "cats");
    CHECK(channels["k"] == 8.0);
    CHECK(channels["aal"].get<double>() > 1);
    CHECK(channels["aal"].get<double>() <= 8);
    const double density = channels["density"];
    CHECK(channels["apu"].get<double>() ==
          doctest::Approx((1 + 7 * density) / channels["aal"].get<double>()));
  }

  TEST_CASE("--dry-run tells how the draft reads, and where its lists lie") {
    const Outcome run = sirius_generate({"-p", "a", "--dry-run"});
    CHECK(run.status == 0);
    CHECK(has(run.out, "\ndraft    self, cats channels\n"));
    const Json plan =
        Json::parse(sirius_generate({"-p", "a", "--dry-run", "--format", "jsonl", "-s",
                                     "draft.sparse={kind: griffin, weigh: false}"})
                        .out);
    CHECK(plan["draft_sparse"] == "griffin");
    CHECK(has(plan.dump(), "\"index\""));
  }

  TEST_CASE("bad input is told in a line, with what to do") {
    struct Case {
      std::vector<std::string> flags;
      int status;
      std::string says;
    };
    for (const Case& c : {
             Case{{"-s", "draft.sparse.keep=0"}, 3, "draft.sparse.keep: 0 is out of range"},
             Case{{"-s", "draft.sparse.keep=1.01"}, 3, "draft.sparse.keep: 1.01 is out of range"},
             Case{{"-s", "draft.sparse.keep=-0.5"}, 3, "draft.sparse.keep: -0.5 is out of range"},
             Case{{"-s", "draft.sparse.keep=.nan"}, 3, "draft.sparse.keep"},
             Case{{"-s", "draft.sparse.keep=0.0001"},
                  3,
                  "sparse.keep: is 0.0001, which leaves none of the "},
             Case{{"-s", "draft.sparse.kind=none-such"}, 3, "draft.sparse.kind"},
             Case{{"-s", "draft.sparse.refresh=0.5"},
                  3,
                  "sparse.refresh: is for kind griffin, which keeps what a prompt taught, found "
                  "cats"},
             Case{{"-s", "draft.sparse.kind=griffin"},
                  3,
                  "sparse.weigh: is for kind cats, found griffin"},
             Case{{"-s", "draft.sparse={kind: cats_threshold, weigh: false}"},
                  3,
                  "sparse.thresholds: name the file of kind cats_threshold"},
             Case{
                 {"-s", "draft.sparse={kind: cats_threshold, weigh: false, thresholds: none.json}"},
                 4,
                 "none.json"},
             Case{{"-s", "spec.draft=ngram"},
                  3,
                  "draft.sparse.kind: is cats, which is for a model that drafts for itself"},
             Case{{"-s", "draft.cache={kind: topk}"},
                  3,
                  "draft.cache.kind: is topk, which reads no trees of drafted tokens"},
         }) {
      CAPTURE(c.says);
      std::vector<std::string> flags = c.flags;
      flags.insert(flags.end(), {"-p", "The lamp"});
      check_refused(sirius_generate(flags), c.status, c.says);
    }
  }
}
