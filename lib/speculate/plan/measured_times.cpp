#include "speculate/plan/measured_times.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "speculate/plan/affine_time.h"

namespace tandem::speculate {
namespace {

using Curve = std::map<double, double>;  // y by x

/// On the line between the two points around x; none outside of them.
std::optional<double> interpolate(const Curve& curve, double x) {
  const auto above = curve.lower_bound(x);
  if (above == curve.end()) return std::nullopt;
  if (above->first == x) return above->second;
  if (above == curve.begin()) return std::nullopt;
  const auto below = std::prev(above);
  const double share = (x - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

/// By context within each batch, then by batch.
std::optional<double> interpolate(std::span<const TimePoint> points, const Workload& work) {
  std::map<int, Curve> by_batch;
  for (const TimePoint& p : points) by_batch[p.batch][p.context] = p.seconds;
  Curve at_context;
  for (const auto& [batch, curve] : by_batch)
    if (const auto s = interpolate(curve, work.context)) at_context[batch] = *s;
  return interpolate(at_context, work.batch);
}

}  // namespace

MeasuredTimes::MeasuredTimes(TimingTable table, std::string where)
    : table_(std::move(table)), where_(std::move(where)) {
  check_timing(table_, where_);
  for (size_t i = 0; i < table_.buckets.size(); ++i)
    if (table_.buckets[i].context == 0)
      throw input_error(
          where_, "buckets[{}] has no context, expected the number of tokens at which it was timed",
          i);
}

template <class Ms>
double MeasuredTimes::seconds(const Workload& work, const Ms& ms) const {
  std::vector<TimePoint> points;
  for (const TimeBucket& b : table_.buckets)
    points.push_back({b.batch, static_cast<double>(b.context), 1e-3 * ms(b)});
  if (const auto inside = interpolate(points, work)) return *inside;
  try {
    // A fit to noise may fall below 0 far from the points.
    return std::max(0.0, fit_affine(points).at(work.batch, work.context));
  } catch (const Error&) {
    throw input_error(where_,
                      "has no times at batch {} and {:.0f} tokens, and too few others for a fit",
                      work.batch, work.context)
        .hint("measure at least three points, with two batches and two contexts");
  }
}

bool MeasuredTimes::surrounds(const Workload& work) const {
  std::vector<TimePoint> points;
  for (const TimeBucket& b : table_.buckets)
    points.push_back({b.batch, static_cast<double>(b.context), 0});
  return interpolate(points, work).has_value();
}

MeasuredTimes::At MeasuredTimes::at(const Workload& work, int most_gamma) const {
  At result{.times = {.plain_s = seconds(work, [](const TimeBucket& b) { return b.target.at(1); }),
                      .draft_s = seconds(work, [](const TimeBucket& b) { return b.draft.at(1); }),
                      .host_s = 1e-3 * table_.overhead_ms},
            .fitted = !surrounds(work)};
  for (int gamma = 1; gamma <= most_gamma; ++gamma)
    result.times.verify_s.push_back(
        seconds(work, [&](const TimeBucket& b) { return b.target.at(gamma + 1); }));
  return result;
}

TimeBucket MeasuredTimes::bucket_at(const Workload& work) const {
  TimeBucket bucket;
  bucket.batch = work.batch;
  bucket.context = static_cast<int>(work.context);
  const auto fill = [&](TimeCurve TimeBucket::*curve) {
    for (const int n : (table_.buckets.front().*curve).tokens) {
      (bucket.*curve).tokens.push_back(n);
      (bucket.*curve).ms.push_back(1e3 * seconds(work, [&](const TimeBucket& b) {
                                     return (b.*curve).at(n);
                                   }));
    }
  };
  fill(&TimeBucket::target);
  fill(&TimeBucket::draft);
  return bucket;
}

}  // namespace tandem::speculate
