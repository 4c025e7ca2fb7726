#include "bench/step_log.h"

#include "base/check.h"

namespace tandem::bench {

void StepLog::start(const decode::SamplerSpec& spec) {
  decoder_.start(spec);
  flying_.clear();
  steps_.clear();
  deliveries_.clear();
  last_s_ = clock_.seconds();
}

void StepLog::fly(bool is_step, std::span<const decode::DrawSeq> seqs) {
  Flight& flight = flying_.emplace_back(Flight{is_step, {}});
  for (const decode::DrawSeq& s : seqs) flight.seqs.push_back(s.seq);
}

void StepLog::draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) {
  decoder_.draw(seqs, logits);
  fly(false, seqs);
}

void StepLog::step(std::span<const decode::DrawSeq> seqs) {
  decoder_.step(seqs);
  fly(true, seqs);
}

std::vector<std::vector<decode::Drawn>> StepLog::collect() {
  std::vector<std::vector<decode::Drawn>> drawn = decoder_.collect();
  const double now = clock_.seconds();
  TANDEM_CHECK(!flying_.empty(), "expected a launched step to collect");
  const Flight flight = std::move(flying_.front());
  flying_.pop_front();
  Step step{.seconds = now - last_s_};
  for (size_t i = 0; i < flight.seqs.size(); ++i) {
    const auto n = static_cast<int>(drawn[i].size());
    if (n == 0) continue;  // it had ended
    ++step.seqs;
    deliveries_[flight.seqs[i]].push_back({now, n});
    step.tokens += n;
  }
  last_s_ = now;
  if (flight.is_step) {
    steps_.push_back(step);
    if (on_step_) on_step_(step);
  }
  return drawn;
}

}  // namespace tandem::bench
