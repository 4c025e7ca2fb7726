#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "decode/decoder.h"
#include "speculate/round/round_stats.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

/// Decoding by rounds: something proposes tokens, the target scores all of them in one forward and
/// keeps those that it might have said itself.
class Rounds : public decode::Decoder {
 public:
  /// All texts from now on begin with these tokens: what proposes reads them once.
  virtual void share(std::span<const int32_t> prefix) = 0;
  /// As share, of tokens that this slot of the draft's cache holds already; it stays the caller's.
  virtual void continue_from(int draft_slot) = 0;
  /// residual: the law of a text is the target's; match: the very text is plain sampling's.
  virtual AcceptBy accept_by() const = 0;
  virtual const RoundStats& stats() const = 0;
};

struct RoundOptions {
  std::function<void(const RoundEvent&)> on_round = {};
  /// Accepted paths are drawn from it after verification: such texts follow no law, and whoever
  /// shows figures of them must say so.
  std::optional<AcceptanceVector> simulate = {};
};

/// A small model grows a tree (Sequoia). On a GPU both engines work on one queue.
/// Either engine may read its text under a policy: greedy text is then that of the target under its
/// own.
/// target, draft  with room for target_needs and draft_needs; on a GPU of vocabularies of one size
/// errors         kind recipe: a policy without trees (topk, oracle_sampling)
std::unique_ptr<Rounds> model_rounds(decode::Engine& target, decode::Engine& draft,
                                     const TokenTree& tree, RoundOptions options = {});
/// What followed the last tokens before is proposed again (LookupDrafter), `length` tokens at most.
/// errors   as model_rounds
std::unique_ptr<Rounds> lookup_rounds(decode::Engine& target, int longest, int length,
                                      RoundOptions options = {});

/// Room that rounds need in an engine beyond the texts themselves.
struct RoundNeeds {
  int rows = 0;        // of the forwards of a round together
  int logit_rows = 0;  // alive at once
  int tokens = 0;      // beyond a sequence's text
};
RoundNeeds target_needs(const TokenTree& tree, int batch);
RoundNeeds draft_needs(const TokenTree& tree, int batch, Device device);

/// Adds what rounds hold beside the engines.
/// has_draft  whether a model proposes
void plan_rounds(const TokenTree& tree, const decode::EngineSpec& target,
                 const model::ModelConfig& config, bool has_draft, MemoryPlan& plan);

}  // namespace tandem::speculate
