#pragma once
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "decode/fit/placement.h"
#include "decode/run_context.h"
#include "train/checkpoint/checkpoint.h"
#include "train/work.h"

namespace tandem::train {

/// Operations a second of a device's products.
struct ProductRate {
  double per_second = 0;             // 0: not known
  const char* source = "measured";   // or whose figure it is
  std::optional<DType> of_cpu = {};  // of the operands, where the rate is this CPU's
};

/// What products of a number type reach: on the CPU as measured on this machine, if it has been; on
/// a GPU as the card's data sheet says of bf16.
ProductRate product_rate(DType dtype, const decode::MemoryLimits& limits);

/// How much a run has to do, as its first step says.
struct RunSize {
  int64_t n_steps = 0, steps_per_epoch = 0;
  int64_t tokens = 0;  // of the first step
  Work work;           // of the first step
  ProductRate rate;

  /// Steps, tokens, operations, and the time that the products take at that rate.
  /// done   steps that are done already
  std::string text(int64_t done = 0) const;
};

/// Reports of a run: a line while it runs, a summary at its end.
class RunReport {
 public:
  /// begun   steps that an earlier process has done
  RunReport(const decode::RunContext& cx, const RunSize& size, int64_t begun);

  void add_step(int64_t step, const StepResult& result, const Work& work, double seconds);
  void add_validation(double loss) { val_loss_ = loss; }
  /// Of the run's first step, in this process or an earlier one.
  void set_first_loss(std::optional<double> loss) { first_loss_ = loss.value_or(first_loss_); }
  void finish(const RunProgress& at);

 private:
  std::string rate_line() const;

  const decode::RunContext& cx_;
  RunSize size_;
  int64_t begun_, tokens_ = 0;
  double seconds_ = 0;  // in steps, without validations and checkpoints
  double first_loss_ = 0, last_loss_ = 0;
  std::optional<double> val_loss_;
  Work work_;
  Stopwatch clock_;
  std::unique_ptr<decode::ProgressLine> progress_;
};

}  // namespace tandem::train
