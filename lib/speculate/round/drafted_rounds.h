#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "speculate/round/rounds.h"

namespace tandem::speculate {

/// What rounds are on either device: a target, a drafter, and at most one thing in flight.
template <class AnyDrafter>
class DraftedRounds : public Rounds {
 public:
  DraftedRounds(decode::Engine& target, std::unique_ptr<AnyDrafter> drafter, RoundOptions options)
      : target_(target),
        drafter_(std::move(drafter)),
        options_(std::move(options)),
        stats_(drafter_->name(), drafter_->max_nodes(), drafter_->max_depth()) {}

  /// errors   kind recipe: alternatives of tokens are not reported here
  void start(const decode::SamplerSpec& spec) override {
    check_sampler(spec);
    sampler_ = spec;
    target_.sampler().start(spec);
    drafter_->start(spec);
    ready_.clear();
  }
  int depth() const final { return 1; }
  int in_flight() const override { return ready_.empty() ? 0 : 1; }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) final {
    target_.sampler().draw(seqs, logits);
    for (decode::Drawn& drawn : target_.sampler().collect())
      ready_.emplace_back().push_back(std::move(drawn));
    drafter_->read(seqs);
  }
  std::vector<std::vector<decode::Drawn>> collect() override {
    TANDEM_CHECK(!ready_.empty(), "nothing is in flight");
    return std::exchange(ready_, {});
  }
  void forget(int slot) final { drafter_->forget(slot); }
  double bytes_read() const final { return bytes_read_ + drafter_->bytes_read(); }
  void share(std::span<const int32_t> prefix) final { drafter_->share(prefix); }
  void continue_from(int draft_slot) final { drafter_->continue_from(draft_slot); }
  AcceptBy accept_by() const final { return drafter_->accept_by(); }
  const RoundStats& stats() const final { return stats_; }

 protected:
  void count(const RoundEvent& round) {
    stats_.add(round);
    if (options_.on_round) options_.on_round(round);
  }

  decode::Engine& target_;
  std::unique_ptr<AnyDrafter> drafter_;
  RoundOptions options_;
  decode::SamplerSpec sampler_;
  std::vector<std::vector<decode::Drawn>>
      ready_;  // of a draw or a finished round, not collected yet
  RoundStats stats_;
  double bytes_read_ = 0;  // by the target
};

}  // namespace tandem::speculate
