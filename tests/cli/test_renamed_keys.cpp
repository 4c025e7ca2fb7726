// Keys and values of recipe version 1, which every tool reads.
#include <doctest/doctest.h>

#include <algorithm>

#include "cli/probe.h"
#include "recipe/upgrade.h"

using namespace tandem::testing;
using Json = nlohmann::json;

namespace {

/// A setting of a renamed key, or of one with a renamed value; @ stands for what has another name.
struct Spelled {
  std::string key, tool, recipe, setting;
};

const Spelled kSpelled[] = {
    {"spec.most_gamma", "magicdec-bench", "magicdec/tiny-16m", "spec.@=9"},
    {"spec.rounds", "sequoia-bench", "triforce/bench-tiny-16m", "spec.@=[7]"},
    {"spec.verify_within", "magicdec-bench", "triforce/bench-tiny-16m", "spec.@=match"},
    {"spec.draft.rounds", "triforce-generate", "triforce/tiny-16m", "spec.draft.@=2"},
    {"spec.draft.verify", "spec-check", "triforce/tiny-16m", "spec.draft.@=match"},
    {"spec.draft.sparse.weigh", "sirius-generate", "sirius/tiny-16m", "spec.draft.sparse.@=false"},
    {"bench.drafts.sparse.weigh", "magicdec-bench", "magicdec/tiny-16m",
     "bench.drafts=[{name: a, kind: self, cache: {kind: full}, sparse: {kind: cats, @: true}}]"},
    {"bench.rounds", "magicdec-acceptance", "magicdec/acceptance-tiny-16m", "bench.@=false"},
    {"bench.predict", "magicdec-bench", "sequoia/bench-llama-2-13b-offload", "bench.predict=@"},
    {"bench.hardware.round", "magicdec-bench", "magicdec/tiny-16m", "bench.hardware.@=1ms"},
    {"bench.hardware.reduction", "magicdec-bench", "magicdec/tiny-16m", "bench.hardware.@=2ms"},
    {"eval.policies.sparse.weigh", "pig-eval", "sirius/eval-ppl-tiny-16m",
     "eval.policies=[{name: a, sparse: {kind: cats, @: true}}]"},
    {"eval.channels", "pig-eval", "pig/eval-smollm2", "eval.@={path: t.json, keep: 0.25}"},
    {"eval.own", "pig-eval", "pig/eval-smollm2", "eval.@.match=contains"},
    {"eval.sets.own", "pig-eval", "pig/eval-smollm2",
     "eval.sets={template: custom, @: {prompt: '{instruction}'}}"},
    {"eval.sets.template", "pig-eval", "pig/eval-smollm2",
     "eval.sets={template: @, custom: {prompt: '{instruction}'}}"},
    {"eval.from", "s2ft-train", "s2ft/tiny-16m", "eval.@=0.25"},
    {"eval.gap", "spec-check", "sequoia/tiny-16m", "eval.@=0.5"},
    {"data.own", "s2ft-train", "s2ft/tiny-16m",
     "data={template: custom, @: {prompt: '{instruction}'}}"},
    {"data.template", "s2ft-train", "s2ft/tiny-16m",
     "data={template: @, custom: {prompt: '{instruction}'}}"},
    {"train.keep", "s2ft-train", "s2ft/tiny-16m", "train.@=7"},
    {"output.dtype", "s2ft-adapter", "s2ft/merge-tiny-16m", "output.@=f32"},
};

Outcome run(const std::string& tool, std::vector<std::string> arguments) {
  return run_process(program(tool.c_str()), {.arguments = std::move(arguments)});
}

std::string filled(const std::string& setting, std::string_view word) {
  std::string text = setting;
  return text.replace(text.find('@'), 1, word);
}

std::string last_part(std::string_view key) { return std::string(key.substr(key.rfind('.') + 1)); }

}  // namespace

TEST_SUITE("cli/renamed-keys") {
  TEST_CASE("each old key and value gives the recipe of the present one, with a note") {
    CHECK(std::size(kSpelled) == tandem::recipe::renamed_keys().size());
    for (const tandem::recipe::RenamedKey& row : tandem::recipe::renamed_keys()) {
      CAPTURE(row.old);
      const auto found = std::ranges::find(kSpelled, row.old, &Spelled::key);
      REQUIRE(found != std::end(kSpelled));
      const auto printed = [&](std::string_view word) {
        return run(found->tool, {"-r", found->recipe, "-o", "out", "-s",
                                 filled(found->setting, word), "--print-recipe"});
      };
      const bool is_value = !row.value.empty();
      const Outcome old = printed(is_value ? row.value : last_part(row.old));
      const Outcome now = printed(is_value ? row.present : last_part(row.now));
      CHECK(now.status == 0);
      CHECK(now.err == "");
      CHECK(old.out == now.out);
      CHECK(has(now.out, "# --set #1"));
    }
  }

  TEST_CASE("old spellings in files, lists and sweeps: rewritten in place, refused in version 2") {
    const TemporaryFolder folder;
    const std::string text =
        "# A bench.\nkind: bench\n# Sizes.\nmodel: {path: tiny-16m}\n"
        "spec: {most_gamma: 9, rounds: [3]}  # deep\n"
        "bench:\n  predict: beside  # or no\n  drafts:\n"
        "    - {name: a, kind: self, cache: {kind: full}, sparse: {kind: cats, weigh: true}}\n"
        "sweep:\n  spec.verify_within: [match, auto]\n  bench: {predict: [beside, no]}\n";
    const std::string file = folder.write("old.yaml", text).string();
    const Outcome upgraded = run("magicdec-bench", {"--upgrade-recipe", file});
    CHECK(upgraded.out ==
          "# A bench.\nkind: bench\nversion: 2\n# Sizes.\nmodel: {path: tiny-16m}\n"
          "spec: {max_gamma: 9, inner_steps: [3]}  # deep\n"
          "bench:\n  predict: also  # or no\n  drafts:\n"
          "    - {name: a, kind: self, cache: {kind: full}, sparse: {kind: cats, weighted: true}}\n"
          "sweep:\n  spec.inner_verify: [match, auto]\n  bench: {predict: [also, no]}\n");
    const auto printed = [&](const std::string& name, std::vector<std::string> more) {
      more.insert(more.end(), {"-r", name, "--print-recipe=diff"});
      const Outcome out = run("magicdec-bench", more);
      CHECK(out.err == "");
      std::string plain = out.out;
      for (size_t at = 0; (at = plain.find(" #", at)) != std::string::npos;)
        plain.erase(at, plain.find('\n', at) - at);
      return plain;
    };
    const std::string now = folder.write("now.yaml", upgraded.out).string();
    CHECK(printed(file, {}) == printed(now, {}));
    CHECK(has(printed(file, {}), "\n  spec.inner_verify: [match, auto]\n"));
    CHECK(printed(now, {"--sweep", "spec.most_gamma=1-3"}) ==
          printed(now, {"--sweep", "spec.max_gamma=1-3"}));
    CHECK(run("magicdec-bench", {"--upgrade-recipe", now}).out == upgraded.out);

    const Outcome checked = run("magicdec-bench", {"-r", file, "--check"});
    CHECK(checked.status == 0);
    CHECK(has(checked.err,
              "keys have new names: spec.most_gamma -> spec.max_gamma, spec.rounds -> "
              "spec.inner_steps, "));
    const std::string mixed =
        folder.write("mixed.yaml", "version: 2\nspec:\n  most_gamma: 9\n").string();
    const Outcome refused = run("magicdec-bench", {"-r", mixed, "--check"});
    CHECK(refused.status == 3);
    CHECK(has(refused.err, mixed + ":3:3: expected keys of recipe version 2, found "
                                   "'spec.most_gamma'"));
    CHECK(has(refused.err, "write spec.max_gamma, or remove version and run"));
    const std::string both =
        folder.write("both.yaml", "spec: {most_gamma: 9, max_gamma: 8}\n").string();
    CHECK(has(run("magicdec-bench", {"-r", both, "--check"}).err, "set only one of them"));
  }

  TEST_CASE("sweeps over keys that have moved, and keys under both names") {
    const Outcome moved =
        run("sequoia-tree-search", {"--measure", "-m", "tiny-16m", "--sweep",
                                    "draft.path=tiny-2m,tiny-16m", "--print-recipe=diff"});
    CHECK(moved.status == 0);
    CHECK(has(moved.out, "spec.draft.path: [tiny-2m, tiny-16m]"));
    const Outcome drafts = run("magicdec-bench", {"-m", "tiny-16m", "--sweep",
                                                  "bench.drafts=[{name: a, keys: snapkv}],"
                                                  "[{name: b, kind: ngram, ngram: 5}]",
                                                  "--print-recipe=diff"});
    CHECK(drafts.status == 0);
    CHECK(has(drafts.out, "cache: {kind: snapkv}, budget: 512"));
    CHECK(has(drafts.out, "longest: 5"));
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& text, const std::string& says) {
      const Outcome out =
          run("sequoia-acceptance", {"-r", folder.write("both.yaml", text).string(), "--check"});
      CAPTURE(out.err);
      CHECK(out.status == 3);
      CHECK(has(out.err, says));
    };
    refused("draft: {path: tiny-2m}\nspec: {draft: {path: tiny-16m}}\n",
            "draft.path is the older name of spec.draft.path\n  hint: set only one of them");
    refused("draft: {path: tiny-2m, sparse: {kind: cats}}\n", "kind model has no key 'sparse'");
  }

  TEST_CASE("runs that 037eef9 began go on by present keys: what is done is not done again") {
    const TemporaryFolder folder;
    const std::filesystem::path begun = tandem::test::source_dir() / "tests/data/version-1";
    std::filesystem::copy(begun, folder.path(), std::filesystem::copy_options::recursive);
    const auto go_on = [&](const std::string& tool, const std::string& output,
                           std::vector<std::string> settings) {
      std::vector<std::string> words = {"-m",       "tiny-2m", "--device",
                                        "cpu",      "-t",      "1",
                                        "--resume", "-o",      (folder / output).string()};
      for (std::string& setting : settings) {
        if (!setting.starts_with("-")) words.emplace_back("-s");
        words.push_back(std::move(setting));
      }
      const Outcome done = run(tool, words);
      CAPTURE(done.err);
      CHECK(done.status == 0);
      return done;
    };
    const std::string gates = "sparse: {kind: cats, weighted: true}";
    const auto points = [&](const std::string& file) {
      const std::string before = file_text(begun / file), after = file_text(folder / file);
      REQUIRE(after.starts_with(before));
      std::vector<std::string> ids;
      for (const Json& record : json_lines(after.substr(before.size())))
        ids.push_back(record["point"]);
      return ids;
    };
    const std::vector<std::string> bench = {"run.context=64",        "bench.new_tokens=4",
                                            "bench.min_runs=1",      "bench.min_time=0.01s",
                                            "bench.phases=[decode]", "cache.kind=streaming",
                                            "--sweep=run.batch=1,2"};
    go_on("pig-bench", "bench.jsonl", bench);
    CHECK(points("bench.jsonl").size() == 1);

    const std::vector<std::string> spec = {
        "run.context=64",
        "run.batch=1",
        "bench.batches=1",
        "bench.warm_ups=0",
        "bench.new_tokens=8",
        "bench.drafts=[{name: gates, kind: self, cache: {kind: full}, " + gates + "}]",
        "spec.gamma=[2]",
        "spec.max_gamma=4",
        "bench.hardware.step=1ms",
        "bench.predict=no",
        "--sweep=spec.inner_verify=auto,match"};
    go_on("magicdec-bench", "spec.jsonl", spec);
    const std::vector<std::string> fresh = points("spec.jsonl");
    CHECK(fresh.size() == 2);  // plain decoding and the draft
    const Json old = json_lines(file_text(begun / "spec.jsonl")).front();
    CHECK(std::ranges::count(fresh, old["point"].get<std::string>()) == 0);
    // Tables and fields name points of both versions by present keys.
    const Outcome table =
        run("magicdec-bench", {"--from", (folder / "spec.jsonl").string(), "--format", "csv"});
    CHECK(has(table.out, "spec.inner_verify"));
    CHECK_FALSE(has(table.out, "verify_within"));

    // Of the commit before acceptance vectors joined the recipe: its keys take their defaults.
    go_on(
        "magicdec-acceptance", "acceptance.jsonl",
        {"run.context=64", "run.batch=1", "bench.new_tokens=8", "bench.speculate=false",
         "bench.temperatures=[0]", "bench.drafts=[{name: s, cache: {kind: streaming}, budget: 32}]",
         "--sweep=spec.gamma=2,3"});
    CHECK(points("acceptance.jsonl").size() == 1);

    const std::vector<std::string> eval = {
        "eval.tasks=[needle1]", "eval.lengths=[160]", "eval.cases=4",
        "eval.policies=[{name: gates, " + gates + "}]", "eval.neurons.keep=0.25"};
    go_on("pig-eval", "eval.jsonl", eval);
    CHECK(file_text(folder / "eval.jsonl").starts_with(file_text(begun / "eval.jsonl")));
    CHECK(json_lines(file_text(folder / "eval.jsonl")).size() == 5);
    std::vector<std::string> other = eval;
    other.back() = "eval.neurons.keep=0.3";
    std::vector<std::string> words = {"-m", "tiny-2m", "--resume", "-o",
                                      (folder / "eval.jsonl").string()};
    for (const std::string& setting : other) words.insert(words.end(), {"-s", setting});
    check_refused(run("pig-eval", words), 3, "keys that differ: eval.neurons.keep");

    const std::string data = "data={path: \"" + (folder / "train.jsonl").string() +
                             "\", template: custom, custom: {prompt: 'Q: {instruction} A:'}}";
    std::vector<std::string> train = {data,
                                      "train.max_tokens=32",
                                      "train.batch=2",
                                      "train.steps=4",
                                      "train.save_every=2",
                                      "train.keep_checkpoints=9",
                                      "train.optimizer.lr=0.001",
                                      "train.select.ratios={o: 0, d: 0.004}"};
    go_on("s2ft-train", "run", train);
    const auto steps = json_lines(file_text(folder / "run/metrics.jsonl"));
    CHECK(file_text(folder / "run/metrics.jsonl")
              .starts_with(file_text(begun / "run/metrics.jsonl")));
    CHECK(steps.back()["step"] == 4);
    CHECK(std::filesystem::exists(folder / "run/adapter"));
  }
}
