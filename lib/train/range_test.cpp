#include "train/range_test.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tandem::train {
namespace {

constexpr std::array kRates = {1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3,
                               3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0};
constexpr size_t kFirstRate = 6;  // the rate that is tried first

/// Trials from the same values.
class Trials {
 public:
  Trials(Trainer& trainer, std::span<const std::vector<MicroBatch>> batches,
         const std::function<void()>& before_step)
      : trainer_(trainer),
        batches_(batches),
        before_step_(before_step),
        schedule_(trainer.spec().schedule),
        start_(trainer.values()) {}
  ~Trials() { trainer_.set_schedule(schedule_); }
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  double measured_loss() {
    LossSum sum;
    for (const std::vector<MicroBatch>* parts : {&batches_.front(), &batches_.back()}) {
      before_step_();
      const LossSum loss = trainer_.loss(*parts);
      sum.sum += loss.sum;
      sum.n_tokens += loss.n_tokens;
    }
    return sum.mean();
  }
  double loss_after(double rate) {
    trainer_.restart(start_);
    const std::span steps = batches_.first(batches_.size() - 1);
    trainer_.set_schedule({.rate = rate, .steps = static_cast<int64_t>(steps.size())});
    for (const std::vector<MicroBatch>& parts : steps) {
      before_step_();
      trainer_.step(parts);
    }
    const double loss = measured_loss();
    return std::isfinite(loss) ? loss : std::numeric_limits<double>::infinity();
  }
  void put_back() { trainer_.restart(start_); }

 private:
  Trainer& trainer_;
  std::span<const std::vector<MicroBatch>> batches_;
  const std::function<void()>& before_step_;
  Schedule schedule_;
  std::vector<float> start_;
};

}  // namespace

int64_t trial_steps(int64_t steps) { return std::clamp<int64_t>(steps / 20, 2, 8); }

double choose_rate(std::span<const TriedRate> tried) {
  const auto best = std::ranges::min_element(tried, {}, &TriedRate::loss);
  return (best == tried.begin() ? best : best - 1)->rate;
}

RangeTest test_range(Trainer& trainer, std::span<const std::vector<MicroBatch>> batches,
                     const std::function<void()>& before_step) {
  Trials trials(trainer, batches, before_step);
  RangeTest test{.steps = static_cast<int64_t>(batches.size()) - 1,
                 .start = trials.measured_loss(),
                 .tried = {}};
  if (!std::isfinite(test.start))
    throw make_error(ErrorKind::numeric, "train.optimizer.lr",
                     "auto: expected a finite loss of the first batches, found {}", test.start)
        .hint("inspect their records with --show-samples, or set train.optimizer.lr");
  std::vector<TriedRate>& tried = test.tried;
  const auto loss_of = [&](size_t i) { return trials.loss_after(kRates[i]); };
  const auto lowest_is_best = [&] {
    return std::ranges::min_element(tried, {}, &TriedRate::loss) == tried.begin();
  };
  // Up from the first rate until the loss rises, then down from there if that was the best.
  for (size_t i = kFirstRate; i < kRates.size(); ++i) {
    tried.push_back({kRates[i], loss_of(i)});
    if (tried.size() > 1 && tried.back().loss >= tried[tried.size() - 2].loss) break;
    if (!std::isfinite(tried.back().loss)) break;
  }
  for (size_t i = kFirstRate; i-- > 0 && lowest_is_best();)
    tried.insert(tried.begin(), {kRates[i], loss_of(i)});
  trials.put_back();
  const auto best = std::ranges::min_element(tried, {}, &TriedRate::loss);
  if (!std::isfinite(best->loss))
    throw make_error(ErrorKind::numeric, "train.optimizer.lr",
                     "auto: {} steps diverge at each rate from {} to {}", test.steps,
                     tried.front().rate, tried.back().rate)
        .hint("inspect the first records with --show-samples, or set train.optimizer.lr");
  test.learns = best->loss < test.start;
  test.rate = test.learns ? choose_rate(tried) : std::min(best->rate, RangeTest::kSafeRate);
  return test;
}

}  // namespace tandem::train
