#include "speculate/plan/forward_time.h"

#include <algorithm>

namespace tandem::speculate {
namespace {

/// Two sums a layer, over the outputs of attention and of the FFN, and two small ones that pick
/// the largest logit.
double reductions_s(const MachineRates& m, const ModelCosts& c, double tokens) {
  if (m.ranks == 1) return 0;
  const double bytes = tokens * c.dim * c.element_bytes;
  const double moved = m.link_bytes_s > 0 ? 2.0 * (m.ranks - 1) / m.ranks * bytes / m.link_bytes_s
                                          : 0;  // a rate that is not known: latency alone
  return (2 * c.n_layers + 2) * (m.reduction_s + moved);
}

}  // namespace

double kv_share(const MachineRates& m, const ModelCosts& c) {
  const int heads = (c.n_kv_heads + m.ranks - 1) / m.ranks;
  return static_cast<double>(heads) / c.n_kv_heads;
}

double kv_seconds(const MachineRates& m, const ModelCosts& c, double bytes) {
  return bytes * kv_share(m, c) / m.read_bytes_s;
}

ForwardTime forward_time(const MachineRates& m, const ModelCosts& c, const ForwardSize& size) {
  const double tokens = static_cast<double>(size.batch) * size.rows;
  const double keys = size.batch * c.keys_seen(size.keys);
  const double linear_read = c.product_bytes / (m.ranks * m.read_bytes_s);
  const double linear_work = c.product_flops * tokens / (m.ranks * m.flops_s);
  const double read = kv_seconds(m, c, keys * c.kv_bytes);
  const double work = c.key_flops * keys * size.rows * kv_share(m, c) / m.flops_s;
  return {.linear_s = std::max(linear_read, linear_work),
          .attention_s = std::max(read, work),
          .reductions_s = reductions_s(m, c, tokens),
          .fixed_s = m.forward_s,
          .linear_computes = linear_work > linear_read,
          .attention_computes = work > read};
}

double compute_bound_rows(const MachineRates& m, const ModelCosts& c) {
  return m.flops_s * c.product_bytes / (m.read_bytes_s * c.product_flops);
}

}  // namespace tandem::speculate
