#pragma once
#include <span>
#include <vector>

namespace tandem::speculate {

/// Time of a forward over n tokens of each sequence, known at some n.
struct TimeCurve {
  std::vector<int> tokens;  // rising, not empty
  std::vector<double> ms;

  /// Interpolates between two known points. Beyond the last one the line goes on where it rises;
  /// before the first one its value holds, and of a curve of one point everywhere.
  double at(int n) const;
  /// No at(n) is below it.
  double smallest() const;
};

/// Parts of a round, and what a token costs by them.
struct RoundCost {
  double target_ms = 0;          // one forward over the tree
  std::vector<double> draft_ms;  // each draft call of a round
  double overhead_ms = 0;        // the rest of a round
  double ms_per_token = 0;       // their sum over the expected tokens

  double drafts_ms() const;
  double total_ms() const { return drafts_ms() + target_ms + overhead_ms; }
};

/// Costs of steps at one batch and one context, in ms of the whole batch: by a data sheet
/// (sheet_cost) or by measurement (TimingTable, MeasuredCosts).
struct StepCost {
  int batch = 1;    // sequences of a forward
  int context = 0;  // tokens in the caches; 0 = not recorded
  // target: a forward over the n nodes of a tree, n = 1 is a plain step. draft: over the nodes of a
  // level.
  TimeCurve target, draft;
  double overhead_ms = 0;     // sampling, verification and compaction of a round
  bool skip_deepest = false;  // the engine leaves out the draft call on the deepest level
  double token_ms = 0;        // share of each token: choosing the draft's keys again

  double plain_ms() const { return target.at(1); }
  /// A round of a tree: one draft call for the new root and one for each level below it, of the
  /// level's width. The last of them only completes the draft's cache.
  /// widths   of the levels, the root's first
  /// tokens   of a sequence and round, expected
  RoundCost round(std::span<const int> widths, double tokens = 1) const;
  /// A round of a chain of gamma drafted tokens.
  RoundCost chain(int gamma) const;
  /// No tree of this size, number of levels and value costs less a token.
  double least(int size, int levels, double tokens) const;
  /// The longest chain whose verification is known.
  int most_gamma() const { return target.tokens.back() - 1; }

 private:
  int calls(int levels) const { return levels > 1 && skip_deepest ? levels - 1 : levels; }
};

}  // namespace tandem::speculate
