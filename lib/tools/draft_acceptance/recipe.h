#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "eval/tasks.h"
#include "recipe/sections.h"
#include "speculate/plan/named_draft.h"
#include "speculate/round/rounds.h"
#include "tools/results/bench_results.h"

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
  int gamma = 4, gamma1 = 1, gamma2 = 6, inner_steps = 4;

  template <class V>
  void fields(V& v) {
    v("gamma", gamma, recipe::between(1, 16), "draft tokens per speculation step");
    v("gamma1", gamma1, recipe::between(1, 16),
      "draft tokens per inner step, only for nested drafts");
    v("gamma2", gamma2, recipe::between(1, 64).unit("tokens"),
      "tokens from inner steps at which no further inner step starts, only for nested drafts");
    v("inner_steps", inner_steps, recipe::between(1, 64),
      "maximum number of inner steps per speculation step, only for nested drafts");
  }
  speculate::NestedShape nested() const { return {.rounds = inner_steps, .enough = gamma2}; }
};

/// Section `bench`: the drafts, and what they are measured on.
struct AcceptanceBench {
  std::vector<speculate::NamedDraft> drafts;
  std::vector<recipe::TokenCount> budgets;
  std::vector<double> temperatures = {0, 0.6, 1};
  PromptKind prompts = PromptKind::prose;
  std::filesystem::path haystack;
  int new_tokens = 256, batches = 1;
  bool speculate = true;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("drafts", drafts, recipe::Limits{.required = true},
      "drafts to measure, a list of {name: NAME, kind: ..., ...}. Supported are nested drafts, and "
      "linear drafts of kind self or model");
    v("budgets", budgets, at_least(1).unit("tokens"),
      "KV budgets for all drafts that set budget, also within nested drafts, empty = as each draft "
      "sets it");
    v("temperatures", temperatures, at_least(0),
      "softmax temperatures of target and draft, 0 = greedy");
    v("prompts", prompts,
      "prompts: prose (windows of data.path, continued by the text itself) or a task. A task's "
      "documents and question are continued by the answer and the target's text");
    v("haystack", haystack, recipe::optional_input(),
      "text to hide needles in, empty = generated text");
    v("new_tokens", new_tokens, recipe::between(2, 1 << 20).unit("tokens"),
      "length of each prompt's continuation");
    v("batches", batches, recipe::between(1, 10000), "number of batches of run.batch prompts");
    v("speculate", speculate, "measurement in real speculation steps, in addition to given texts");
  }
  void check(recipe::Problems& p) const;
  /// Each draft under each of its budgets; a name says which, where budgets are listed.
  std::vector<speculate::NamedDraft> all_drafts() const;
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
    v("model", model, "target model");
    v("spec", spec, "draft tokens per speculation step");
    v("bench", bench, "drafts and prompts of the measurement");
    v("data", data, "text whose windows are the prompts");
    v("run", run, "device, threads, seed, batch size and context length");
    v("output", output, "file of records");
  }
  void check(recipe::Problems& p) const;
};

}  // namespace tandem::tools
