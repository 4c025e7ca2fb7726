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
    CHECK(has(got.err, "\nneurons  cats: drafts compute 50.0 % of the FFN,"));
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

  TEST_CASE("beams: by match the same text, of more tokens a round; by a floor others") {
    const auto run = [](const std::string& width, const std::string& verify) {
      return sirius_generate({"-s", "model.compute=f32", "-p", "The keeper of the lighthouse", "-n",
                              "60", "-s", "spec.verify=" + verify, "-s", "spec.width=" + width,
                              "--format", "jsonl"});
    };
    const Outcome chain = run("1", "match"), beams = run("4", "match"), floor = run("4", "floor");
    CAPTURE(beams.err);
    CHECK(beams.status == 0);
    CHECK(floor.status == 0);
    const Json one = json_lines(chain.out).back()["spec"],
               four = json_lines(beams.out).back()["spec"];
    CHECK(four["channels"]["aal"].get<double>() > one["channels"]["aal"].get<double>());
    CHECK(four["drafted"] == 28 * four["rounds"].get<int>());
    CHECK(one["drafted"] == 7 * one["rounds"].get<int>());
    const auto text = [](const Outcome& outcome) {
      std::string all;
      for (const Json& line : json_lines(outcome.out)) all += line.value("text", "");
      return all;
    };
    CHECK(!text(beams).empty());
    CHECK(text(beams) == text(chain));
  }

  TEST_CASE("--dry-run tells how the draft reads, and where its lists lie") {
    const Outcome run = sirius_generate({"-p", "a", "--dry-run"});
    CHECK(run.status == 0);
    CHECK(has(run.out, "\ndraft    self, cats neurons\n"));
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
                  "sparse.keep: is 0.0001 and keeps none of a layer's "},
             Case{{"-s", "draft.sparse.kind=none-such"}, 3, "draft.sparse.kind"},
             Case{{"-s", "draft.sparse.refresh=0.5"},
                  3,
                  "sparse.refresh: needs kind griffin, found cats"},
             Case{{"-s", "draft.sparse.kind=griffin"},
                  3,
                  "sparse.weighted: needs kind cats, found griffin"},
             Case{{"-s", "draft.sparse={kind: cats_threshold, weigh: false}"},
                  3,
                  "sparse.thresholds: kind cats_threshold needs a file"},
             Case{
                 {"-s", "draft.sparse={kind: cats_threshold, weigh: false, thresholds: none.json}"},
                 4,
                 "none.json"},
             Case{{"-s", "spec.draft={kind: ngram, sparse: {kind: cats}}"},
                  3,
                  "spec.draft: kind ngram has no key 'sparse'"},
             Case{{"-s", "spec.width=9"},
                  3,
                  "spec.shape.width: 9 is out of range, expected 2 .. 8 beams"},
             Case{
                 {"-s", "spec.width=4", "-s", "sampling.temperature=0.5"},
                 3,
                 "spec.shape.kind: beams do not support sampling, but sampling.temperature is 0.5; "
                 "set sampling.temperature=0"},
             Case{{"-s", "spec.width=4", "-s", "spec.verify=block"},
                  3,
                  "spec.verify: block needs sampled draft tokens, but beams do not sample"},
             Case{{"-s", "spec.shape={kind: beams, path: a.json}"},
                  3,
                  "spec.shape: kind beams has no key 'path'"},
             Case{{"-s", "spec.width=4", "-s", "spec.gamma=auto"},
                  3,
                  "spec.shape.gamma: auto does not support beams"},
             Case{{"-s", "spec.width=8", "-s", "spec.gamma=128"},
                  3,
                  "spec.shape.width: 8 beams of 128 tokens make 1025 nodes with the root, but at "
                  "most "
                  "1024"},
             Case{{"-s", "draft.cache={kind: topk}"},
                  3,
                  "draft.cache.kind: is topk, which does not support trees of draft tokens"},
         }) {
      CAPTURE(c.says);
      std::vector<std::string> flags = c.flags;
      flags.insert(flags.end(), {"-p", "The lamp"});
      check_refused(sirius_generate(flags), c.status, c.says);
    }
  }
}
