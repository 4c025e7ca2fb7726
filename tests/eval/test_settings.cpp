#include <doctest/doctest.h>

#include "eval/settings.h"
#include "recipe/fields_of.h"
#include "recipe/load.h"

using namespace tandem;
using eval::NamedPolicy;
using eval::Settings;

namespace {

struct Recipe {
  Settings eval;
  template <class V>
  void fields(V& v) {
    v("eval", eval, "what is judged");
  }
};

recipe::Node parse(const std::string& text) {
  return recipe::parse_yaml(text, {.name = std::make_shared<const std::string>("r.yaml"),
                                   .folder = {},
                                   .line = 1,
                                   .column = 1});
}

Settings read(const std::string& text) {
  Recipe r;
  recipe::Field fields = recipe::fields_of(r);
  recipe::read_fields(fields, parse(text));
  return r.eval;
}

/// One line for each.
std::string problems(const std::string& text) {
  try {
    read(text);
  } catch (const recipe::InvalidRecipe& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_SUITE("eval/settings") {
  TEST_CASE("policies are read in their order, after full attention") {
    const Settings s = read(
        "eval:\n  tasks: [vt, perplexity]\n  policies:\n"
        "    - {name: near, kind: streaming, recent: 1Ki}\n"
        "    - {name: paper, kind: streaming, sinks: 8, reposition: true}\n");
    const auto all = s.all_policies();
    REQUIRE(all.size() == 3);
    CHECK(all[0].name == "full");
    CHECK(all[0].cache.kind == recipe::CacheKind::full);
    CHECK(all[1].name == "near");
    CHECK(all[1].cache.recent.value == 1024);
    CHECK(all[1].cache.sinks.value == 4);
    CHECK(all[2].cache.sinks.value == 8);
    CHECK(all[2].cache.reposition);
    CHECK(s.questions() == std::vector{eval::Task::vt});
    CHECK(s.perplexity());
  }

  TEST_CASE("mistakes inside a policy are reported where they stand") {
    const std::string before = "eval:\n  tasks: [vt]\n  policies:\n    - {name: a}\n";
    CHECK(problems(before + "    - {name: b, recnt: 9, recent: 0}\n") ==
          "r.yaml:5:17: unknown key 'recnt'\n"
          "r.yaml:5:35: recent: 0 is out of range, expected 1 .. 268435456 tokens");
    CHECK(problems(before + "    - {kind: full}\n") == "r.yaml:5:7: name is not set");
    CHECK(problems("eval: {tasks: [vt], policies: [near]}") ==
          "r.yaml:1:31: eval.policies: expected policies such as {name: near, kind: streaming}, "
          "found 'near'");
  }

  TEST_CASE("tasks, names and lists are checked") {
    CHECK(problems("eval: {tasks: [vt, neddle]}") ==
          "r.yaml:1:15: eval.tasks: unknown task 'neddle'; expected one of needle1, needle8, kv, "
          "vt, cwe, fwe, qa, perplexity, attention, channels, commonsense, arithmetic, boolq, "
          "piqa, siqa, hellaswag, winogrande, arc_e, arc_c, obqa, multiarith, gsm8k, addsub, aqua, "
          "singleeq, svamp, mawps, or a file of questions NAME.jsonl");
    CHECK(problems("eval: {tasks: []}").find("eval.") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt, vt]}").find("eval.") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt], lengths: [100, 100]}").find("eval.") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt], protocols: []}").find("eval.") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt], protocols: [dence]}").find("eval.") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt], scores: []}").find("eval.") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt], policies: [{name: a}, {name: a}]}").find("eval.") !=
          std::string::npos);
    CHECK(problems("eval: {tasks: [vt], policies: [{name: v, kind: verified}]}")
              .find("eval.policies: 'v' is of kind verified, which is only for drafts: measure it "
                    "with spec.draft self") != std::string::npos);
    CHECK(problems("eval: {tasks: [vt], policies: [{name: r, kind: retrieval, retrieval: {rebuild: "
                   "alpha<0.8}}]}")
              .find("eval.policies: 'r' rebuilds by acceptance, which needs speculation: set "
                    "retrieval.rebuild never, or a number of tokens") != std::string::npos);
    CHECK(
        problems("eval:\n  tasks: [vt]\n  policies:\n    - {name: near, kind: streaming}\n"
                 "    - {name: full, kind: hybrid}\n") ==
        "r.yaml:5:7: eval.policies: 'full' is the name of full attention, which is always judged");
    CHECK(problems("eval: {tasks: [vt], policies: {name: full}}").starts_with("r.yaml:1:31: "));
    CHECK(problems("eval: {tasks: [channels]}")
              .find("eval.neurons.path: the task channels needs a file") != std::string::npos);
    CHECK(problems("eval: {tasks: [channels], neurons: {path: t.json}}").empty());
    CHECK(problems("eval: {}") == "r.yaml:1:7: eval.tasks is not set");
  }

  TEST_CASE("files of questions are tasks, by the folder of the recipe") {
    const Settings s = read("eval: {tasks: [vt, mine.jsonl, sub/../other, ./here]}");
    const auto own = s.own_tasks();
    REQUIRE(own.size() == 3);
    CHECK(own[0].value == "mine.jsonl");
    CHECK(own[0].shown() == "mine");
    CHECK(own[1].value == "./other");
    CHECK(own[2].shown() == "here");
    CHECK(s.questions() == std::vector{eval::Task::vt});
    const auto read_in = [](const std::string& folder) {
      Recipe r;
      recipe::Field fields = recipe::fields_of(r);
      recipe::read_fields(fields, recipe::parse_yaml("eval: {tasks: [vt, mine.jsonl, /a/b.jsonl]}",
                                                     {.name = nullptr, .folder = folder}));
      return r.eval.tasks;
    };
    CHECK(read_in("f") == std::vector<eval::TaskName>{"vt", "f/mine.jsonl", "/a/b.jsonl"});
    CHECK(problems("eval: {tasks: [a/mine.jsonl, b/mine.jsonl]}").find("expected each task once") !=
          std::string::npos);
    CHECK(problems("eval: {tasks: [vt.jsonl]}")
              .find("eval.tasks: vt.jsonl has the name of a built-in task: rename the file") !=
          std::string::npos);
    CHECK(problems("eval: {tasks: [mine.jsonl], policies: [{name: c, sparse: {kind: griffin}, "
                   "spec: {gamma: 7, verify: match}}]}")
              .find("eval.protocols [dense]") != std::string::npos);
  }

  TEST_CASE("sets are asked one by one or by group, and their folder is needed") {
    const Settings s = read("eval: {tasks: [vt, arc_c, arithmetic], sets: {path: d}}");
    CHECK(s.questions() == std::vector{eval::Task::vt});
    const auto sets = s.answer_sets();
    REQUIRE(sets.size() == 8);
    CHECK(sets[0] == eval::AnswerSet::arc_c);
    CHECK(sets[1] == eval::AnswerSet::multiarith);
    CHECK(sets[7] == eval::AnswerSet::mawps);
    CHECK(s.sets.template_name == train::TemplateName::s2ft_eval);
    CHECK(problems("eval: {tasks: [obqa]}")
              .find("eval.sets.path: expected the folder of LLM-Adapters' sets") !=
          std::string::npos);
    CHECK(problems("eval: {tasks: [boolq, commonsense], sets: {path: d}}")
              .find("expected each task once") != std::string::npos);
    const auto asked = [](const std::string& how) {
      return problems("eval: {tasks: [boolq], sets: {path: d, " + how + "}}");
    };
    CHECK(asked("template: custom, custom: {prompt: 'Q: {instruction}'}").empty());
    CHECK(
        asked("template: custom").find("eval.sets.template custom needs eval.sets.custom.prompt") !=
        std::string::npos);
    CHECK(asked("custom: {prompt: 'Q: {instruction}'}")
              .find("eval.sets.custom needs eval.sets.template custom") != std::string::npos);
    CHECK(asked("template: custom, custom: {prompt: '{question}'}").find("unknown field") !=
          std::string::npos);
    CHECK(asked("template: alpacca").find("alpaca") != std::string::npos);
    // Their answers are generated, whatever is set for questions about prose.
    CHECK(problems("eval: {tasks: [boolq], sets: {path: d}, policies: [{name: c, sparse: {kind: "
                   "griffin}, spec: {gamma: 7, verify: match}}]}")
              .empty());
  }

  TEST_CASE("rounds correct generated answers behind dense questions, nothing else") {
    const auto corrected = [](const std::string& policy, const std::string& others) {
      return problems("eval: {tasks: [vt], policies: [{name: c, " + policy + "}], " + others + "}");
    };
    const std::string good = "sparse: {kind: griffin}, spec: {gamma: 7, verify: match}";
    const std::string alone = "scores: [generated], protocols: [dense]";
    CHECK(corrected(good, alone).empty());
    for (const char* other :
         {"scores: [forced], protocols: [dense]", "scores: [generated], protocols: [sparse]",
          "scores: [generated]", "protocols: [dense]"})
      CHECK(corrected(good, other).find("'c' has spec, which needs eval.scores [generated]") !=
            std::string::npos);
    CHECK(corrected("spec: {gamma: 7}", alone)
              .find("needs sparse and a KV cache on the model's device") != std::string::npos);
    CHECK(corrected("sparse: {kind: griffin}, spec: {gamma: 7, verify: block}", alone)
              .find("needs sampling, but answers are greedy") != std::string::npos);
    CHECK(corrected("sparse: {kind: griffin}, spec: {gamma: -1}", alone).find("gamma") !=
          std::string::npos);
    CHECK(corrected("sparse: {kind: griffin}, spec: {verify: match}", alone)
              .find("'c' has spec without gamma, so the full model never corrects it: set gamma") !=
          std::string::npos);
  }

  TEST_CASE("dumping and reading again changes nothing") {
    Recipe r;
    r.eval = read("eval: {tasks: [kv], policies: [{name: 'a, b: {', kind: streaming, recent: 7}]}");
    const std::string text = recipe::dump_yaml(recipe::fields_of(r), nullptr);
    Recipe again;
    again.eval = read(text);
    CHECK(recipe::dump_yaml(recipe::fields_of(again), nullptr) == text);
    CHECK(again.eval.policies[0].name == "a, b: {");
    CHECK(recipe::recipe_hash(recipe::fields_of(again)) ==
          recipe::recipe_hash(recipe::fields_of(r)));
  }
}
