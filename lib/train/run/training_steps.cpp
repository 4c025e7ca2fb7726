// The steps of a TrainingRun, their batches and validations.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/sha256.h"
#include "train/run/training_run.h"

namespace tandem::train {
namespace {

/// Steps in a row without a finite loss or gradient, after which a run ends.
constexpr int kMostSkipped = 3;

int64_t or_tenth(const std::optional<int>& every, int64_t steps) {
  return every ? *every : std::max<int64_t>(1, steps / 10);
}

}  // namespace

Epoch TrainingRun::epoch(int64_t number) const {
  return {data_.data, data_.train, recipe_.train.batches, static_cast<uint64_t>(recipe_.run.seed),
          number};
}

std::vector<MicroBatch> TrainingRun::parts_of(const Epoch& epoch, int64_t step) const {
  std::vector<MicroBatch> all;
  for (const MicroPlan& p : epoch.step(step)) all.push_back(make_micro_batch(data_.data, p));
  return all;
}

std::vector<MicroBatch> TrainingRun::batches(int64_t step) {
  const int64_t number = step / steps_per_epoch_;
  if (number != epoch_number_) {
    epoch_.clear();
    epoch_.push_back(epoch(number));
    epoch_number_ = number;
  }
  return parts_of(epoch_.front(), step % steps_per_epoch_);
}

LossSum TrainingRun::validate(Trainer& trainer) const {
  std::vector<MicroBatch> batches;  // of which ranks take turns
  for (const MicroPlan& p : divide(data_.validation(), data_.val, recipe_.train.batches))
    batches.push_back(make_micro_batch(data_.validation(), p));
  return trainer.loss(batches);
}

bool TrainingRun::validates_at(int64_t step) const {
  if (data_.val.empty() || step == 0) return false;
  const auto from = recipe_.eval.after.value * static_cast<double>(n_steps_);
  return (step % or_tenth(recipe_.eval.every, n_steps_) == 0 || step == n_steps_) &&
         static_cast<double>(step) >= from;
}

std::string TrainingRun::records_of(int64_t step) const {
  const Epoch of = epoch(step / steps_per_epoch_);
  std::string text;
  for (const int32_t sample : of.samples(step % steps_per_epoch_))
    text += (text.empty() ? "" : ", ") + data_.data.where(sample);
  return text;
}

void TrainingRun::report_skipped(int64_t step, const StepResult& r, int in_a_row) const {
  cx_.warn(fmt::format("step {} is skipped: loss {}, gradient norm {}, records {}", step,
                       r.loss.mean(), r.gradient_norm, records_of(step - 1)));
  if (in_a_row >= kMostSkipped)
    throw make_error(ErrorKind::numeric, fmt::format("step {}", step),
                     "{} steps in a row had a non-finite loss or gradient", in_a_row)
        .hint("lower train.optimizer.lr, or inspect the records with --show-samples");
}

void TrainingRun::check_ranks(const Trainer& trainer, int64_t step) const {
  if (!cx_.group()) return;
  const std::vector<float> values = trainer.values();
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(float));
  cx_.group()->require_equal(fmt::format("trained values after step {}", step),
                             sha256_hex(bytes).substr(0, 16));
}

void TrainingRun::find_rate(Trainer& trainer, RunProgress& at, MetricsFile* metrics) {
  if (!recipe_.train.optimizer.finds_lr(recipe_.train.method)) return;
  Schedule schedule = spec_.schedule;
  if (at.done == 0) {
    std::vector<std::vector<MicroBatch>> steps;
    for (int64_t i = 0; i <= trial_steps(n_steps_); ++i) steps.push_back(batches(i));
    constexpr double kTrials = 6;  // about
    const double all = kTrials * static_cast<double>(steps.size() + 1);
    const auto line = cx_.progress("learning rate", all, "steps");
    double done = 0;
    const RangeTest test = test_range(trainer, steps, [&] {
      (void)cx_.agree_interrupted();
      line->update(std::min(all, done++));
    });
    at.rate = test.rate;
    if (metrics) metrics->add_range_test(test);
    std::string tried;
    for (const TriedRate& t : test.tried)
      tried += fmt::format("{}{} {:.4f}", tried.empty() ? "" : ", ", t.rate, t.loss);
    cx_.note(fmt::format("lr       {} from a range test  loss {:.4f}, after {} steps at {}",
                         at.rate, test.start, test.steps, tried));
    if (!test.learns)
      cx_.warn(
          fmt::format("train.optimizer.lr: no tested rate lowers the loss of the first batches, so "
                      "{} is a guess",
                      at.rate));
  } else if (at.rate == 0) {
    at.rate = RangeTest::kSafeRate;  // the default when this run began
  }
  if (cx_.group())
    cx_.group()->require_equal("train.optimizer.lr by the range test", fmt::format("{}", at.rate));
  schedule.rate = at.rate;
  trainer.set_schedule(schedule);
}

void TrainingRun::go_on(Trainer& trainer, RunProgress& at, RunCheckpoints& checkpoints,
                        RunReport& report) {
  std::optional<MetricsFile> metrics;  // of rank 0
  if (writes()) metrics.emplace(file(kMetrics), at.done, recipe_.train.log);
  const int64_t save_every = or_tenth(recipe_.train.save_every, n_steps_);
  RunProgress saved = at;
  const auto save = [&] {
    if (saved == at) return;
    check_ranks(trainer, at.done);
    checkpoints.save(trainer, at);
    if (metrics) metrics->sync();
    if (cx_.group()) (void)cx_.group()->agree(0);  // others do not end before it is there
    saved = at;
  };
  try {
    find_rate(trainer, at, metrics ? &*metrics : nullptr);
    saved = at;
    for (int skipped = 0;;) {
      // One that a signal has ended is made up for before the next step.
      if (validates_at(at.done) && at.best.last != at.done) {
        const double loss = validate(trainer).mean();
        at.best.add(at.done, loss);
        if (metrics) metrics->add_validation(at.done, loss, at.best);
        report.add_validation(loss);
      }
      if (metrics) report.set_first_loss(metrics->first_loss());
      const bool ends = at.done == n_steps_ || at.best.gives_up(recipe_.eval.patience);
      if (ends || at.done % save_every == 0 || at.best.step == at.done) save();
      if (ends) return;
      (void)cx_.agree_interrupted();
      const Stopwatch watch;
      const std::vector<MicroBatch> parts = batches(at.done);
      const StepResult r = trainer.step(parts);
      ++at.done;
      const double seconds = watch.seconds();
      if (metrics) metrics->add_step(at.done, (at.done - 1) / steps_per_epoch_, r, seconds);
      report.add_step(at.done, r, work_of(parts), seconds);
      if (r.skipped && r.loss.n_tokens > 0)
        report_skipped(at.done, r, ++skipped);
      else
        skipped = 0;
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;
    save();
    cx_.note(fmt::format("stopped after step {} of {} (to continue: --resume)", at.done, n_steps_));
    throw;
  }
}

}  // namespace tandem::train
