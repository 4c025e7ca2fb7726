#pragma once
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "cli/context.h"
#include "decode/generate.h"
#include "ops/verification.h"
#include "speculate/measure/rule_meter.h"
#include "speculate/measure/tree_recorder.h"
#include "speculate/plan/model_pair.h"
#include "speculate/tree/token_tree.h"

namespace tandem::tools {

/// How rounds will verify; each rule has a separate vector.
enum class AcceptRule : uint8_t { sequoia, topk, block, traversal };
constexpr std::array<std::string_view, 4> enum_names(AcceptRule) {
  return {"sequoia", "topk", "block", "traversal"};
}

/// Section `accept` of the tool that measures.
struct AcceptanceSection {
  int width = 32, depths = 1;
  std::filesystem::path tree, record;
  AcceptRule rule = AcceptRule::sequoia;

  template <class V>
  void fields(V& v) {
    v("width", width, recipe::between(1, 1024),
      "number of children per node whose acceptance is measured");
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

struct AcceptanceRecipe : speculate::PairRecipe {
  AcceptanceSection accept;

  template <class V>
  void fields(V& v) {
    speculate::PairRecipe::fields(v);
    v("accept", accept, "acceptance measurement");
  }
  void check(recipe::Problems& p) const;
};

/// A run of sequoia-acceptance: the target writes text, and at each of its positions the chances of
/// the draft's children are added up.
class SequoiaAcceptance {
 public:
  using Recipe = AcceptanceRecipe;

  /// errors   as Generate
  SequoiaAcceptance(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  /// Writes the vector as acceptance-vector/1, or as a table.
  int run();

  /// A row of the vector: what the children of a node are accepted with.
  struct Row {
    std::vector<double> mean, error;
    int64_t samples = 0;
  };
  using Rows = std::vector<Row>;  // by depth; one for all nodes

 private:
  using Texts = std::vector<std::vector<int32_t>>;
  /// The prompts and what follows them by `decoder`.
  Texts write_texts(decode::Engine& target, decode::Decoder& decoder,
                    const decode::GenerateSpec& how);
  /// Reads the texts in their order, and shows progress.
  void for_each_text(const std::function<void(size_t i, int n_prompt)>& read);
  /// Of texts that the target writes, read again by both models.
  Rows measure_positions(const speculate::ModelPair::Engines& engines, const ops::VerifyRule& rule,
                         const decode::GenerateSpec& how);
  /// Of texts written a node at a time.
  Rows measure_depths(const speculate::ModelPair::Engines& engines, const ops::VerifyRule& rule,
                      const decode::GenerateSpec& how);
  /// Of texts written by rounds of accept.tree. On the CPU also what the rules make of one tree.
  Rows measure_tree(const speculate::ModelPair::Engines& engines, const ops::VerifyRule& rule,
                    const decode::GenerateSpec& how);

  /// What a record of rounds says of this run.
  speculate::RecordedRun recorded_run(const speculate::ModelPair::Engines& engines,
                                      const ops::SampleRule& sampling) const;

  /// The result, acceptance-vector/1.
  nlohmann::ordered_json vector_of(const Rows& rows, const std::string& method) const;
  /// Its part about the tree whose rounds wrote the texts.
  nlohmann::ordered_json of_tree(const speculate::AcceptanceVector& measured) const;
  /// Says what the rules made of the same trees.
  void note_rules() const;

  cli::Context& cx_;
  const AcceptanceRecipe& recipe_;
  speculate::ModelPair pair_;
  recipe::Sampling sampling_;  // settled
  std::optional<speculate::TokenTree> tree_;
  int longest_ = 0;                   // tokens of a text
  std::array<std::string, 2> names_;  // of target and draft
  double tokens_per_round_ = 0;       // of the tree, as counted
  std::optional<speculate::RuleMeter> rules_;
  std::optional<speculate::TreeRecorder> recorder_;
  int64_t lost_ = 0;  // accepted tokens that TreeMeter did not find again
  decode::PromptSet prompts_;
};

}  // namespace tandem::tools
