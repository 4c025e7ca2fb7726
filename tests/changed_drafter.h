#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "speculate/draft/drafter.h"

namespace tandem::test {

/// A drafter with planted faults, on the CPU: the tests' way into rounds, which need none of their
/// own.
class ChangedDrafter final : public speculate::Drafter {
 public:
  struct Changes {
    /// Changes what was proposed, before it is verified.
    std::function<void(speculate::Round&)> proposals = {};
    /// Changes what was found by verification, before anyone reads it.
    std::function<void(speculate::Round&)> verified = {};
    /// Changes the cache after it has kept the accepted tokens.
    std::function<void(const speculate::RoundResults&, std::span<const int32_t> slots)> kept = {};
  };
  ChangedDrafter(std::unique_ptr<speculate::Drafter> inner, Changes changes)
      : inner_(std::move(inner)), changes_(std::move(changes)) {}

  bool draws_children() const override { return true; }
  bool reads_text() const override { return inner_->reads_text(); }
  std::string name() const override { return "changed " + inner_->name(); }
  const speculate::TokenTree& largest() const override { return inner_->largest(); }
  speculate::TreeRoom room() const override { return inner_->room(); }
  int rounds_within() const override { return inner_->rounds_within(); }
  std::vector<kv::Reading> readings() const override { return inner_->readings(); }
  size_t outbox_bytes(int max_seqs) const override { return inner_->outbox_bytes(max_seqs); }
  int max_places() const override { return inner_->max_places(); }
  void share(std::span<const int32_t> prefix) override { inner_->share(prefix); }
  void read(std::span<const decode::DrawSeq> seqs) override { inner_->read(seqs); }
  void forget(int slot) override { inner_->forget(slot); }
  void join(speculate::Round& round) override { inner_->join(round); }
  void abandon() override { inner_->abandon(); }
  const speculate::TokenTree& shape(std::span<const decode::DrawSeq> seqs) override {
    return inner_->shape(seqs);
  }
  void prepare(speculate::Round& round) override {
    slots_.clear();
    for (const decode::DrawSeq& s : round.seqs()) slots_.push_back(s.slot);
    inner_->prepare(round);
  }
  void draft(speculate::Round& round) override {
    inner_->draft(round);
    if (changes_.proposals) changes_.proposals(round);
  }
  void keep(speculate::Round& round) override {
    if (changes_.verified) changes_.verified(round);
    inner_->keep(round);
  }
  void accept(const speculate::RoundResults& results, const std::vector<bool>& gone) override {
    inner_->accept(results, gone);
    if (changes_.kept) changes_.kept(results, slots_);
  }
  void accept_chains(std::span<const int> accepted, const std::vector<bool>& gone) override {
    inner_->accept_chains(accepted, gone);
  }
  const speculate::RoundStats* stats_within() const override { return inner_->stats_within(); }

 private:
  std::unique_ptr<speculate::Drafter> inner_;
  Changes changes_;
  std::vector<int32_t> slots_;
};

}  // namespace tandem::test
