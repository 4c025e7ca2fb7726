#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "eval/answer_sets.h"
#include "eval/corrected.h"
#include "eval/own_tasks.h"
#include "eval/tasks.h"
#include "recipe/sections.h"

namespace tandem::eval {

/// A named cache policy of eval.policies: `{name: s256, kind: streaming, recent: 256}`; with other
/// weights than model's, or these in another form, `{name: int4, kind: full, weights: int4}`.
struct NamedPolicy {
  static constexpr std::string_view kItems = "policies", kExample = "{name: near, kind: streaming}";
  std::string name;
  recipe::Cache cache;
  recipe::Sparse sparse = {};
  Correction spec = {};
  recipe::Weights weights = {};

  template <class V>
  void fields(V& v) {
    v("name", name, recipe::Limits{.required = true}, "name of the policy in tables");
    cache.fields(v);
    v("sparse", sparse, "FFN neurons that the evaluated tokens compute");
    v("spec", spec, "correction of drafted tokens by the full model, only for generated answers");
    weights.fields(v);
  }
  void check(recipe::Problems& p) const {
    cache.check(p);
    weights.check(p);
  }
  /// True for a policy with a separate model.
  bool has_weights() const { return weights != recipe::Weights{}; }
};

/// What the prompt of a case is: everything up to the answer, or up to the question.
enum class Protocol : uint8_t {
  dense,   // haystack and question are prefilled with full attention
  sparse,  // the question goes through the policy as well
};
constexpr std::array<std::string_view, 2> enum_names(Protocol) { return {"dense", "sparse"}; }

enum class Score : uint8_t {
  forced,     // every answer token is the most likely one after the true text before it
  generated,  // greedy decoding writes the answer's text
  // The right choice has the highest log-probability:
  acc,       // in sum
  acc_norm,  // over the bytes of its text
};
constexpr std::array<std::string_view, 4> enum_names(Score) {
  return {"forced", "generated", "acc", "acc_norm"};
}
/// Scores of questions about long prose.
enum class ProseScore : uint8_t { forced, generated };
constexpr std::array<std::string_view, 2> enum_names(ProseScore) { return {"forced", "generated"}; }

/// Section `neurons`: where the task of that name leaves thresholds for sparse.kind
/// cats_threshold.
struct ChannelsTask {
  std::filesystem::path path;
  recipe::Fraction keep{0.5};

  template <class V>
  void fields(V& v) {
    v("path", path, "output file with one threshold per layer (ffn-thresholds/1)");
    v("keep", keep, recipe::above(0).up_to(1),
      "share of activated gates at or above the threshold");
  }
};

/// Section `eval`.
struct Settings {
  std::vector<TaskName> tasks;
  std::vector<recipe::TokenCount> lengths = {{4096}};
  int cases = 100;
  int rows = 64;
  int scored = 0;
  std::filesystem::path haystack;
  std::vector<Protocol> protocols = {Protocol::dense, Protocol::sparse};
  std::vector<ProseScore> scores = {ProseScore::forced};
  ChannelsTask neurons;
  OwnSettings custom;
  SetsSettings sets;
  std::vector<NamedPolicy> policies;

  template <class V>
  void fields(V& v) {
    v("tasks", tasks, recipe::Limits{.required = true},
      "tasks to run: needle1, needle8, kv, vt, cwe, fwe, qa, perplexity, attention, channels, "
      "commonsense, arithmetic, or one question set by name. commonsense = boolq, piqa, siqa, "
      "hellaswag, winogrande, arc_e, arc_c and obqa, from eval.sets. arithmetic = multiarith, "
      "gsm8k, addsub, aqua, singleeq, svamp and mawps, from eval.sets. FILE.jsonl = your own "
      "questions, lines of {prompt, answer} and optionally choices");
    v("lengths", lengths, recipe::at_least(1).unit("tokens"),
      "lengths of prompt plus answer. Perplexity and attention use run.context instead. Not used "
      "for question sets and files");
    v("cases", cases, recipe::at_least(1),
      "cases per task and length, or questions per set or file, drawn by run.seed. Upper limit on "
      "windows of attention, and of perplexity with scored");
    v("rows", rows, recipe::at_least(1).unit("tokens"),
      "tokens at the end of each window that task attention compares, after a dense prefill");
    v("scored", scored, recipe::at_least(0).unit("tokens"),
      "tokens at the end of each window that task perplexity scores, after one dense prefill for "
      "all policies. 0 = all tokens, with the prefill under each policy. Not used for questions, "
      "whose answers are scored");
    v("haystack", haystack, recipe::optional_input(),
      "text to hide needles in, empty = generated text");
    v("protocols", protocols,
      "protocols: dense prefills the question with full attention, sparse reads it through the "
      "policy. Not used for question sets, which are prefilled densely");
    v("scores", scores,
      "scores: forced (argmax after the reference text) or generated (greedy text). Question sets "
      "use generated. Files use generated, or acc and acc_norm with choices");
    v("custom", custom, "text answers to questions from files");
    v("neurons", neurons, "thresholds of FFN neurons over the text of data, for task channels");
    v("sets", sets, "question sets of LLM-Adapters: folder and prompt template");
    v("policies", policies,
      "attention policies to compare with full attention, a list of {name: NAME, kind: ..., ...}");
  }
  void check(recipe::Problems& p) const;

  /// Those of the tasks that ask about long prose.
  std::vector<Task> questions() const;
  /// Those that are sets, groups taken apart.
  std::vector<AnswerSet> answer_sets() const;
  /// Tasks that are files.
  std::vector<TaskName> own_tasks() const;
  /// `scores`, as outcomes name them.
  std::vector<Score> prose_scores() const;
  bool perplexity() const;
  bool attention() const;
  bool calibrates() const;
  /// Settings of all policies; full attention comes first.
  std::vector<NamedPolicy> all_policies() const;

 private:
  void check_tasks(recipe::Problems& p) const;
  void check_corrected(const NamedPolicy& policy, recipe::Problems& p) const;
};

}  // namespace tandem::eval
