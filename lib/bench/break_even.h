#pragma once
#include <span>
#include <string>
#include <vector>

#include "bench/record_view.h"

namespace tandem::bench {

/// Median time of one decode step, as a sweep measured it.
struct DecodeTime {
  std::string model;
  int batch = 1;
  std::string method;   // as tables name it
  bool full = false;    // it reads all keys: what others are compared with
  bool hosted = false;  // its keys lie in host memory
  int context = 0;      // tokens
  double ms = 0;
};

/// Decode steps among records of pig-bench; none if devices or thread counts differ.
std::vector<DecodeTime> decode_times(const std::vector<Json>& records);

/// For each model, batch and method that does not read all keys: one sentence that says from which
/// context on it was faster than full attention at the same batch, and another that sets keys in
/// host memory against full attention over these, the fastest of the ways in which it was measured.
/// Between the two contexts around the crossing the difference is taken as a straight line. Methods
/// without a context in common with full are left out.
std::vector<std::string> break_even(std::span<const DecodeTime> times);

}  // namespace tandem::bench
