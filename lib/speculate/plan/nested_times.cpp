#include "speculate/plan/nested_times.h"

#include <algorithm>

#include "speculate/plan/measured_times.h"

namespace tandem::speculate {

NestedTimes measured_nested_times(const TimingTable& outer, const TimingTable& inner,
                                  const Workload& work) {
  return {.outer = MeasuredTimes(outer, "times of outer rounds").bucket_at(work),
          .inner = MeasuredTimes(inner, "times of inner rounds").bucket_at(work),
          .outer_overhead_ms = outer.overhead_ms,
          .inner_overhead_ms = inner.overhead_ms,
          .skip_deepest = outer.skip_deepest && inner.skip_deepest};
}

NestedTimes roofline_nested_times(const NestedInputs& in, const Workload& work) {
  const auto curve = [&](const ModelCosts& costs, double keys, double least_s) {
    TimeCurve c;
    for (int n = 1; n <= in.most_nodes; ++n) {
      const ForwardSize size{.batch = work.batch, .rows = n, .keys = keys};
      c.tokens.push_back(n);
      c.ms.push_back(1e3 * std::max(forward_time(in.machine, costs, size).total_s(), least_s));
    }
    return c;
  };
  const double copied = work.batch * work.context * in.target.kv_bytes * (1 - in.resident_share);
  const double copies_s = in.host_keys_bytes_s > 0 ? copied / in.host_keys_bytes_s : 0;
  const TimeCurve full = curve(in.target, work.context, copies_s),
                  retrieval = curve(in.target, keys_read(in.retrieval, work.context), 0);
  const auto bucket = [&](const TimeCurve& target, const TimeCurve& draft) {
    return TimeBucket{work.batch, static_cast<int>(work.context), target, draft};
  };
  const PlannedDraft& s = in.small;
  const TimeCurve small = s.model ? curve(*s.model, keys_read(s.choice, work.context), 0)
                                  : TimeCurve{.tokens = {1}, .ms = {0}};
  NestedTimes times{.outer = bucket(full, retrieval),
                    .inner = bucket(retrieval, small),
                    .outer_overhead_ms = 1e3 * in.machine.round_s,
                    .inner_overhead_ms = 1e3 * in.machine.round_s};
  if (in.rebuild_tokens > 0)
    times.token_ms = 1e3 *
                     kv_seconds(in.machine, in.target,
                                work.batch * refresh_bytes(in.retrieval, in.target, work.context)) /
                     in.rebuild_tokens;
  return times;
}

}  // namespace tandem::speculate
