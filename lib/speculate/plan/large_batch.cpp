#include "speculate/plan/large_batch.h"

#include <algorithm>

#include "speculate/plan/chain_tokens.h"

namespace tandem::speculate {

double key_equivalent_of_row(const MachineRates& m, const ModelCosts& c) {
  const double row_s = c.product_flops / (m.ranks * m.flops_s);
  const double key_s = c.kv_bytes / (m.ranks * m.read_bytes_s);
  return row_s / key_s;
}

double large_batch_speedup(double row_keys, const SelfDraft& d, double context) {
  const double round =
      d.gamma * (row_keys + std::min(d.budget, context)) + (d.gamma + 1) * row_keys + context;
  return chain_tokens(d.gamma, d.alpha) * (row_keys + context) / round;
}

std::optional<double> critical_context(double row_keys, const SelfDraft& d, double speedup) {
  const double tokens = chain_tokens(d.gamma, d.alpha);
  if (tokens <= speedup) return std::nullopt;
  const double rows = speedup * (2 * d.gamma + 1) - tokens;
  const double context = (rows * row_keys + speedup * d.gamma * d.budget) / (tokens - speedup);
  return std::max(0.0, context);
}

}  // namespace tandem::speculate
