#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/context.h"
#include "speculate/plan/proposals.h"

// spec.fastest: plain decoding and several lossless drafts are tried on the prompt, and the fastest
// writes the text.
namespace tandem::tools {

/// A recipe whose engines serve all drafts that are tried: `spec.draft` is how the target reads as
/// a draft, `spec.draft.inner` the small model.
speculate::GenerateRecipe with_all_drafts(const speculate::GenerateRecipe& asked);
/// Room for the rounds of each.
speculate::TreeRoom room_of_all_drafts(const speculate::GenerateRecipe& all);

/// A way to generate.
struct TriedWay {
  speculate::GenerateRecipe recipe;  // that does it; spec.draft none: plain decoding
  std::optional<double> ms = {};     // a token; none where it was not tried
  std::string why_not = {};          // where it was not

  bool is_plain() const { return recipe.spec.draft.kind == speculate::DraftKind::none; }
  /// `spec.draft.kind=ngram spec.shape.gamma=4`, or `plain decoding`.
  std::string name() const;
};

/// The ways that suit a run, plain decoding first.
/// longest  tokens of the text
std::vector<TriedWay> ways_to_try(const speculate::GenerateRecipe& asked, int64_t longest);

/// Rounds of a way that is not plain.
/// engines  of with_all_drafts
std::unique_ptr<speculate::Rounds> rounds_of(const TriedWay& way,
                                             const speculate::ModelPair::Engines& engines,
                                             speculate::RoundOptions options = {});

/// Generates the beginning of the text by each way.
/// how      of the whole text
/// returns  the fastest; plain decoding where the text ends too soon to say
/// errors   kind interrupted, memory, numeric
const TriedWay& try_ways(cli::Context& cx, const speculate::ModelPair::Engines& engines,
                         std::span<const int32_t> prompt, const decode::GenerateSpec& how,
                         std::vector<TriedWay>& ways);

/// For people, a line a way.
std::string tried_text(const std::vector<TriedWay>& ways, const TriedWay& best);
nlohmann::ordered_json tried_json(const std::vector<TriedWay>& ways, const TriedWay& best);

/// The command line, quoted for a shell, that generates the same text this way.
std::string command_to_repeat(const cli::Context& cx, const TriedWay& way);

}  // namespace tandem::tools
