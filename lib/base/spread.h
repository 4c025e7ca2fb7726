#pragma once
#include <cstdint>
#include <vector>

namespace tandem {

/// Which of n layers are taken where n_taken are, spread evenly, the first among them where there
/// are any; rising.
/// shapes   n_taken in [0, n]
inline std::vector<int> spread_layers(int n, int n_taken) {
  std::vector<int> layers;
  for (int i = 0; i < n_taken; ++i) layers.push_back(static_cast<int>(int64_t{i} * n / n_taken));
  return layers;
}

}  // namespace tandem
