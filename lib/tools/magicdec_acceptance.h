#pragma once
#include <vector>

#include "cli/context.h"
#include "tools/draft_acceptance/recipe.h"

namespace tandem::tools {

/// A run of magicdec-acceptance: how often drafts are accepted, by draft, budget, temperature and
/// kind of text, as sums over distributions.
class MagicdecAcceptance {
 public:
  using Recipe = DraftAcceptanceRecipe;

  MagicdecAcceptance(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points)
      : cx_(cx), points_(points) {}

  /// One line a point: the room that it needs; of a single point in detail.
  int print_plan();
  /// The exit status is BenchResults::finish's.
  int run();
  /// Serves --from.
  static int print_from(cli::Context& cx, const std::filesystem::path& records);

 private:
  cli::Context& cx_;
  const std::vector<cli::Point<Recipe>>& points_;
};

}  // namespace tandem::tools
