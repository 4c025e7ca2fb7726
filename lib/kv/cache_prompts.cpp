// Prompts that go through the layers together, all chunks of a layer before the next.
#include "base/check.h"
#include "kv/cache.h"

namespace tandem::kv {

std::vector<Step> Cache::begin_prompts(std::span<const std::vector<SeqRows>> rows) {
  std::vector<std::pair<int, int>> lengths;  // of slots, as they were before each step
  const auto go_back = [&] {
    for (; !lengths.empty(); lengths.pop_back())
      groups_.set_length(lengths.back().first, lengths.back().second);
  };
  residence_->begin_prompts();
  std::vector<Step> steps;
  try {
    for (const std::vector<SeqRows>& of_step : rows) {
      steps.push_back(begin({.phase = Phase::prefill, .rows = of_step}));
      TANDEM_CHECK(steps.back().phase == Phase::prefill, "prefill steps must read all keys");
      for (const SeqRows& r : of_step) {
        lengths.emplace_back(r.slot, store_.length(r.slot));
        groups_.set_length(r.slot, store_.length(r.slot) + r.n_rows);
      }
    }
  } catch (...) {
    go_back();
    throw;
  }
  go_back();
  return steps;
}

void Cache::begin_step(int layer, std::span<Step> steps, size_t i) {
  residence_->begin_step(layer, i);
  if (device_step_) device_step_->send_again(steps[i]);
}

}  // namespace tandem::kv
