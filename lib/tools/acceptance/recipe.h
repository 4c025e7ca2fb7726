#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "eval/tasks.h"
#include "recipe/sections.h"
#include "speculate/plan/named_draft.h"
#include "speculate/round/rounds.h"

namespace tandem::tools {

/// What the prompts are: windows of running text, documents of pig-eval's tasks with their
/// question, or what the command line names.
enum class PromptKind : uint8_t { prose, needle1, needle8, kv, vt, cwe, given };
constexpr std::array<std::string_view, 7> enum_names(PromptKind) {
  return {"prose", "needle1", "needle8", "kv", "vt", "cwe", "given"};
}
/// Of documents.
inline eval::Task task_of(PromptKind kind) {
  return static_cast<eval::Task>(static_cast<int>(kind) - 1);
}
static_assert(enum_names(PromptKind{})[1] == enum_names(eval::Task{})[0]);

/// The rule by which rounds will verify; each has a separate vector.
enum class AcceptRule : uint8_t { sequoia, topk, block, traversal };
constexpr std::array<std::string_view, 4> enum_names(AcceptRule) {
  return {"sequoia", "topk", "block", "traversal"};
}
inline bool is_by_sequences(AcceptRule rule) {
  return rule == AcceptRule::block || rule == AcceptRule::traversal;
}
/// The rule that rounds of a tree verify by.
inline speculate::VerifyChoice verify_choice(AcceptRule rule) {
  using enum speculate::VerifyChoice;
  return rule == AcceptRule::block ? block : rule == AcceptRule::traversal ? traversal : sequoia;
}

/// Section `accept`: the acceptance vector of each draft.
struct AcceptSettings {
  int width = 0, depths = 1;
  std::filesystem::path tree, record;
  AcceptRule rule = AcceptRule::sequoia;

  template <class V>
  void fields(V& v) {
    v("width", width, recipe::between(0, 1024),
      "number of children per node whose acceptance is measured, 0 = no acceptance vector");
    v("depths", depths, recipe::between(1, 64),
      "number of rows, one per count of accepted tokens before the node. Steps end after the last. "
      "1 = one row for all nodes");
    v("tree", tree, recipe::optional_input(),
      "tree whose speculation steps give the rows by depth, empty = no fixed tree");
    v("record", record,
      "output file for the speculation steps of accept.tree (tree-rounds/1), empty = none. Input "
      "of sequoia-tree-search --replay, which searches its subtrees");
    v("rule", rule,
      "acceptance rule: sequoia (sampled children, residual sampling) or topk (the draft's best, "
      "accepted if the target samples them). block and traversal count sampled children in "
      "speculation steps of accept.tree");
  }
};

/// Section `spec`: a draft, and drafted tokens of a round.
struct AcceptanceSpec : speculate::PairSection {
  int gamma = 4, gamma1 = 1, gamma2 = 6, inner_steps = 4;

  AcceptanceSpec() { draft.reads_own = true; }
  template <class V>
  void fields(V& v) {
    speculate::PairSection::fields(v);
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
  bool rates = true, speculate = true;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("drafts", drafts,
      "drafts to measure, a list of {name: NAME, kind: ..., ...}, empty = spec.draft. Supported "
      "are "
      "nested drafts, and linear drafts of kind self or model");
    v("budgets", budgets, at_least(1).unit("tokens"),
      "KV budgets for all drafts that set budget, also within nested drafts, empty = as each draft "
      "sets it");
    v("temperatures", temperatures, at_least(0),
      "softmax temperatures of target and draft, 0 = greedy, empty = sampling.temperature");
    v("prompts", prompts,
      "prompts: prose (windows of data.path, continued by the text itself), a task, or given (by "
      "-p and others, continued by sampling.max_tokens tokens of the target). A task's documents "
      "and "
      "question are continued by the answer and the target's text");
    v("haystack", haystack, recipe::optional_input(),
      "text to hide needles in, empty = generated text");
    v("new_tokens", new_tokens, recipe::between(2, 1 << 20).unit("tokens"),
      "length of each prompt's continuation");
    v("batches", batches, recipe::between(1, 10000), "number of batches of run.batch prompts");
    v("rates", rates, "acceptance rates of drafts, by the distributions of target and draft");
    v("speculate", speculate, "rates in real speculation steps, in addition to given texts");
  }
  void check(recipe::Problems& p) const;
  /// Each draft under each of its budgets; a name says which, where budgets are listed.
  std::vector<speculate::NamedDraft> all_drafts() const;
};

/// Section `output`; programs differ in what they write to its path.
struct AcceptanceOutput : recipe::Output {
  std::string_view text = "file of records, one JSON line each, empty or - = none";

  template <class V>
  void fields(V& v) {
    v("path", path, text);
    v("state", state, "not supported");
    v("top_logprobs", top_logprobs, recipe::between(0, 100), "not supported");
  }
};

struct AcceptanceRecipe {
  recipe::Model model;
  AcceptanceSpec spec;
  AcceptanceBench bench;
  AcceptSettings accept;
  recipe::Data data;
  recipe::RankedRun run;
  recipe::Sampling sampling;
  recipe::Chat chat;
  AcceptanceOutput output;

  AcceptanceRecipe() {
    run.context = {4096};
    run.batch = 4;
    run.device = "cpu";  // distributions are compared there
  }
  template <class V>
  void fields(V& v) {
    v("model", model, "target model");
    v("spec", spec, "the draft, and draft tokens per speculation step");
    v("bench", bench, "drafts and prompts of the measurement");
    v("accept", accept, "measurement of acceptance vectors");
    v("data", data, "text whose windows are the prompts");
    v("run", run, "device, threads, seed, batch size and context length");
    v("sampling", sampling, "sampling and stop conditions of texts for acceptance vectors");
    v("chat", chat, "chat template of given prompts");
    v("output", output, "file of results");
  }
  void check(recipe::Problems& p) const;

  bool has_given_prompts() const { return bench.prompts == PromptKind::given; }
  /// New tokens of each prompt at most.
  int n_new() const { return has_given_prompts() ? sampling.max_tokens : bench.new_tokens; }
  /// Returns the drafts of section bench, or spec.draft.
  std::vector<speculate::NamedDraft> drafts() const;
  std::vector<double> temperatures() const {
    return bench.temperatures.empty() ? std::vector{sampling.temperature.value_or(0)}
                                      : bench.temperatures;
  }

 private:
  void check_vectors(recipe::Problems& p) const;
};

}  // namespace tandem::tools
