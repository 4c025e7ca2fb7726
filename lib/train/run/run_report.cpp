#include "train/run/run_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/gpu_cards.h"
#include "base/parallel.h"
#include "base/short_text.h"
#include "machine/hardware.h"
#include "tensor/cuda.h"

namespace tandem::train {

ProductRate product_rate(DType dtype, const decode::MemoryLimits& limits) {
  if (!limits.on_gpu()) {
    const auto ceilings = machine::known_ceilings(max_threads());
    return {.per_second = ceilings ? ceilings->gemm_gflops(dtype) * 1e9 : 0, .of_cpu = dtype};
  }
  if (dtype != DType::bf16) return {};
  const std::string name = limits.plan_for ? std::string(limits.plan_for->title)
                                           : cuda::device_info(limits.gpu.index).name;
  for (const GpuCard& card : gpu_cards())
    if (card.title == name)
      return {.per_second = card.bf16_tflops * 1e12, .source = "data sheet's"};
  return {};
}

std::string RunSize::text(int64_t done) const {
  const auto left = static_cast<double>(n_steps - done);
  const double operations = left * work.done();
  std::string text =
      fmt::format("work     {} steps, {:.1f} epochs  about {} tokens, {:.3g} TFLOP", n_steps - done,
                  left / static_cast<double>(steps_per_epoch),
                  short_number(left * static_cast<double>(tokens)), operations * 1e-12);
  if (rate.per_second > 0 && operations >= rate.per_second)
    text +=
        fmt::format("  at least {} at the {} {:.0f} GFLOP/s",
                    short_time(operations / rate.per_second), rate.source, rate.per_second * 1e-9);
  return text;
}

RunReport::RunReport(const decode::RunContext& cx, const RunSize& size, int64_t begun)
    : cx_(cx),
      size_(size),
      begun_(begun),
      progress_(cx.progress("training", static_cast<double>(size.n_steps), "steps",
                            static_cast<double>(begun))) {}

void RunReport::add_step(int64_t step, const StepResult& result, const Work& work, double seconds) {
  tokens_ += result.n_rows;
  seconds_ += seconds;
  work_ += work;
  last_loss_ = result.loss.mean();
  std::string loss = fmt::format("loss {:.4f}", last_loss_);
  if (val_loss_) loss += fmt::format(" (validation {:.4f})", *val_loss_);
  const double rate = static_cast<double>(tokens_) / seconds_;
  progress_->update(static_cast<double>(step), {loss, fmt::format("{} tok/s", short_number(rate))});
}

std::string RunReport::rate_line() const {
  if (size_.rate.per_second == 0 || seconds_ == 0) return {};
  const double reached = work_.done() / seconds_;
  const double rate = std::max(size_.rate.per_second, reached);
  if (size_.rate.of_cpu)
    machine::raise_ceilings(max_threads(), {.gflops = reached * 1e-9, .dtype = *size_.rate.of_cpu});
  return fmt::format(
      "rate     {:.1f} GFLOP/s, {:.0f} % of the {} {:.0f} for matrix products ({:.1f} if counted "
      "as full training)",
      reached * 1e-9, 100 * reached / rate, size_.rate.source, rate * 1e-9,
      work_.of_full_step() / seconds_ * 1e-9);
}

void RunReport::finish(const RunProgress& at) {
  const int64_t n = at.done - begun_;
  std::string text = fmt::format("trained  {} steps", at.done);
  if (at.done < size_.n_steps)
    text += fmt::format(" of {}: {} validations in a row without a better loss", size_.n_steps,
                        at.best.worse);
  if (n == 0) {
    text += ", all in earlier runs";
  } else {
    const double s = clock_.seconds();
    if (begun_ > 0) text += fmt::format(", {} in this run", n);
    text += fmt::format(", {} tokens in {:.1f} s ({:.0f} tok/s)  loss {:.4f} to {:.4f}", tokens_, s,
                        static_cast<double>(tokens_) / s, first_loss_, last_loss_);
    if (val_loss_) text += fmt::format(", validation {:.4f}", *val_loss_);
  }
  cx_.print(text);
  constexpr double kRise = 1.2;  // batches differ by less
  if (n > 0 && !(last_loss_ <= kRise * first_loss_))
    cx_.warn(fmt::format("the loss rose from {:.4f} to {:.4f}: set a lower train.optimizer.lr",
                         first_loss_, last_loss_));
  if (at.best.found())
    cx_.print(fmt::format("best     step {}, validation {:.4f} (the result has its weights)",
                          at.best.step, at.best.loss));
  if (const std::string line = rate_line(); !line.empty()) cx_.print(line);
}

}  // namespace tandem::train
