#pragma once
#include <deque>

#include "speculate/draft/drafter.h"
#include "speculate/round/rounds.h"
#include "speculate/round/verifier.h"
#include "tensor/arena.h"

namespace tandem::speculate {

/// Chains that come out of rounds within a round (TriForce): a drafter proposes, the target under
/// another reading verifies, and what it keeps is the next part of the chain, for each sequence as
/// many tokens as it has accepted and one more. Tokens of a chain follow the distribution of that
/// reading, regardless of the drafter, a model or prompt lookup: that is what the round around
/// needs to know to verify them in turn. Their keys are tentative behind the text, as those of any
/// drafted rows, and the target's forward writes over them.
/// source   TriForce (arXiv 2404.11912), algorithm 1; the residual rules of algorithm 2 of Sequoia,
///          block and traversal verification at both levels
class NestedDrafter final : public Drafter {
 public:
  /// middle   the target, as its forwards within a round read
  /// within   proposes there
  NestedDrafter(Reader middle, std::unique_ptr<Drafter> within, NestedShape shape,
                WithinOptions options);
  ~NestedDrafter() override;

  /// What the rounds within need to know of the drafter there.
  struct Within {
    TreeRoom room;
    bool draws = true, reads_text = false;  // Drafter::draws_children, reads_text
    size_t outbox_bytes = 0;

    static Within of(const Drafter& drafter, int max_seqs) {
      return {drafter.room(), drafter.draws_children(), drafter.reads_text(),
              drafter.outbox_bytes(max_seqs)};
    }
  };
  /// Of the rounds within.
  static Round::Bounds bounds(const Within& within, const NestedShape& shape,
                              const decode::EngineSpec& target, int vocab);

  bool draws_children() const override { return true; }
  std::string name() const override;
  const TokenTree& largest() const override { return chain_; }
  std::vector<kv::Reading> readings() const override;
  size_t outbox_bytes(int max_seqs) const override;
  int max_places() const override;
  int rounds_within() const override { return shape_.rounds; }

  void share(std::span<const int32_t> prefix) override { within_->share(prefix); }
  void continue_from(int draft_slot) override { within_->continue_from(draft_slot); }
  void read(std::span<const decode::DrawSeq> seqs) override { within_->read(seqs); }
  void forget(int slot) override { within_->forget(slot); }

  void join(Round& round) override;
  void abandon() override;
  const TokenTree& shape(std::span<const decode::DrawSeq> seqs) override;
  void prepare(Round& round) override;
  void draft(Round& round) override;
  bool is_recordable() const override;
  bool may_be_ahead() const override { return has_drafted_ && within_->may_be_ahead(); }
  void accept(const RoundResults& results, const std::vector<bool>& gone) override;
  double bytes_read() const override { return bytes_read_ + within_->bytes_read(); }
  const RoundStats* stats_within() const override { return &stats_; }

 private:
  /// A round under way.
  struct Flight {
    std::vector<int> seqs;  // their names
    bool drafted = false;
  };

  std::unique_ptr<Drafter> within_;
  NestedShape shape_;
  WithinOptions options_;
  Verifier verifier_;
  TokenTree chain_, root_;
  RoundStats stats_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Round> round_;
  std::deque<Flight> flights_;  // oldest first
  bool has_drafted_ = false;    // in the last round
  double bytes_read_ = 0;       // by the verifier
};

}  // namespace tandem::speculate
