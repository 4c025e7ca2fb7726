#include "speculate/measure/plain_meter.h"

#include <algorithm>

namespace tandem::speculate {

double steady_ms_a_token(std::span<const TimedRound> rounds) {
  constexpr float kOutlier = 4;
  std::vector<float> sorted;
  for (const TimedRound& r : rounds) sorted.push_back(r.seconds);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  double seconds = 0, tokens = 0;
  for (const TimedRound& r : rounds)
    if (r.seconds <= kOutlier * *middle) {
      seconds += r.seconds;
      tokens += r.tokens;
    }
  return 1e3 * seconds / tokens;
}

std::optional<PlainMeter::Result> PlainMeter::result() const {
  if (n_steps_ == 0 || timed_.empty()) return {};
  return Result{.batch = static_cast<int>(batch_),
                .steps = n_steps_,
                .plain_ms = 1e3 * plain_s_ / (n_steps_ * static_cast<double>(batch_)),
                .round_ms = steady_ms_a_token(timed_)};
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
      int n = 0;
      for (const auto& tokens : drawn) n += static_cast<int>(tokens.size());
      timed_.push_back({static_cast<float>(since_last_.seconds()), n});
    }
  }
  is_steady_ = counts;
  since_last_.restart();
  return drawn;
}

}  // namespace tandem::speculate
