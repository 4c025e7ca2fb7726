// Prompts that go through the layers together, all chunks of a layer before the next: how they are
// laid out, and what of their keys goes to host memory after each layer.
#include "base/check.h"
#include "kv/cache.h"

namespace tandem::kv {

std::vector<Step> Cache::begin_prompts(std::span<const std::vector<SeqRows>> rows) {
  std::vector<std::pair<int, int>> lengths;  // of slots, as they were before each step
  const auto go_back = [&] {
    for (; !lengths.empty(); lengths.pop_back())
      groups_.set_length(lengths.back().first, lengths.back().second);
  };
  if (hosted_) hosted_->begin_prompts();
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

void Cache::begin_layer(int layer, std::span<const Step> steps) {
  if (!is_hosted(layer)) return;
  if (stream_) stream_->lend();
  for (const Step& step : steps)
    for (size_t b = 0; b < step.slot.size(); ++b)
      // Those that an earlier one of the steps writes are there by then.
      if (step.base[b] == store_.length(step.slot[b]))
        hosted_->begin_layer(layer, step.slot[b], step.base[b]);
}

void Cache::begin_step(int layer, std::span<Step> steps, size_t i) {
  if (is_hosted(layer)) hosted_->begin_step(i);
  if (device_step_) device_step_->send_again(steps[i]);
}

void Cache::end_layer(int layer, std::span<const Step> steps) {
  if (!is_hosted(layer)) return;
  std::vector<std::vector<HostedKeys::Rows>> rows;
  std::vector<std::vector<PromptIndexing::Prompt>> ended(indexing_.size());  // by policy
  for (const Step& step : steps) {
    rows.emplace_back();
    for (int b = 0; b < step.n_seqs; ++b) {
      const auto i = static_cast<size_t>(b);
      const int end = step.base[i] + step.rows_of(b);
      rows.back().push_back({step.slot[i], step.base[i], end});
      for (int p = 0; p < n_policies(); ++p)
        if (step.last_chunk[i] != 0 && readers_of(step.slot[i]).has(p))
          ended[static_cast<size_t>(p)].push_back({step.slot[i], end});
    }
  }
  const auto index = [&] {
    for (size_t p = 0; p < indexing_.size(); ++p) indexing_[p]->layer(layer, std::move(ended[p]));
  };
  // Where one reads from far there are no others.
  if (!indexing_.front()->reads_far()) return hosted_->end_layer(layer, rows, index);
  hosted_->end_layer(layer, rows);
  index();
}

void Cache::end_prompts() {
  if (!hosted_) return;
  hosted_->finish_copies();
  for (const auto& indexing : indexing_) indexing->finish();
}

void Cache::give_up_prompts() noexcept {
  if (!hosted_) return;
  try {
    hosted_->finish_copies();
  } catch (const std::exception&) {
    // The GPU has stopped, and writes nothing any more.
  }
  for (const auto& indexing : indexing_) indexing->give_up();
}

}  // namespace tandem::kv
