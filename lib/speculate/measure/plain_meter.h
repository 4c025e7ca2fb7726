#pragma once
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "speculate/round/rounds.h"

namespace tandem::speculate {

struct TimedRound {
  float seconds = 0;
  int tokens = 0;
};

/// Milliseconds a token. Rounds that took over four times the median are left out: a GPU records
/// its graphs in them, or other programs held the machine.
double steady_ms_a_token(std::span<const TimedRound> rounds);

/// Rounds, and among them a few plain steps of the same sequences for comparison, whose tokens are
/// dropped. They come in bursts, each after three times as many rounds as the one before: contexts
/// of the whole text count, and long texts lose little time.
class PlainMeter final : public decode::Decoder {
 public:
  explicit PlainMeter(Rounds& rounds) : rounds_(rounds) {}

  struct Result {
    int batch = 0;        // sequences of a step, and of the rounds that count
    int steps = 0;        // plain ones
    double plain_ms = 0;  // a token, of all sequences together
    double round_ms = 0;  // a token in rounds

    double speedup() const { return plain_ms / round_ms; }
  };
  /// None where the run had too few rounds of its first batch.
  std::optional<Result> result() const;
  /// Time that went into plain steps; a report of decode::generate counts it as decode_s.
  double seconds_spent() const { return spent_s_; }

  kv::Readers readers() const override { return rounds_.readers(); }
  void start(const decode::SamplerSpec& spec) override;
  /// 1 before plain steps, which need the results of all rounds.
  int depth() const override { return is_due() ? 1 : rounds_.depth(); }
  int in_flight() const override { return rounds_.in_flight(); }
  double tokens_a_step() const override { return rounds_.tokens_a_step(); }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override { rounds_.forget(slot); }
  double bytes_read() const override { return rounds_.bytes_read(); }

 private:
  static constexpr int64_t kFewestRounds = 4, kNever = std::numeric_limits<int64_t>::max();

  bool is_due() const { return n_rounds_ >= next_burst_; }
  void measure(std::span<const decode::DrawSeq> seqs);

  Rounds& rounds_;
  std::deque<size_t> flights_;  // sequences of each round, 0 of a draw
  size_t batch_ = 0;            // of the first round
  int64_t n_rounds_ = 0;        // of this batch
  int64_t next_burst_ = kFewestRounds;
  bool is_steady_ = false;  // nothing but rounds of this batch came after the last
  Stopwatch since_last_;    // round
  std::vector<TimedRound> timed_;
  double plain_s_ = 0, spent_s_ = 0;
  int n_bursts_ = 0, n_steps_ = 0;
};

}  // namespace tandem::speculate
