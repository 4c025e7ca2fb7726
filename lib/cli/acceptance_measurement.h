#pragma once
#include <array>
#include <string_view>

#include "cli/context.h"
#include "cli/device.h"
#include "cli/speculative_generation.h"
#include "decode/prompts.h"
#include "recipe/sections.h"

namespace tandem::cli {

/// How rounds will verify; each rule has a vector of its own.
enum class AcceptRule : uint8_t { sequoia, topk };
constexpr std::array<std::string_view, 2> enum_names(AcceptRule) { return {"sequoia", "topk"}; }

/// Section `accept` of the tool that measures.
struct AcceptanceSection {
  int width = 32;
  AcceptRule rule = AcceptRule::sequoia;

  template <class V>
  void fields(V& v) {
    v("width", width, recipe::between(1, 1024), "children of a node whose chances are measured");
    v("rule", rule,
      "sequoia: children drawn, kept by residuals; topk: the draft's best, kept if the target draws them");
  }
};

struct AcceptanceRecipe {
  recipe::Model model;
  DraftSection draft;
  AcceptanceSection accept;
  recipe::Run run;
  recipe::Sampling sampling;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model whose text it is");
    v("draft", draft, "the model that proposes");
    v("accept", accept, "what is measured");
    v("run", run, "device, threads, seed, sizes");
    v("sampling", sampling, "how the target draws its text, and how much of it");
    v("output", output, "where the vector goes");
  }
  void check(recipe::Problems& p) const;
};

/// A run of sequoia-acceptance: the target writes text, and at each of its positions the chances of the
/// draft's children are added up.
class AcceptanceMeasurement {
 public:
  /// errors   as SpeculativeGeneration
  AcceptanceMeasurement(Context& cx, const Point<AcceptanceRecipe>& point);

  /// Plan for --dry-run. errors  kind memory, after the plan is out: it does not fit
  void print_plan();
  /// Writes the vector as acceptance-vector/1.
  void run();

 private:
  MemoryPlan plan() const;

  Context& cx_;
  const AcceptanceRecipe& recipe_;
  Device device_;
  decode::ModelFiles target_files_, draft_files_;
  decode::PromptSet prompts_;
  decode::EngineSpec target_, draft_;
};

}  // namespace tandem::cli
