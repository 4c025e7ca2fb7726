#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "decode/decoder.h"

namespace tandem::bench {

/// A decoder that notes when another one's tokens come: plain decoding and rounds are timed by the
/// same clock at the same place.
class StepLog final : public decode::Decoder {
 public:
  /// A step, or a round, of a batch.
  struct Step {
    int seqs = 0;        // that got tokens
    double seconds = 0;  // since the tokens before were collected
    int64_t tokens = 0;  // drawn for all sequences; a last round may draw more than are kept
  };
  /// Tokens of one sequence that came together.
  struct Delivery {
    double at_s = 0;
    int tokens = 0;
  };

  /// on_step  called after each step with tokens collected
  explicit StepLog(decode::Decoder& decoder, std::function<void(const Step&)> on_step = {})
      : decoder_(decoder), on_step_(std::move(on_step)) {}

  const std::vector<Step>& steps() const { return steps_; }
  /// By the number that names the sequence; first what the prompt's logits gave.
  const std::map<int, std::vector<Delivery>>& deliveries() const { return deliveries_; }

  kv::Readers readers() const override { return decoder_.readers(); }
  void start(const decode::SamplerSpec& spec) override;
  int depth() const override { return decoder_.depth(); }
  int in_flight() const override { return decoder_.in_flight(); }
  double tokens_a_step() const override { return decoder_.tokens_a_step(); }
  void draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) override;
  void step(std::span<const decode::DrawSeq> seqs) override;
  std::vector<std::vector<decode::Drawn>> collect() override;
  void forget(int slot) override { decoder_.forget(slot); }
  double bytes_read() const override { return decoder_.bytes_read(); }

 private:
  struct Flight {
    bool is_step;
    std::vector<int> seqs;
  };
  void fly(bool is_step, std::span<const decode::DrawSeq> seqs);

  decode::Decoder& decoder_;
  std::function<void(const Step&)> on_step_;
  Stopwatch clock_;
  double last_s_ = 0;  // when tokens were collected last
  std::deque<Flight> flying_;
  std::vector<Step> steps_;
  std::map<int, std::vector<Delivery>> deliveries_;
};

}  // namespace tandem::bench
