#include "tools/speculation/plain_meter.h"

namespace tandem::tools {

std::optional<PlainMeter::Result> PlainMeter::result() const {
  if (n_steps_ == 0 || round_tokens_ == 0) return {};
  return Result{.batch = static_cast<int>(batch_),
                .steps = n_steps_,
                .plain_ms = 1e3 * plain_s_ / (n_steps_ * static_cast<double>(batch_)),
                .round_ms = 1e3 * round_s_ / static_cast<double>(round_tokens_)};
}

void PlainMeter::start(const decode::SamplerSpec& spec) {
  flights_.clear();
  is_steady_ = false;
  rounds_.start(spec);
}

void PlainMeter::draw(std::span<const decode::DrawSeq> seqs, const Tensor& logits) {
  is_steady_ = false;
  flights_.push_back(0);
  rounds_.draw(seqs, logits);
}

void PlainMeter::step(std::span<const decode::DrawSeq> seqs) {
  if (batch_ == 0) batch_ = seqs.size();
  if (is_due()) measure(seqs);
  flights_.push_back(seqs.size());
  rounds_.step(seqs);
}

void PlainMeter::measure(std::span<const decode::DrawSeq> seqs) {
  constexpr int kMostBursts = 4, kSteps = 2;
  constexpr int64_t kSparser = 3;
  constexpr double kLongStep_s = 0.03;
  if (seqs.size() != batch_) {
    next_burst_ = kNever;
    return;
  }
  const Stopwatch watch;
  const auto add = [&](double seconds) {
    plain_s_ += seconds;
    ++n_steps_;
  };
  // Caches hold what rounds read: the first steps do not count, unless they are so long that this
  // hardly matters.
  if (const double first = rounds_.time_plain_step(seqs); first >= kLongStep_s) {
    add(first);
  } else {
    (void)rounds_.time_plain_step(seqs);
    for (int i = 0; i < kSteps; ++i) add(rounds_.time_plain_step(seqs));
  }
  next_burst_ = ++n_bursts_ < kMostBursts ? kSparser * next_burst_ : kNever;
  is_steady_ = false;
  spent_s_ += watch.seconds();
}

std::vector<std::vector<decode::Drawn>> PlainMeter::collect() {
  auto drawn = rounds_.collect();
  const bool counts = flights_.front() > 0 && flights_.front() == batch_;
  flights_.pop_front();
  if (counts) {
    ++n_rounds_;
    if (is_steady_) {
      round_s_ += since_last_.seconds();
      for (const auto& tokens : drawn) round_tokens_ += static_cast<int64_t>(tokens.size());
    }
  }
  is_steady_ = counts;
  since_last_.restart();
  return drawn;
}

}  // namespace tandem::tools
