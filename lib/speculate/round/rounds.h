#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "decode/decoder.h"
#include "speculate/draft/beams.h"
#include "speculate/reader.h"
#include "speculate/round/round_stats.h"
#include "speculate/round/verify_choice.h"
#include "speculate/tree/tree_room.h"

namespace tandem::speculate {

class Drafter;
class Round;

/// Decoding by rounds: something proposes tokens, the target scores all of them in one forward and
/// keeps those that it might have said itself.
class Rounds : public decode::Decoder {
 public:
  /// All sequences from now on begin with these tokens: what proposes reads them once.
  virtual void share(std::span<const int32_t> prefix) = 0;
  /// As share, of tokens that this slot of the draft's cache holds already; it stays the caller's.
  virtual void continue_from(int draft_slot) = 0;
  /// By match the very text is plain sampling's; by others that are not lossy it has the target's
  /// distribution.
  virtual AcceptBy accept_by() const = 0;
  virtual const RoundStats& stats() const = 0;
  /// Of the rounds within them; null where there are none.
  virtual const RoundStats* stats_within() const = 0;
  /// Seconds of a plain step of these sequences, rank 0's: the target scores their last tokens and
  /// draws the next, which are dropped. Texts, drafts and counts are as if it had not been. Where
  /// the host attends keys for a GPU, plain decoding may be faster: it overlaps halves of a batch.
  /// in_flight() must be 0.
  virtual double time_plain_step(std::span<const decode::DrawSeq> seqs) = 0;
};

struct RoundOptions {
  std::function<void(const RoundEvent&)> on_round = {};
  VerifyChoice verify = VerifyChoice::automatic;
  FloorRule floor = {};  // where that is a rule with one
  /// Sees each round when it is over, with the target's logits of all nodes, as the device has
  /// them.
  std::function<void(const Round&, const Tensor& logits)> on_verified = {};
  /// Accepted paths are drawn from it after verification: such texts are no samples of the target,
  /// and figures of them must say so.
  std::optional<AcceptanceVector> simulate = {};
  /// Whether a round may be laid out while another is under way; by default on a GPU, which then
  /// never waits for the host. Needs room for RoundNeeds::ahead.
  std::optional<bool> ahead = {};
};

/// Rounds of any drafter.
/// target   with room for target_needs
/// errors   kind recipe: a policy without trees (topk, oracle_sampling) in the target, or in a draft
///          that proposes more than chains; a rule of verification that does not suit the
///          proposals
std::unique_ptr<Rounds> drafted_rounds(Reader target, std::unique_ptr<Drafter> drafter,
                                       RoundOptions options = {});
/// A model grows a tree (Sequoia): a small one, or the target under another reading, of which the
/// target's sequences then have to be read too. On a GPU both engines work on one queue. Greedy
/// text is that of the target under its own reading, for any draft.
/// target, draft  with room for target_needs and draft_needs
/// errors         as drafted_rounds
std::unique_ptr<Rounds> model_rounds(Reader target, Reader draft, const TokenTree& tree,
                                     RoundOptions options = {});
/// The same with chains of at most `most` tokens, whose number each round chooses by what
/// rounds took here and how often tokens were accepted; plain steps where those are faster. Texts
/// drawn at a temperature then depend on times, in the target's distribution as ever.
std::unique_ptr<Rounds> chain_rounds(Reader target, Reader draft, int most,
                                     RoundOptions options = {});
/// The same with beams (Sirius): of a level's `width` nodes each proposes its likeliest tokens, and
/// the best of all make the next level, on the device, in one graph a round. Beams are not drawn:
/// rules that weigh draws do not suit them, nor does a temperature of the sampler.
/// target, draft  with room for the needs of a beam_tree
/// errors         as drafted_rounds; kind recipe from `start` for a temperature
std::unique_ptr<Rounds> beam_rounds(Reader target, Reader draft, const Beams& beams,
                                    RoundOptions options = {});
/// How rounds within a round make a chain, each sequence at its own pace.
struct NestedShape {
  int rounds = 1;  // within a round
  int enough = 1;  // tokens with which a chain is left as it is by those that follow

  /// Tokens of a chain at most.
  /// levels   of the trees that rounds within verify
  int most(int levels) const { return std::min(enough - 1, (rounds - 1) * levels) + levels; }
};
struct WithinOptions {
  VerifyChoice verify = VerifyChoice::automatic;
  std::optional<AcceptanceVector> simulate = {};  // as RoundOptions'
  /// On the CPU: sees each round within when it is over, with the logits of all nodes.
  std::function<void(const Round&, const Tensor& logits)> on_verified = {};
};
/// Rounds within rounds (TriForce): the draft grows trees that the target verifies under the
/// reading `middle`; the chains that come of it are verified by the target as it reads.
/// target, draft  with room for nested_needs and nested_draft_needs
/// errors         as drafted_rounds
std::unique_ptr<Rounds> nested_rounds(Reader target, Reader middle, Reader draft,
                                      const TokenTree& tree, const NestedShape& shape,
                                      WithinOptions within = {}, RoundOptions options = {});
/// The same with prompt lookup within (DeviceLookupDrafter): no model drafts.
/// longest, length  as of lookup_rounds, of a round within
/// target   with room for nested_needs of chains of length + 1 nodes
/// errors   as drafted_rounds
std::unique_ptr<Rounds> nested_lookup_rounds(Reader target, Reader middle, int longest, int length,
                                             const NestedShape& shape, WithinOptions within = {},
                                             RoundOptions options = {});
/// What followed the last tokens before is proposed again (LookupDrafter), `length` tokens at most.
/// errors   as drafted_rounds
std::unique_ptr<Rounds> lookup_rounds(Reader target, int longest, int length,
                                      RoundOptions options = {});

using decode::RoundNeeds;
/// Logits of more than 256 MiB are verified in groups of trees.
RoundNeeds target_needs(const TreeRoom& tree, int batch, int vocab);
RoundNeeds draft_needs(const TreeRoom& tree, int batch);

/// The same of rounds within rounds, in which such trees are verified.
RoundNeeds nested_needs(const TreeRoom& tree, const NestedShape& shape, int batch, int vocab);
RoundNeeds nested_draft_needs(const TreeRoom& tree, const NestedShape& shape, int batch);

/// Adds what rounds by any rule hold beyond the engines.
/// has_draft  whether a model proposes
/// beams      nodes of a level where beams grow; 0: none do
void plan_rounds(const TreeRoom& tree, const decode::EngineSpec& target,
                 const model::ModelConfig& config, bool has_draft, MemoryPlan& plan, int beams = 0);
void plan_nested_rounds(const TreeRoom& tree, const NestedShape& shape,
                        const decode::EngineSpec& target, const model::ModelConfig& config,
                        bool has_draft, MemoryPlan& plan);

}  // namespace tandem::speculate
