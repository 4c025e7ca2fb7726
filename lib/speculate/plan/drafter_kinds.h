#pragma once
#include <memory>
#include <optional>

#include "speculate/draft/draft_kind.h"
#include "speculate/plan/model_pair.h"

namespace tandem::speculate {

struct Draft;

/// A draft's proposals, as the recipe and measurements decide them.
struct Proposal {
  /// The largest tree, with a nested draft that of an inner step; n tokens of a lookup are a chain.
  TokenTree tree = chain_tree(1);
  bool chooses_gamma = false;  // the length of a chain, at each step
  Beams beams = {.width = 0};  // in place of the tree if there are any
  int longest = 3;             // n-gram of a lookup
  std::optional<NestedShape> nested = {};
};

/// A kind of drafter as the program sees it: one row of the table that drafter_kind reads.
/// Its settings are fields of Draft; its class is in speculate/draft.
struct DrafterKind {
  DraftKind kind;
  bool draws;          // samples draft tokens, which trees and rules that weigh draws need
  bool chooses_gamma;  // with spec.shape.gamma: auto
  size_t token_bytes;  // of host memory for a token of text, for an index or a store
  /// `draft` outlives the result.
  EngineUse (*engines)(const Draft& draft);
  std::unique_ptr<Rounds> (*rounds)(const Proposal& proposal, const DraftReaders& readers,
                                    RoundOptions options, WithinOptions within);
};

const DrafterKind& drafter_kind(DraftKind kind);

}  // namespace tandem::speculate
