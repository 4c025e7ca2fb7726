#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tree/append_round.h"
#include "kernels/tree/draw_children.h"
#include "kernels/tree/grow_beams.h"
#include "kernels/tree/propose_lookup.h"
#include "kernels/tree/verify_trees.h"
#include "ops/sampling.h"

namespace tandem::ops {

/// Names the random numbers of a round: no two rounds of a sequence have one position, since each
/// commits a token at least.
struct RoundName {
  int64_t seed = 0;
  int sequence = 0;
  int position = 0;  // tokens committed, the tree's root included
  int stage = 0;     // rounds within rounds have separate ones, below kMaxStages
};

/// A row of draft logits whose tree node gets children.
struct ParentNode {
  RoundName round;
  int node = 0;  // of the round's tree, below 2^16
  int n_children = 0;
};

/// Children, row after row, drawn as kernels/tree/draw_children.h defines. Keep the rows of logits
/// for verify_trees, which makes the children's distribution from them again.
/// shapes   logits [parents, V] f32; seen: per row, ids to penalise, those of the node's path
///          included; empty without penalty
/// errors   kind numeric for a row with NaN, +inf or no finite logit
std::vector<int32_t> draw_children(const Tensor& logits, const SampleRule& rule,
                                   std::span<const ParentNode> parents,
                                   std::span<const std::span<const int32_t>> seen = {});

/// One sequence's tree of draft tokens, breadth first, an entry a node; node 0 is the root, the
/// last committed token. kernels/tree/verify_trees.h says which entries are read.
struct DraftTree {
  RoundName round;
  std::span<const int32_t> tokens, first_child, n_children;
  std::span<const int32_t> target_row;  // rows of the target's logits
  std::span<const int32_t> draft_row;   // rows of the draft's logits; empty by match
  std::span<const int32_t> seen;        // committed tokens, for a repetition penalty
};

struct VerifyRule {
  SampleRule target;
  SampleRule draft;  // that the children were drawn by
  AcceptBy accept_by = AcceptBy::match;
  FloorRule floor = {};  // of the rules that have one
  bool wants_logprobs = true;
};

struct Verified {
  std::vector<int32_t> path;  // accepted nodes from the root's child on
  int32_t bonus = 0;          // the token after them
  std::vector<float>
      logprobs;       // of the path's tokens and the bonus, natural log; empty if not wanted
  int n_rounded = 0;  // children accepted because rounding alone stood against them
};

/// Which nodes the target accepts, and one more token, for each sequence. Texts made this way
/// follow the target's distribution, but by floors; by match, and for trees of the root alone, it
/// is the very text that plain sampling with this seed gives.
/// shapes   target_logits, draft_logits [*, V] f32; the latter may be empty by match
/// errors   kind numeric for a row read with NaN, +inf or no finite logit
std::vector<Verified> verify_trees(const Tensor& target_logits, const Tensor& draft_logits,
                                   const VerifyRule& rule, std::span<const DraftTree> trees);

/// Of each row's n_children children in order, the probability that it is the one accepted
/// (accept_chances in kernels/tree/verify_trees.h).
/// shapes   target_logits, draft_logits [rows, V] f32, the latter may be empty by match;
///          children [rows, n_children]; seen: per row, ids to penalise, empty without penalty
/// errors   kind numeric for a row with NaN, +inf or no finite logit
std::vector<double> accept_chances(const Tensor& target_logits, const Tensor& draft_logits,
                                   const VerifyRule& rule, std::span<const int32_t> children,
                                   int n_children, std::span<const std::span<const int32_t>> seen);

/// The same over arrays in the memory of the stream's device; on a GPU the tokens and paths stay
/// there, the host need not wait between draft, verification and commit, and graphs may record it.
/// A meaningless row shows as kInvalidToken among the tokens or as the bonus. On the CPU the
/// workspace is not used.
/// errors   kind device in a build without CUDA, kind internal for a vocabulary beyond its limits
void draw_children(const DrawChildrenParams& params, Stream stream);
void grow_beams(const GrowBeamsParams& params, Stream stream);
void verify_trees(const VerifyTreesParams& params, Stream stream);
/// kernels/tree/append_round.h
void append_round(const AppendRoundParams& params, Stream stream);
/// kernels/tree/propose_lookup.h
void propose_lookup(const ProposeLookupParams& params, Stream stream);

}  // namespace tandem::ops
