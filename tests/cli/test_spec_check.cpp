#include <doctest/doctest.h>

#include "cli/probe.h"

using namespace tandem::testing;

namespace {

Outcome spec_check(const Words& more) {
  return command(
      "spec-check --device cpu -s eval.n_prompts=4 -s eval.texts=300 -n 16 -s model.compute=f32" +
      more);
}

/// Checks with too few texts to find a wrong distribution: for what a result says and its form.
Outcome brief_check(const Words& more) {
  return spec_check("-s eval.texts=100 -s eval.text_tokens=10 -s eval.temperatures=[1]" + more);
}

/// The result of a check that passes.
Json lossless(const Outcome& run) {
  CAPTURE(run.err);
  CHECK(run.status == 0);
  const Json j = Json::parse(run.out);
  CHECK(j["lossless"] == true);
  return j;
}

}  // namespace

TEST_SUITE("cli/spec-check") {
  TEST_CASE("a tree of drawn children is lossless: greedy texts and distributions") {
    const Outcome run = spec_check("-r sequoia/tiny-16m");
    CHECK(run.status == 0);
    CHECK(has(run.out, "greedy texts equal the target's"));
    CHECK(has(run.out, "4 of 4 texts equal, 64 tokens"));
    CHECK(has(run.out, "distribution of neighbours"));
    CHECK(has(run.out, "tokens that the draft prefers"));
    CHECK_FALSE(has(run.out, "FAIL"));
    CHECK(has(run.err, "draft tokens accepted"));
  }

  TEST_CASE("the checks are a table, or a line of numbers each") {
    const Outcome md = brief_check("-r sequoia/tiny-16m --format md");
    CHECK(md.status == 0);
    CHECK(has(md.out, "| check "));
    CHECK(has(md.out, "| pass "));
    const Outcome csv = brief_check("-r sequoia/tiny-16m --format csv");
    CHECK(csv.out.starts_with("check,temperature,texts,passed,"));
    CHECK(has(csv.out, "\ngreedy texts equal the target's,0,4,1,"));
    CHECK(std::ranges::count(csv.out, '\n') >= 3);
    CHECK_FALSE(has(csv.out, "pass,"));
  }

  TEST_CASE("every rule of verification is lossless") {
    for (const auto& [rule, how] :
         {std::pair{"match", "-s eval.temperatures=[1]"},
          {"sequoia", "-s eval.temperatures=[0.6]"},
          {"traversal", "-s sampling.top_p=0.9 -s eval.temperatures=[1]"},
          {"block", "-s tree.path= -s spec.gamma=3 -s eval.temperatures=[0.6]"}}) {
      CAPTURE(rule);
      CHECK(lossless(spec_check("-r sequoia/tiny-16m --json -s spec.verify=" + std::string(rule) +
                                Words(how)))["verify"] == rule);
    }
  }

  TEST_CASE("a rule with a floor is lossy: its agreement, and exit status 7") {
    for (const std::string rule : {"floor", "floor_or_argmax", "typical"}) {
      CAPTURE(rule);
      const Outcome run = brief_check("-r sequoia/tiny-16m --json -s spec.verify=" + rule);
      CHECK(run.status == 7);
      const Json j = Json::parse(run.out);
      CHECK(j["lossless"] == false);
      CHECK(j["lossy"] == true);
      CHECK(j["verify"] == rule);
      double agreement = -1;
      for (const Json& check : j["checks"]) agreement = check.value("agreement", agreement);
      CHECK(agreement > 0.5);
      CHECK(agreement < 1);
    }
    // Nothing passes: the texts are the target's, but the rule stays what it is.
    const Outcome run = brief_check("-r sequoia/tiny-16m -s spec.verify=floor -s spec.floor=1.1");
    CHECK(run.status == 7);
    CHECK(has(run.out, "floor is lossy: 100.00 % of greedy tokens are the target's"));
    check_refusals(
        "spec-check --device cpu -r sequoia/tiny-16m",
        {{"-s spec.floor=-0.1", 3, "spec.floor: -0.1 is out of range"},
         {"-s spec.floor=.nan", 3, "spec.floor"},
         {"-s spec.score_temperature=0", 3, "spec.score_temperature: 0 is out of range"},
         {"-s spec.width=2", 3, "spec.shape.kind: texts are sampled, which beams do not support"},
         {"-s tree.path=auto", 3, "expected the tree to check"},
         {"-s cache.kind=topk", 3,
          "cache.kind: is topk, which does not support trees of draft tokens\n  hint: choose "
          "full,"}});
    check_refusals(
        "spec-check --device cpu -r triforce/tiny-16m",
        {{"-s spec.verify_within=floor", 3,
          "spec.draft.inner_verify: floor is not supported, because outer steps"},
         {"-s spec.draft=auto", 3,
          "spec.draft: expected the kind to check, found auto, which chooses by times"}});
  }

  TEST_CASE("a target that drafts for itself under a window: chains and trees, batches") {
    for (const char* shape :
         {"-s eval.temperatures=[0.6] -s tree.path= -s spec.gamma=3", "-s eval.temperatures=[1]"}) {
      const Json j = lossless(spec_check(
          "-r sequoia/tiny-16m -s draft.path= -s spec.draft=self -s draft.cache.kind=streaming -s "
          "draft.cache.sinks=2 -s draft.cache.recent=6 --json" +
          Words(shape)));
      CHECK(j["drafter"] == "self");
      CHECK(j["checks"][0]["texts_equal"] == 4);
    }
  }

  TEST_CASE("a target that chooses its keys: the text of plain decoding under that policy") {
    std::string text = "The keeper of the lighthouse wrote: ";
    for (int i = 0; i < 12; ++i) text += "wind from the north, lamp lit at dusk; ";
    for (const std::string kind : {"lsh", "hybrid"}) {
      CAPTURE(kind);
      const Json j = lossless(spec_check(
          "-r sequoia/tiny-16m --json -s cache.recent=8 -s cache.sinks=2 -s eval.temperatures=[1] "
          "-s cache.dense_layers=[0] -s 'cache.lsh={bits: 6, tables: 30}' -s cache.kind=" +
          kind + Words{"-p", text}));
      CHECK(j["cache"]["kind"] == kind);
      CHECK(j["checks"][0]["texts_equal"] == 1);
    }
  }

  TEST_CASE("as JSON, at the recipe's own temperature") {
    const Json j = lossless(
        spec_check("-r sequoia/tiny-16m -s sampling.temperature=0.7 -s sampling.top_p=0.9 --json"));
    CHECK(j["compute"] == "f32");
    CHECK(j["drafter"] == "tiny-2m");
    CHECK(j["differences"].empty());
    // Greedy, single tokens, neighbours, and four tests of the tokens that steps keep.
    CHECK(j["checks"].size() == 7);
    CHECK(j["checks"][0]["texts_equal"] == 4);
    for (size_t i = 1; i < 7; ++i) {
      CHECK(j["checks"][i]["temperature"] == (i < 3 ? Json(0.7) : Json()));
      CHECK(j["checks"][i]["p"].get<double>() >= j["checks"][i]["p_allowed"].get<double>());
    }
    const Json record = Json::parse(brief_check("-r sequoia/tiny-16m --format jsonl").out);
    CHECK(record["schema"] == "tandem.result/1");
    CHECK(record["status"] == "ok");
    CHECK(record["quality"]["lossless"] == true);
    CHECK(record["quality"]["status"] == "proved");
    CHECK(record["quality"]["levels"][0]["refused"] >= 200);
  }

  TEST_CASE("a run that never refuses proves nothing: its message, its remedy, exit status 7") {
    // The prompt is shorter than the budget, so the target's second policy reads everything.
    const Outcome run =
        brief_check("-r triforce/tiny-16m -p 'The keeper of the lighthouse' --format jsonl");
    CHECK(run.status == 7);
    CHECK(has(run.err, "warning: inconclusive: in sampled texts speculation refused 0 of "));
    CHECK(has(run.err,
              "expected at least 200; raise eval.texts, name prompts longer than the "
              "budget of spec.draft.cache, or lower that budget"));
    const Json record = Json::parse(run.out);
    CHECK(record["status"] == "inconclusive");
    const Json& quality = record["quality"];
    CHECK(quality["status"] == "inconclusive");
    CHECK(quality["lossless"].is_null());
    CHECK(quality["levels"][0]["refused"] == 0);
    CHECK(quality["levels"][1]["refused"] >= 200);
    CHECK(quality["lowered"].empty());
    const Outcome short_texts =
        brief_check("-r sequoia/tiny-16m -s eval.text_tokens=2 -s eval.texts=300");
    CHECK(short_texts.status == 7);
    CHECK(has(short_texts.err, "steps a text, expected at least 3; raise eval.text_tokens"));
  }

  TEST_CASE("budgets are lowered for built-in prompts, so that every level refuses") {
    for (const char* flags : {"-r triforce/tiny-16m", "-r sequoia/self-tiny-16m",
                              "-r sequoia/self-tiny-16m -s 'draft.cache={kind: snapkv}'"}) {
      CAPTURE(flags);
      const Json j =
          lossless(brief_check("--json -s eval.texts=300 -s eval.text_tokens=16" + Words(flags)));
      CHECK_FALSE(j["lowered"].empty());
      for (const Json& level : j["levels"]) {
        CHECK(level["refused"] >= 200);
        CHECK(level["accepted"] >= 200);
      }
    }
  }

  TEST_CASE("a check that fails: exit status 7, the verdict in the table, the result written") {
    // The distributions are equal, so p is uniform in [0, 1]. Limits of all tests add up to 1, so
    // about half of the runs fail.
    Outcome run;
    for (int seed = 0; seed < 20 && run.status == 0; ++seed)
      run = brief_check("-r sequoia/tiny-16m -s eval.significance=1 -s run.seed=" +
                        std::to_string(seed));
    CHECK(run.status == 7);
    CHECK(has(run.out, "p >= 0.12"));
    CHECK(has(run.out, "FAIL"));
    CHECK_FALSE(has(run.err, "error"));  // a result, not a mishap
  }

  TEST_CASE("distributions are compared after all prompts that leave 40 texts each") {
    const auto prompts_of = [](const Words& flags) {
      const Outcome run = brief_check("-r sequoia/tiny-16m --json -s eval.texts=125" + flags);
      CHECK(run.status == 0);
      const Json check = Json::parse(run.out)["checks"][1];
      CHECK(check["degrees"].get<int>() <= check["cells"].get<int>() - check["prompts"].get<int>());
      return std::pair(check["prompts"].get<int>(), check["texts"].get<int>());
    };
    CHECK(prompts_of("-s eval.n_prompts=2") == std::pair(2, 124));
    CHECK(prompts_of({}) == std::pair(3, 123));  // of 4
    CHECK(prompts_of("-p 'The keeper'") == std::pair(1, 125));
  }

  TEST_CASE("ngram: sampled texts are compared token by token too") {
    const Outcome run = brief_check(
        "-m tiny-16m -s spec.draft=ngram -p 'tick tock tick tock tick' --json -s eval.texts=1000");
    CHECK(run.status == 0);
    const Json j = Json::parse(run.out);
    CHECK(j["checks"][1]["check"] == "sampled texts equal the target's");
    CHECK(j["checks"][1]["texts_equal"] == 1);
  }

  TEST_CASE("rounds within rounds; texts that fork a prompt beyond the retrieval's budget") {
    for (const char* flags :
         {"-s draft.cache.retrieval.budget=64", "-s draft.cache.retrieval.budget=256",
          "-s draft.cache.retrieval.budget=64 -s spec.within=ngram -s "
          "draft2.path= -s spec.gamma1=3"}) {
      CAPTURE(flags);
      lossless(spec_check("-r triforce/tiny-16m -s eval.texts=250 -s eval.temperatures=[1] --json" +
                          Words{"-p", logbook().substr(0, 2400)} + flags));
    }
  }

  TEST_CASE("a plan tells the texts") {
    const Outcome plan = spec_check("-r sequoia/tiny-16m --dry-run");
    CHECK(plan.status == 0);
    CHECK(has(plan.out,
              "texts    4 greedy, 300 sampled of 16 tokens at each of 2 temperatures, "
              "after 4 prompts"));
  }
}
