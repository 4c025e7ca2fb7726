#include "speculate/plan/draft_plan.h"

namespace tandem::speculate {
namespace {

/// The shortest context from which on `holds` does, to 1 %. Contexts are tried from the longest
/// down: what holds once at a short context, and not after it, does not count.
std::optional<double> holds_from(double longest, const std::function<bool(double)>& holds) {
  if (!holds(longest)) return std::nullopt;
  double good = longest;
  double bad = 0;
  while (good > 1) {
    const double shorter = good / 1.25;
    if (!holds(shorter)) {
      bad = shorter;
      break;
    }
    good = shorter;
  }
  while (bad > 0 && good > 1.01 * bad) {
    const double middle = 0.5 * (good + bad);
    (holds(middle) ? good : bad) = middle;
  }
  return bad > 0 ? good : 1;
}

}  // namespace

RoundTimes roofline_times(const PlanInputs& plan, const Workload& w) {
  const MachineRates& m = plan.machine;
  const auto target_s = [&](int rows) {
    return forward_time(m, plan.target, {.batch = w.batch, .rows = rows, .keys = w.context})
        .total_s();
  };
  RoundTimes times{.plain_s = target_s(1), .host_s = m.round_s};
  for (int gamma = 1; gamma <= plan.most_gamma; ++gamma)
    times.verify_s.push_back(target_s(gamma + 1));
  const PlannedDraft& d = plan.draft;
  if (!d.model) return times;
  const auto choosing_s = [&](double bytes) { return kv_seconds(m, *d.model, w.batch * bytes); };
  const double keys = keys_read(d.choice, w.context);
  times.draft_s = forward_time(m, *d.model, {.batch = w.batch, .rows = 1, .keys = keys}).total_s() +
                  choosing_s(select_bytes(d.choice, *d.model, w.context));
  times.host_s += choosing_s(round_bytes(d.choice, *d.model, w.context));
  if (d.refresh_tokens > 0)
    times.token_s = choosing_s(refresh_bytes(d.choice, *d.model, w.context)) / d.refresh_tokens;
  return times;
}

std::optional<double> pays_from(const TimesAt& times, double alpha, int batch, double longest) {
  return holds_from(longest, [&](double context) {
    return best_chain(times({batch, context}), alpha).speedup > 1;
  });
}

std::optional<double> inflection_context(const TimesAt& times, double alpha, const Batches& batches,
                                         double longest) {
  const auto speedup = [&](int batch, double context) {
    return best_chain(times({batch, context}), alpha).speedup;
  };
  return holds_from(longest, [&](double context) {
    return speedup(batches.large, context) >= speedup(batches.small, context);
  });
}

}  // namespace tandem::speculate
