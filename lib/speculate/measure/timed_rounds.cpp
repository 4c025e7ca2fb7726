#include "speculate/measure/timed_rounds.h"

#include <algorithm>

#include "base/clock.h"
#include "base/percentile.h"
#include "base/rng.h"
#include "decode/generate.h"
#include "kv/scoped_slots.h"
#include "speculate/round/rounds.h"

namespace tandem::speculate {
namespace {

// Rounds that a device takes to settle.
constexpr size_t kWarmup = 2;

/// A root with `children` children, each with one child where there are two levels below it.
TokenTree broom(int children, int levels_below) {
  std::vector<int> n_children = {children};
  n_children.insert(n_children.end(), static_cast<size_t>(children), levels_below - 1);
  if (levels_below == 2) n_children.insert(n_children.end(), static_cast<size_t>(children), 0);
  return tree_of_children(n_children, "a timed tree");
}

double median(std::vector<double> samples) {
  std::ranges::sort(samples);
  return percentile(samples, 0.5);
}

double settled_median(std::vector<double> ms) {
  if (ms.size() > kWarmup + 1) ms.erase(ms.begin(), ms.begin() + kWarmup);
  return median(std::move(ms));
}

/// A text in the caches of both models, and the rounds that go on from it.
class TimedText {
 public:
  TimedText(Reader target, Reader draft, const RoundTimesSpec& spec, int context)
      : target_(target),
        draft_(draft),
        spec_(spec),
        target_slots_(target.engine->cache()),
        draft_slots_(draft.engine->cache()) {
    PhiloxStream rng(static_cast<uint64_t>(spec.sampler.seed));
    const auto vocab = static_cast<uint32_t>(
        std::min(target.engine->config().vocab_size, draft.engine->config().vocab_size));
    while (static_cast<int>(text_.size()) < context)
      text_.push_back(static_cast<int32_t>(rng.below(vocab)));
    target_slot_ = read(*target.engine, target_slots_);
    draft_slot_ = drafts_itself() ? -1 : read(*draft.engine, draft_slots_);
    requests_.resize(static_cast<size_t>(spec.batch),
                     {.prefix_slot = target_slot_, .prefix = text_, .tokens = {}});
    how_.sampler = spec.sampler;
    how_.max_tokens = kTimedTokens;
  }

  struct Round {
    double draft_ms, target_ms, rest_ms;
  };

  /// A decode step without speculation.
  double plain_ms() {
    std::vector<double> ms;
    Stopwatch watch;
    decode::GenerateEvents events;
    events.on_token = [&](const decode::TokenEvent& e) {
      if (e.seq > 0) return;  // one sequence stands for all
      ms.push_back(1e3 * watch.seconds());
      watch.restart();
    };
    const auto plain = decode::plain_decoder(*target_.engine, target_.reading.keys);
    decode::generate(*target_.engine, *plain, requests_, how_, events);
    ms.erase(ms.begin());  // the prompt's
    return settled_median(std::move(ms));
  }

  Round round(const TokenTree& tree) {
    std::vector<double> draft, target, rest;
    Stopwatch watch;
    double drafted = 0, scored = 0;
    int sequences = 0;
    const RoundStats* stats = nullptr;
    const auto rounds =
        model_rounds(target_, draft_, tree, {.on_round = [&](const RoundEvent&) {
                       if (++sequences % spec_.batch != 0)
                         return;  // all sequences of a step, as long as all go on
                       draft.push_back(1e3 * (stats->draft_s - drafted));
                       target.push_back(1e3 * (stats->target_s - scored));
                       rest.push_back(1e3 * watch.seconds() - draft.back() - target.back());
                       drafted = stats->draft_s;
                       scored = stats->target_s;
                       watch.restart();
                     }});
    if (!drafts_itself()) rounds->continue_from(draft_slot_);
    stats = &rounds->stats();
    decode::generate(*target_.engine, *rounds, requests_, how_, {});
    return {settled_median(std::move(draft)), settled_median(std::move(target)),
            settled_median(std::move(rest))};
  }

 private:
  bool drafts_itself() const { return draft_.engine == target_.engine; }
  int read(decode::Engine& engine, kv::ScopedSlots& slots) const {
    const int slot = slots.create(engine.cache().all_readers());
    const decode::SeqTokens whole[] = {{slot, text_, false}};
    engine.prefill(whole, {});
    return slot;
  }

  Reader target_, draft_;
  const RoundTimesSpec& spec_;
  std::vector<int32_t> text_;
  kv::ScopedSlots target_slots_, draft_slots_;
  int target_slot_ = -1, draft_slot_ = -1;
  std::vector<decode::Request> requests_;
  decode::GenerateSpec how_;
};

}  // namespace

std::vector<int> timed_sizes(int largest_tree) {
  std::vector<int> sizes = {1};
  for (int n = 2; n < largest_tree; n *= 2) {
    sizes.push_back(n);
    if (n + n / 2 < largest_tree) sizes.push_back(n + n / 2);
  }
  if (largest_tree > 1) sizes.push_back(largest_tree);
  return sizes;
}

TimingTable measure_rounds(Reader target, Reader draft, const RoundTimesSpec& spec,
                           const std::function<bool(double share)>& on_progress) {
  TimingTable table;
  const std::vector<int> sizes = timed_sizes(spec.largest_tree);
  std::vector<double> overheads;
  double done = 0;
  const auto tick = [&] {
    const auto all = static_cast<double>(spec.contexts.size() * sizes.size());
    if (on_progress && !on_progress(++done / all))
      throw Error(ErrorKind::interrupted, "", "interrupted while timing rounds");
  };
  for (const int context : spec.contexts) {
    TimedText text(target, draft, spec, context);
    StepCost& bucket = table.buckets.emplace_back();
    bucket.batch = spec.batch;
    bucket.context = context;
    bucket.skip_deepest = true;  // drafts run no level that it draws no children from
    bucket.target = {{1}, {text.plain_ms()}};
    tick();
    for (const int n : sizes) {
      if (n == 1) continue;
      const int width = n - 1;
      const TimedText::Round star = text.round(broom(width, 1));
      bucket.target.tokens.push_back(n);
      bucket.target.ms.push_back(star.target_ms);
      overheads.push_back(star.rest_ms);
      if (width == 1) {
        bucket.draft = {{1}, {star.draft_ms}};  // the root's forward, and one child drawn
      } else if (1 + 2 * width <= spec.largest_tree) {
        // The second level is what the broom adds to the star; no level costs less than one node.
        const double level = text.round(broom(width, 2)).draft_ms - star.draft_ms;
        bucket.draft.tokens.push_back(width);
        bucket.draft.ms.push_back(std::max(level, bucket.draft.ms.front()));
      }
      tick();
    }
    if (bucket.draft.tokens.empty())
      bucket.draft = {{1}, {text.round(broom(1, 1)).draft_ms}};  // only plain steps were asked for
  }
  if (!overheads.empty())
    for (StepCost& bucket : table.buckets) bucket.overhead_ms = std::max(0.0, median(overheads));
  return table;
}

}  // namespace tandem::speculate
