#pragma once
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "speculate/draft/drafter.h"
#include "speculate/round/rounds.h"
#include "speculate/round/verifier.h"

namespace tandem::speculate {

/// Rounds on either device: a drafter proposes a tree for each sequence, the target scores all
/// nodes in one forward, a path is kept by a rule that leaves the distribution of the text as it
/// is, and one more token is drawn where the path ends. On a GPU that is one graph, from the copy
/// of the host's layout to that of the results. The host lays the next round out while one
/// works: lengths are on the GPU, which so goes from round to round without a wait, and the host
/// learns a round late how one ended. It waits where proposals or the sampler's rule ask for the
/// tokens (Drafter::may_be_ahead), and where drafts cannot be recorded. Work that cannot, such as
/// layers whose weights are streamed, runs between graphs.
/// Tokens move into a policy's index when their number says so (Cache::next_change): no round goes
/// beyond such a number, and none is laid out ahead of one that may reach it. So each row of the
/// target reads what it reads in plain decoding.
/// source   Sequoia, algorithm 2 for drawn children; for deterministic ones a token of the target is
///          drawn and the child equal to it accepted
class Speculation final : public Rounds {
 public:
  /// target   an engine with room for target_needs
  /// arena    holds what Round::plan says; outlives the rounds' work
  Speculation(Reader target, std::unique_ptr<Drafter> drafter, const Round::Bounds& bounds,
              std::unique_ptr<Arena> arena, RoundOptions options);
  ~Speculation() override;

  kv::Readers readers() const override;
  /// errors   kind recipe: alternatives of tokens are not reported here
  void start(const decode::SamplerSpec& spec) override;
  int depth() const override;
  int in_flight() const override { return static_cast<int>(flights_.size()); }
  double tokens_a_step() const override { return tokens_a_round_; }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override;
  double bytes_read() const override { return bytes_read_ + drafter_->bytes_read(); }
  void share(std::span<const int32_t> prefix) override { drafter_->share(prefix); }
  void continue_from(int draft_slot) override { drafter_->continue_from(draft_slot); }
  AcceptBy accept_by() const override { return verifier_.rule(); }
  const RoundStats& stats() const override { return stats_; }
  const RoundStats* stats_within() const override { return drafter_->stats_within(); }
  double time_plain_step(std::span<const decode::DrawSeq> seqs) override;

 private:
  /// A draw, or a round under way.
  struct Flight {
    std::vector<int> seqs;                          // their names
    std::vector<int32_t> slots;                     // of the target's cache
    std::vector<bool> gone;                         // sequences that have ended since
    bool may_change = false;                        // how the target reads one of them afterwards
    std::unique_ptr<cuda::Event> done;              // on a GPU
    RoundResults results;                           // of a round
    std::vector<std::vector<decode::Drawn>> drawn;  // else

    bool is_round() const { return drawn.empty(); }
  };

  /// Waits for rounds whose results are not wanted; the next work on the GPU reports its errors.
  void abandon() noexcept;
  /// Places of the sequences in a round under way, which is the newest flight; -1: in none.
  std::vector<int> prior(std::span<const decode::DrawSeq> seqs) const;
  /// Ends the round that has begun where the target would read by another rule.
  /// result   whether a sequence may get there in it
  bool limit_round();
  /// Puts the round that is laid out on the queue.
  /// drafts   false: nothing proposes, nor learns of the round
  void launch(bool drafts);
  std::vector<std::vector<decode::Drawn>> finish_round(const Flight& flight);

  decode::Engine& target_;
  std::unique_ptr<Arena> arena_;
  Exec exec_;
  std::unique_ptr<Drafter> drafter_;
  RoundOptions options_;
  Verifier verifier_;
  decode::SamplerSpec sampler_;
  Round round_;
  RoundStats stats_;
  TokenTree plain_ = chain_tree(1);  // of time_plain_step
  double bytes_read_ = 0;            // by the target
  /// By places, shape and piece of the work; for the sampler's settings but for the seed.
  std::map<std::tuple<int, const TokenTree*, size_t>, std::unique_ptr<cuda::Graph>> graphs_;
  std::deque<Flight> flights_;  // oldest first
  double tokens_a_round_ = 1;   // of a sequence, of late
};

}  // namespace tandem::speculate
