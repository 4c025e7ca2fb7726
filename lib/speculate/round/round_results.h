#pragma once
#include <span>
#include <vector>

#include "decode/sampler.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// How a round ended, in the host's memory: readable when its work is done, until the round after
/// the next one begins.
class RoundResults {
 public:
  /// Moments of a round. Where logits come in groups, those after the first count as verification.
  enum Moment { begun, drafted, scored, verified, n_moments };
  /// Arrays of the whole batch, nodes sequence by sequence.
  struct Arrays {
    const int32_t* tokens = nullptr;      // [places, nodes]
    const int32_t* path = nullptr;        // [places, nodes]
    const int32_t* n_accepted = nullptr;  // [places]
    const int32_t* bonus = nullptr;       // [places]
    const float* logprobs = nullptr;      // [places, nodes] null: none
    const uint64_t* clock = nullptr;      // [n_moments] ns
    // Of rounds within it, that lengthened its chains:
    int places = 0, n_within = 0;
    const int32_t* length = nullptr;   // [places] tokens of a chain
    const int32_t* taken = nullptr;    // [n_within, places] accepted tokens; -1: took no part
    const int32_t* found = nullptr;    // [n_within, places] tokens that Round::look_up proposed
    const uint64_t* clocks = nullptr;  // [n_within, n_moments] ns
  };

  RoundResults() = default;
  /// tree       outlives the results
  /// n_drafted  [seqs] nodes below the root that were proposed
  RoundResults(const TokenTree& tree, std::vector<int> n_drafted, const Arrays& arrays)
      : tree_(&tree), n_drafted_(std::move(n_drafted)), at_(arrays) {}

  const TokenTree& tree() const { return *tree_; }
  size_t n_seqs() const { return n_drafted_.size(); }
  /// Nodes below the root that were proposed.
  int n_drafted(size_t b) const { return at_.n_within > 0 ? at_.length[b] : n_drafted_[b]; }
  /// Accepted nodes in order, the root left out.
  std::span<const int32_t> path(size_t b) const;
  /// The tokens of the path and one more.
  /// errors   kind numeric: a row without meaning
  std::vector<decode::Drawn> drawn(size_t b) const;
  double seconds(Moment from, Moment to) const;
  /// Rounds within it.
  int n_within() const { return at_.n_within; }
  /// Tokens that the turn-th of them accepted for sequence b; -1: its chain was long enough.
  int accepted_within(int turn, size_t b) const {
    return at_.taken[static_cast<size_t>(turn * at_.places) + b];
  }
  /// Tokens that Round::look_up proposed in it.
  int found_within(int turn, size_t b) const {
    return at_.found[static_cast<size_t>(turn * at_.places) + b];
  }
  double seconds_within(int turn, Moment from, Moment to) const;

 private:
  size_t n_nodes() const { return static_cast<size_t>(tree_->size()); }

  const TokenTree* tree_ = nullptr;
  std::vector<int> n_drafted_;
  Arrays at_;
};

}  // namespace tandem::speculate
