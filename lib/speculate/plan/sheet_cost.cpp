#include "speculate/plan/sheet_cost.h"

#include <algorithm>
#include <cmath>

#include "speculate/plan/chain_tokens.h"

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

StepCost sheet_cost(const PlanInputs& plan, const Workload& w) {
  const MachineRates& m = plan.machine;
  const auto curve = [&](const ModelCosts& costs, const KeyChoice& choice, double more_s) {
    TimeCurve c;
    for (int n = 1; n <= plan.most_gamma + 1; ++n) {
      const ForwardSize size{.batch = w.batch, .rows = n, .keys = keys_read(choice, w.context)};
      c.tokens.push_back(n);
      c.ms.push_back(1e3 * (forward_time(m, costs, size).total_s() + more_s));
    }
    return c;
  };
  StepCost cost{.batch = w.batch,
                .context = static_cast<int>(w.context),
                .target = curve(plan.target, plan.target_keys, 0),
                .draft = {{1}, {0}},
                .overhead_ms = 1e3 * m.round_s,
                .skip_deepest = true};
  const PlannedDraft& d = plan.draft;
  if (!d.model) return cost;
  const auto choosing_s = [&](double bytes) { return kv_seconds(m, *d.model, w.batch * bytes); };
  cost.draft = curve(*d.model, d.choice, choosing_s(select_bytes(d.choice, *d.model, w.context)));
  cost.overhead_ms = 1e3 * (m.round_s + choosing_s(round_bytes(d.choice, *d.model, w.context)));
  if (d.choice.refresh_tokens > 0)
    cost.token_ms =
        1e3 * (choosing_s(refresh_bytes(d.choice, *d.model, w.context)) / d.choice.refresh_tokens);
  return cost;
}

int most_sequences(const MachineRates& m, const ModelCosts& target, const ModelCosts* draft,
                   const Holdings& h) {
  const ModelCosts& keeper = draft != nullptr ? *draft : target;  // of a draft's cache
  const double weights = target.memory_bytes + (draft != nullptr ? draft->memory_bytes : 0);
  const double room = h.memory_bytes - weights / m.ranks - h.buffer_bytes;
  const double sequence = kv_share(m, target) * target.kv_bytes * h.context +
                          kv_share(m, keeper) * keeper.kv_bytes * h.draft_context;
  constexpr double kMost = 1 << 30;
  return static_cast<int>(std::clamp(std::floor(room / sequence), 0.0, kMost));
}

double key_equivalent_of_row(const MachineRates& m, const ModelCosts& c) {
  const double row_s = c.product_flops / (m.ranks * m.flops_s);
  const double key_s = c.kv_bytes / (m.ranks * m.read_bytes_s);
  return row_s / key_s;
}

std::optional<double> critical_context(double row_keys, const SelfDraft& d, double speedup) {
  const double tokens = chain_tokens(d.gamma, d.alpha);
  if (tokens <= speedup) return std::nullopt;
  const double rows = speedup * (2 * d.gamma + 1) - tokens;
  const double context = (rows * row_keys + speedup * d.gamma * d.budget) / (tokens - speedup);
  return std::max(0.0, context);
}

}  // namespace tandem::speculate
