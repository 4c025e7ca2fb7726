#include "tools/training/run_report.h"

#include <fmt/format.h>

#include "base/parallel.h"
#include "bench/hardware.h"
#include "cli/terminal.h"

namespace tandem::tools {
namespace {

/// Operations a second that products reach on this machine; 0: not measured.
double measured_rate(DType dtype) {
  const auto ceilings = bench::known_ceilings(max_threads());
  return ceilings ? ceilings->gemm_gflops(dtype) * 1e9 : 0;
}

}  // namespace

std::string RunSize::text(int64_t done) const {
  const auto left = static_cast<double>(n_steps - done);
  const double operations = left * work.done(), rate = measured_rate(dtype);
  std::string text =
      fmt::format("work     {} steps, {:.1f} epochs  about {} tokens, {:.3g} TFLOP", n_steps - done,
                  left / static_cast<double>(steps_per_epoch),
                  cli::short_number(left * static_cast<double>(tokens)), operations * 1e-12);
  if (rate > 0 && operations >= rate)  // a second
    text += fmt::format("  at least {} at the measured {:.0f} GFLOP/s",
                        cli::short_time(operations / rate), rate * 1e-9);
  return text;
}

RunReport::RunReport(cli::Context& cx, const RunSize& size, int64_t begun)
    : cx_(cx),
      size_(size),
      begun_(begun),
      progress_(cx.terminal, "training", static_cast<double>(size.n_steps), "steps",
                static_cast<double>(begun)) {}

void RunReport::add_step(int64_t step, const train::StepResult& result, const train::Work& work,
                         double seconds) {
  tokens_ += result.n_rows;
  seconds_ += seconds;
  work_ += work;
  last_loss_ = result.loss.mean();
  std::string detail = fmt::format("loss {:.4f}", last_loss_);
  if (val_loss_) detail += fmt::format(" (validation {:.4f})", *val_loss_);
  detail += fmt::format("  {} tok/s", cli::short_number(static_cast<double>(tokens_) / seconds_));
  progress_.update(static_cast<double>(step), detail);
}

std::string RunReport::rate_line() const {
  const double rate = measured_rate(size_.dtype);
  if (rate == 0 || seconds_ == 0) return {};
  const double reached = work_.done() / seconds_;
  return fmt::format(
      "rate     {:.1f} GFLOP/s, {:.0f} % of the measured {:.0f} of products; counted as steps of "
      "all "
      "weights {:.0f} %",
      reached * 1e-9, 100 * reached / rate, rate * 1e-9,
      100 * work_.of_full_step() / seconds_ / rate);
}

void RunReport::finish(const train::RunProgress& at) {
  const int64_t n = at.done - begun_;
  std::string text = fmt::format("trained  {} steps", at.done);
  if (at.done < size_.n_steps)
    text += fmt::format(" of {}: {} validations in a row without a better loss", size_.n_steps,
                        at.best.worse);
  if (n == 0) {
    text += ", all of them before";
  } else {
    const double s = clock_.seconds();
    if (begun_ > 0) text += fmt::format(", {} of them now", n);
    text += fmt::format(", {} tokens in {:.1f} s ({:.0f} a second)  loss {:.4f} to {:.4f}", tokens_,
                        s, static_cast<double>(tokens_) / s, first_loss_, last_loss_);
    if (val_loss_) text += fmt::format(", validation {:.4f}", *val_loss_);
  }
  cx_.out.line(text);
  if (at.best.found())
    cx_.out.line(fmt::format("best     step {}, validation {:.4f}: its weights are the result",
                             at.best.step, at.best.loss));
  if (const std::string line = rate_line(); !line.empty()) cx_.out.line(line);
}

}  // namespace tandem::tools
