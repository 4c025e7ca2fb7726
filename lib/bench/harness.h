#pragma once
#include <functional>
#include <vector>

#include "bench/stats.h"

namespace tandem::bench {

/// When to stop warming up and when enough has been measured.
struct MeasureRules {
  int max_warmup = 5;              // runs; fewer if the running median settles earlier
  double warmup_tolerance = 0.01;  // settled: two successive medians differ by less than this share
  int min_runs = 10;
  double min_seconds = 3.0;     // of measured time
  double max_seconds = 0;       // of samples that are not steady: more are taken until then
  int max_runs = 10000;         // records cap their samples there
  double min_sample_ms = 0.02;  // shorter bodies are repeated within a sample; 20 us is some
                                // 500 times the cost of reading the clock
  /// Of several ranks, whose runs must be equally many: rank 0's time in place of one's own.
  std::function<double(double ms)> agree = {};
};

/// Times of one body, oldest first; what a record's timing.<phase> is made of.
struct Samples {
  int warmup = 0;
  int runs_per_sample = 1;
  std::vector<double> ms;  // of one run
};

using Body = std::function<void()>;

/// Times `body` by the monotonic clock.
/// before_each  run untimed before every sample (flush a cache, restore an input); turns off the
///              repetition within a sample, which it could not serve
Samples measure(const Body& body, const MeasureRules& rules = {}, const Body& before_each = {});

/// Two variants timed alternately (A B A B ...), so that drift of the machine meets both.
struct Comparison {
  Samples a, b;
  double ratio = 0;        // median of the paired ratios a / b: above 1, b is faster
  Interval ci95 = {0, 0};  // bootstrap, fixed seed
  size_t pairs() const { return a.ms.size(); }
};

Comparison compare(const Body& a, const Body& b, const MeasureRules& rules = {},
                   const Body& before_each = {});

/// Overwrites more than the second-level caches of all threads hold, so that the next run starts
/// with cold L2 and TLBs; a large L3 keeps its content.
class CacheFlusher {
 public:
  CacheFlusher();
  void flush();

 private:
  std::vector<char> buffer_;
  char value_ = 0;
};

}  // namespace tandem::bench
