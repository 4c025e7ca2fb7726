#include "bench/speculation/prompt_slots.h"

#include "base/clock.h"
#include "kv/fill_random.h"

namespace tandem::bench {

PromptSlots::PromptSlots(decode::Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                         bool random_kv)
    : cache_(engine.cache()) {
  std::vector<decode::SeqTokens> texts;
  for (const auto& ids : prompts) {
    slots_.push_back(cache_.create());
    texts.push_back({slots_.back(), std::span(ids).first(ids.size() - 1), true});
  }
  const Stopwatch watch;
  if (!random_kv) {
    engine.prefill(texts, {});
    if (engine.queue()) engine.queue()->wait();
    seconds_ = watch.seconds();
  } else {
    for (size_t b = 0; b < slots_.size(); ++b)
      kv::fill_random(cache_, slots_[b], static_cast<int>(texts[b].tokens.size()), b);
  }
  for (size_t b = 0; b < prompts.size(); ++b)
    requests_.push_back(
        {.prefix_slot = slots_[b], .prefix = texts[b].tokens, .tokens = {prompts[b].back()}});
}

PromptSlots::~PromptSlots() {
  for (const int slot : slots_) cache_.release(slot);
}

}  // namespace tandem::bench
