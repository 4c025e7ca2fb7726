#include "bench/speculation/prompt_slots.h"

#include "base/clock.h"
#include "kv/fill_random.h"

namespace tandem::bench {

PromptSlots::PromptSlots(decode::Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                         bool random_kv)
    : slots_(engine.cache()) {
  std::vector<decode::SeqTokens> texts;
  for (const auto& ids : prompts)
    texts.push_back({slots_.create(), std::span(ids).first(ids.size() - 1), true});
  const Stopwatch watch;
  if (!random_kv) {
    engine.prefill(texts, {});
    if (engine.queue()) engine.queue()->wait();
    seconds_ = watch.seconds();
  } else {
    for (size_t b = 0; b < texts.size(); ++b)
      kv::fill_random(engine.cache(), texts[b].slot, static_cast<int>(texts[b].tokens.size()), b);
  }
  for (size_t b = 0; b < prompts.size(); ++b)
    requests_.push_back(
        {.prefix_slot = texts[b].slot, .prefix = texts[b].tokens, .tokens = {prompts[b].back()}});
}

}  // namespace tandem::bench
