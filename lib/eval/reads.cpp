#include "eval/reads.h"

#include <algorithm>

namespace tandem::eval {
namespace {

/// Bytes of one token's key and value in a layer.
double token_bytes(const kv::Geometry& g) {
  return 2.0 * g.n_kv_heads * g.head_dim * static_cast<double>(dtype_bytes(g.dtype));
}

}  // namespace

ReadMeter::ReadMeter(const decode::Engine& engine, int policy, size_t n_cases)
    : cache_(engine.cache()), policy_(policy), before_(cache_.usage(policy)), counts_(n_cases) {}

void ReadMeter::add(size_t i, int length, int n_rows) {
  const kv::Geometry& g = cache_.geometry();
  const kv::Policy& policy = cache_.policy(policy_);
  Count& count = counts_[i];
  count.rows += n_rows;
  for (int visible = length + 1; visible <= length + n_rows; ++visible)
    for (int layer = 0; layer < g.n_layers; ++layer) {
      const int window = g.window(layer);
      count.full += window == 0 ? visible : std::min(visible, window);
      if (policy.selector() == nullptr) count.keys += policy.keys_read(layer, visible);
    }
}

std::optional<Reads> ReadMeter::of(size_t i) const {
  const Count& count = counts_[i];
  if (count.rows == 0) return std::nullopt;
  if (cache_.policy(policy_).selector() != nullptr) return chosen();
  Reads reads{.bytes = count.keys * token_bytes(cache_.geometry()) / count.rows};
  (count.keys < count.full ? reads.fixed : reads.selected) = count.keys / count.full;
  return reads;
}

Reads ReadMeter::chosen() const {
  Count all;
  for (const Count& count : counts_) {
    all.rows += count.rows;
    all.full += count.full;
  }
  const kv::Geometry& g = cache_.geometry();
  const kv::KeyUsage& now = cache_.usage(policy_);
  const double visible = now.visible - before_.visible;
  const double read = now.key_bytes - before_.key_bytes + now.index_bytes - before_.index_bytes;
  // Layers that the selector does not serve read as full attention does.
  const double dense = (all.full - visible / g.n_heads) * token_bytes(g);
  Reads reads{.selected = 1, .bytes = (dense + read) / all.rows};
  if (visible == 0) return reads;  // dense layers only, or texts too short for a selection
  reads.selected = (now.selected - before_.selected) / visible;
  reads.fixed = (now.fixed - before_.fixed) / visible;
  return reads;
}

}  // namespace tandem::eval
