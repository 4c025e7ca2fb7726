#pragma once
// What a choice by key codes on a GPU should be, plainly.
#include <algorithm>
#include <functional>
#include <numeric>

#include "gpu/coded_choice.h"

namespace tandem::test::coded {

/// The score that about m < n of the keys reach, by a sort of the sample: 128 tiles of 16 keys at
/// even distances, or all.
inline float sorted_score(const float* scores, int n, int m) {
  const int64_t of_all = n / 16, tiles = std::min<int64_t>(of_all, 128);
  std::vector<float> sample;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const float* first = scores + tile * of_all / tiles * 16;
    sample.insert(sample.end(), first, first + 16);
  }
  std::ranges::sort(sample, std::greater<>());
  return sample[at(16 * tiles * m / n)];
}

/// The keys that reach the floor of about m; all where no more than are wanted do.
struct Candidates {
  float floor = -kInf;
  int reach;  // the floor
  std::vector<int32_t> keys;

  Candidates(const float* scores, int n, int m, int wanted) {
    if (m < n) floor = sorted_score(scores, n, m);
    for (int i = 0; i < n; ++i)
      if (scores[i] >= floor) keys.push_back(i);
    reach = static_cast<int>(keys.size());
    if (reach > wanted) return;
    floor = -kInf;
    keys.resize(at(n));
    std::iota(keys.begin(), keys.end(), 0);
  }
};

/// The choice of the CPU's references by the GPU's codes and whole numbers.
struct Expected {
  std::vector<int32_t> ids;
  std::vector<double> masses;  // relative to exp(threshold)
  std::vector<float> scores;   // left for a sample; none where all keys are chosen
  float threshold = 0;
  double exact_mass = 0;  // of the chosen keys, as masses
  bool too_few = false;   // reach the floor
};

}  // namespace tandem::test::coded
