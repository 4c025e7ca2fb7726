#pragma once
#include <deque>

#include "speculate/draft/drafter.h"
#include "speculate/plan/nested_choice.h"

namespace tandem::speculate {

/// Drafters of every kind, one of which proposes each round: the one that the times of their rounds
/// and recent acceptance predict to be the fastest, or none, for a plain step. Acceptance that is
/// only assumed is found out in the first rounds, unless that would cost too much. A draft that was
/// left out reads the text that it missed when its turn comes.
class ChoosingDrafter final : public Drafter {
 public:
  /// By kinds that draft, each in its one shape; null: not there.
  struct Drafters {
    std::unique_ptr<Drafter> small, retrieval, nested;
  };
  /// Times and acceptance known beforehand. The options have the drafters' shapes alone.
  struct Outlook {
    NestedCost cost;
    NestedOptions options;
    double alpha1 = 0, alpha2 = 0;  // acceptance to begin with
  };
  ChoosingDrafter(Drafters drafters, Outlook outlook);

  bool draws_children() const override { return true; }
  std::string name() const override { return "auto"; }
  const TokenTree& largest() const override { return largest_; }
  TreeRoom room() const override;
  std::vector<kv::Reading> readings() const override;
  size_t outbox_bytes(int max_seqs) const override;
  int max_places() const override;
  int rounds_within() const override;

  void share(std::span<const int32_t> prefix) override;
  void forget(int slot) override;
  void join(Round& round) override;
  void abandon() override;
  const TokenTree& shape(std::span<const decode::DrawSeq> seqs) override;
  void prepare(Round& round) override;
  void draft(Round& round) override;
  void keep(Round& round) override;
  bool is_recordable() const override;
  bool may_be_ahead() const override;
  void accept(const RoundResults& results, const std::vector<bool>& gone) override;
  double bytes_read() const override;
  const RoundStats* stats_within() const override;

  /// The choice by recent acceptance, and the speeds of the others.
  RoundChoices choices() const;
  double alpha1() const { return within_.alpha(); }
  double alpha2() const { return around_.alpha(); }
  /// Rounds of a batch by kind so far.
  const std::array<int64_t, 4>& rounds_by_kind() const { return rounds_by_kind_; }

 private:
  /// Acceptance of tested tokens, later ones with more weight.
  struct Running {
    double accepted = 0, tested = 0;
    double seen = 0;  // tested in all
    double alpha() const { return accepted / tested; }
    void add(double more_accepted, double more_tested);
  };
  Drafter* drafter_of(RoundKind kind) const;
  template <class Work>
  void for_all(const Work& work) const;
  void choose();

  Drafters drafters_;
  Outlook outlook_;
  Running within_, around_;
  TokenTree root_, largest_;
  RoundKind next_ = RoundKind::plain, drawn_ = RoundKind::plain;  // of the next round; the last
  std::deque<RoundKind> flights_;                                 // oldest first
  std::array<int64_t, 4> rounds_by_kind_ = {};
};

}  // namespace tandem::speculate
