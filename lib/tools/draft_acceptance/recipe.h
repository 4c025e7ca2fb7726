#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "eval/tasks.h"
#include "recipe/sections.h"
#include "speculate/round/rounds.h"
#include "tools/results/bench_results.h"
#include "tools/speculation_bench/named_draft.h"

namespace tandem::tools {

/// What the prompts are: windows of running text, or documents of pig-eval's tasks with their
/// question.
enum class PromptKind : uint8_t { prose, needle1, needle8, kv, vt, cwe };
constexpr std::array<std::string_view, 6> enum_names(PromptKind) {
  return {"prose", "needle1", "needle8", "kv", "vt", "cwe"};
}
/// Of documents.
inline eval::Task task_of(PromptKind kind) {
  return static_cast<eval::Task>(static_cast<int>(kind) - 1);
}
static_assert(enum_names(PromptKind{})[1] == enum_names(eval::Task{})[0]);

/// Section `spec`: drafted tokens of a round.
struct ChainLength {
  int gamma = 4, gamma1 = 1, gamma2 = 6, rounds = 4;

  template <class V>
  void fields(V& v) {
    v("gamma", gamma, recipe::between(1, 16), "drafted tokens of a round");
    v("gamma1", gamma1, recipe::between(1, 16), "nested drafts: those of a round within");
    v("gamma2", gamma2, recipe::between(1, 64).unit("tokens"),
      "nested drafts: tokens with which no round within lengthens a chain");
    v("rounds", rounds, recipe::between(1, 64), "nested drafts: rounds within a round");
  }
  speculate::NestedShape nested() const { return {.rounds = rounds, .enough = gamma2}; }
};

/// Section `bench`: the drafts, and what they are measured on.
struct AcceptanceBench {
  std::vector<NamedDraft> drafts;
  std::vector<recipe::TokenCount> budgets;
  std::vector<double> temperatures = {0, 0.6, 1};
  PromptKind prompts = PromptKind::prose;
  std::filesystem::path haystack;
  int new_tokens = 256, batches = 1;
  bool rounds = true;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("drafts", drafts, recipe::Limits{.required = true},
      "list of {name: NAME, kind: ..., ...}; self or model, chains of spec.gamma, or nested");
    v("budgets", budgets, at_least(1).unit("tokens"),
      "each draft that reads a part, and each nested one of such, is measured under each of them; "
      "empty = under its own");
    v("temperatures", temperatures, at_least(0), "of target and draft; 0 = greedy");
    v("prompts", prompts,
      "prose: windows of data.path, continued as the text goes on; else documents of a task with "
      "their question, continued by the answer and what the target writes after it");
    v("haystack", haystack, recipe::optional_input(),
      "text of the documents around needles; empty = generated");
    v("new_tokens", new_tokens, recipe::between(2, 1 << 20).unit("tokens"),
      "of each prompt's continuation");
    v("batches", batches, recipe::between(1, 10000), "of run.batch prompts");
    v("rounds", rounds, "measure along real rounds too, not on given texts alone");
  }
  void check(recipe::Problems& p) const;
  /// Each draft under each of its budgets; a name says which, where budgets are listed.
  std::vector<NamedDraft> all_drafts() const;
};

struct DraftAcceptanceRecipe {
  recipe::Model model;
  ChainLength spec;
  AcceptanceBench bench;
  recipe::Data data;
  recipe::Run run;
  BenchOutput output;

  DraftAcceptanceRecipe() {
    run.context = {4096};
    run.batch = 4;
    run.device = "cpu";  // distributions are compared there
  }
  template <class V>
  void fields(V& v) {
    v("model", model, "the model whose text it is");
    v("spec", spec, "drafted tokens of a round");
    v("bench", bench, "the drafts, and what they are measured on");
    v("data", data, "text whose windows are the prompts");
    v("run", run, "device, threads, seed; batch: prompts together; context: tokens of each");
    v("output", output, "where records go");
  }
  void check(recipe::Problems& p) const;
};

}  // namespace tandem::tools
