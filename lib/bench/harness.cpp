#include "bench/harness.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/parallel.h"

namespace tandem::bench {
namespace {

double time_ms(const Body& body, int runs, const Body& before_each, const MeasureRules& rules) {
  if (before_each) before_each();
  const Stopwatch watch;
  for (int i = 0; i < runs; ++i) body();
  const double ms = 1e3 * watch.seconds() / runs;
  return rules.agree ? rules.agree(ms) : ms;
}

/// Runs until the median settles; also finds how often a short body must be repeated.
Samples warm_up(const Body& body, const MeasureRules& rules, const Body& before_each) {
  Samples s;
  std::vector<double> ms;
  double last = 0;
  while (s.warmup < rules.max_warmup) {
    ms.push_back(time_ms(body, 1, before_each, rules));
    ++s.warmup;
    const double now = median(ms);
    if (s.warmup > 1 && std::abs(now - last) < rules.warmup_tolerance * last) break;
    last = now;
  }
  if (!before_each && !ms.empty()) {
    const double fastest = std::max(1e-6, *std::min_element(ms.begin(), ms.end()));
    s.runs_per_sample = static_cast<int>(std::max(1.0, std::ceil(rules.min_sample_ms / fastest)));
  }
  return s;
}

bool is_enough(size_t n, double measured_ms, const MeasureRules& rules) {
  const auto runs = static_cast<int>(n);
  return runs >= rules.max_runs ||
         (runs >= rules.min_runs && measured_ms >= 1e3 * rules.min_seconds);
}

/// Whether what there is of them says enough, or no more time may be spent.
class Patience {
 public:
  explicit Patience(const MeasureRules& rules) : rules_(rules) {}

  bool ends(std::span<const double> ms, double measured_ms) {
    if (!is_enough(ms.size(), measured_ms, rules_)) return false;
    if (std::ssize(ms) >= rules_.max_runs || measured_ms >= 1e3 * rules_.max_seconds) return true;
    if (ms.size() < next_) return false;
    next_ = ms.size() + ms.size() / 4 + 1;  // judging sorts all of them
    return steadiness(ms).is_steady();
  }

 private:
  const MeasureRules& rules_;
  size_t next_ = 0;  // samples when they are judged again
};

}  // namespace

Samples measure(const Body& body, const MeasureRules& rules, const Body& before_each) {
  Samples s = warm_up(body, rules, before_each);
  Patience patience(rules);
  for (double total = 0; !patience.ends(s.ms, total);) {
    s.ms.push_back(time_ms(body, s.runs_per_sample, before_each, rules));
    total += s.ms.back() * s.runs_per_sample;
  }
  return s;
}

Comparison compare(const Body& a, const Body& b, const MeasureRules& rules,
                   const Body& before_each) {
  Comparison c{warm_up(a, rules, before_each), warm_up(b, rules, before_each)};
  std::vector<double> ratios;
  for (double total = 0; !is_enough(ratios.size(), total, rules);) {
    c.a.ms.push_back(time_ms(a, c.a.runs_per_sample, before_each, rules));
    c.b.ms.push_back(time_ms(b, c.b.runs_per_sample, before_each, rules));
    ratios.push_back(c.a.ms.back() / c.b.ms.back());
    total += c.a.ms.back() * c.a.runs_per_sample + c.b.ms.back() * c.b.runs_per_sample;
  }
  c.ratio = median(ratios);
  c.ci95 = bootstrap_median_interval(ratios);
  return c;
}

CacheFlusher::CacheFlusher() {
  constexpr long kAssumedL2 = 2 << 20;  // where the system does not say
  const long l2 = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), kAssumedL2);
  buffer_.resize(2 * static_cast<size_t>(l2) * static_cast<size_t>(max_threads()));
}

void CacheFlusher::flush() {
  ++value_;
  const int n = max_threads();
  const size_t part = buffer_.size() / static_cast<size_t>(n);
  parallel_for(n, [&](int i) {
    std::memset(buffer_.data() + static_cast<size_t>(i) * part, value_, part);
  });
}

}  // namespace tandem::bench
