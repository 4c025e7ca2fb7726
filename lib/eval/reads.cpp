#include "eval/reads.h"

namespace tandem::eval {

ReadMeter::ReadMeter(const decode::Engine& engine, int policy, size_t n_cases)
    : cache_(engine.cache()), policy_(policy), before_(cache_.usage(policy)), counts_(n_cases) {}

void ReadMeter::add(size_t i, int length, int n_rows) {
  const kv::Geometry& g = cache_.geometry();
  const kv::Policy& policy = cache_.policy(policy_);
  Count& count = counts_[i];
  count.rows += n_rows;
  if (policy.selector() != nullptr) return;  // the cache counts
  for (int visible = length + 1; visible <= length + n_rows; ++visible)
    for (int layer = 0; layer < g.n_layers; ++layer) {
      count.full += g.visible(layer, visible);
      const kv::KeysRead keys = policy.keys_read(layer, visible);
      count.keys += keys.total;
      if (keys.chosen == 0) continue;
      count.chosen += keys.chosen;
      count.fixed += keys.fixed;
      count.chosen_of += visible;
    }
}

std::optional<Reads> ReadMeter::of(size_t i) const {
  const Count& count = counts_[i];
  if (count.rows == 0) return std::nullopt;
  if (cache_.policy(policy_).selector() != nullptr) return chosen();
  Reads reads{.bytes = count.keys * cache_.geometry().token_bytes() / count.rows};
  if (count.chosen > 0) {
    reads.selected = count.chosen / count.chosen_of;
    reads.fixed = count.fixed / count.chosen_of;
    return reads;
  }
  (count.keys < count.full ? reads.fixed : reads.selected) = count.keys / count.full;
  return reads;
}

Reads ReadMeter::chosen() const {
  double rows = 0;
  for (const Count& count : counts_) rows += count.rows;
  const kv::KeyUsage read = cache_.usage(policy_).since(before_);
  if (read.visible == 0)  // dense layers only, or texts too short for a selection
    return {.selected = 1, .bytes = read.bytes() / rows};
  return {
      .selected = read.selected_share(), .fixed = read.fixed_share(), .bytes = read.bytes() / rows};
}

}  // namespace tandem::eval
