#pragma once
#include <vector>

#include "gpu/device_buffer.h"
#include "kernels/eight_bit_case.h"

namespace tandem::test {

/// Pools of keys and values of eight bits on a GPU.
struct EightBitPools {
  DeviceBuffer k, v, scales;

  /// keys, values   rows of d numbers
  EightBitPools(std::vector<float> keys, std::vector<float> values, int d)
      : EightBitPools(narrow(keys, d), narrow(values, d)) {}

 private:
  struct Rows {
    std::vector<int8_t> numbers;
    std::vector<float> scales;
  };
  static Rows narrow(std::vector<float>& wide, int d) {
    const auto n = static_cast<int>(wide.size()) / d;
    Rows to{std::vector<int8_t>(wide.size()), std::vector<float>(static_cast<size_t>(n))};
    narrow_rows_scalar({to.numbers.data(), to.scales.data(), wide.data(), DType::f32, n, d, 1},
                       {0, n});
    return to;
  }
  static std::vector<float> side_by_side(const Rows& keys, const Rows& values) {
    std::vector<float> both;
    for (size_t i = 0; i < keys.scales.size(); ++i) {
      both.push_back(keys.scales[i]);
      both.push_back(values.scales[i]);
    }
    return both;
  }
  EightBitPools(const Rows& keys, const Rows& values)
      : k(keys.numbers), v(values.numbers), scales(side_by_side(keys, values)) {}
};

}  // namespace tandem::test
