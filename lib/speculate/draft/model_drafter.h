#pragma once
#include <deque>

#include "base/clock.h"
#include "speculate/draft/beams.h"
#include "speculate/draft/draft_sequences.h"
#include "speculate/draft/drafter.h"
#include "speculate/draft/gamma_chooser.h"

namespace tandem::speculate {

/// A model that grows a tree of fixed shape level by level, the children of every node drawn
/// without replacement from its distribution (Sequoia, section 4.1; at temperature 0 its best
/// tokens). The model may be the target itself, which then reads its sequences another way. Or
/// chains, whose length each round chooses. Or beams, whose parents are found as they grow.
class ModelDrafter final : public Drafter {
 public:
  static size_t outbox_bytes(const TreeRoom& tree, int max_seqs);
  /// draft    with room for draft_needs; on a GPU on the target's queue
  ModelDrafter(Reader draft, Reader target, TokenTree tree);
  ModelDrafter(Reader draft, Reader target, GammaChooser chooser);
  ModelDrafter(Reader draft, Reader target, const Beams& beams);

  bool draws_children() const override { return !beams_; }
  int beams() const override { return beams_ ? beams_->width : 0; }
  std::string name() const override;
  const TokenTree& largest() const override { return shapes_.back(); }
  size_t outbox_bytes(int max_seqs) const override {
    return outbox_bytes(TreeRoom::of(largest()), max_seqs);
  }
  std::vector<kv::Reading> readings() const override {
    return is_self_ ? std::vector{draft_.reading} : std::vector<kv::Reading>{};
  }
  int max_places() const override;

  void share(std::span<const int32_t> prefix) override { sequences_.share(prefix); }
  void continue_from(int draft_slot) override { sequences_.continue_from(draft_slot); }
  void read(std::span<const decode::DrawSeq> seqs) override {
    is_steady_ = false;
    (void)sequences_.read(seqs);
  }
  void forget(int slot) override {
    is_steady_ = false;
    sequences_.forget(slot);
    if (chooser_) chooser_->forget(slot);
  }

  void pause() override { is_steady_ = false; }
  void join(Round& round) override { sequences_.join(round.is_within()); }
  void abandon() override {
    flights_.clear();
    sequences_.abandon();
  }
  const TokenTree& shape(std::span<const decode::DrawSeq> seqs) override;

  void prepare(Round& round) override;
  void draft(Round& round) override;
  void keep(Round& round) override;
  bool is_recordable() const override { return draft_.engine->is_recordable(draft_.reading); }
  /// A draft with a separate cache must have read all but the last tokens.
  bool may_be_ahead() const override { return is_self_ || has_drafted_; }
  void accept(const RoundResults& results, const std::vector<bool>& gone) override;
  void accept_chains(std::span<const int> accepted, const std::vector<bool>& gone) override;
  double bytes_read() const override { return bytes_read_; }

 private:
  ModelDrafter(Reader draft, Reader target, std::vector<TokenTree> shapes);
  /// A round under way.
  struct Flight {
    std::vector<int> seqs;  // their slots
    int n_levels_run = 0;   // forwards
    bool is_timed = true;
    double kv_bytes = 0;
  };

  void observe(const Flight& flight, const RoundResults& results, const std::vector<bool>& gone);
  void count(const Flight& flight);
  int n_levels_run() const { return static_cast<int>(steps_.size()); }

  Reader draft_;
  bool is_self_;
  int vocab_;                      // the target's
  std::vector<TokenTree> shapes_;  // rising
  std::optional<GammaChooser> chooser_;
  std::optional<Beams> beams_;
  DraftSequences sequences_;
  // Of the round:
  std::span<const kv::Step> steps_;
  Mirrored<int32_t> unread_;    // [places * unread] what the first forward takes
  Mirrored<int32_t> root_row_;  // [places] its rows of the roots
  std::deque<Flight> flights_;  // oldest first
  double kv_bytes_before_ = 0, bytes_read_ = 0;
  bool has_drafted_ = false;  // in the last round
  Stopwatch since_last_;      // round
  bool is_steady_ = false;    // nothing but this round came after the last
};

}  // namespace tandem::speculate
