#pragma once
#include <cstdlib>
#include <string>

namespace tandem::test {

/// While it lives the GPU counts as lost: waits for its work fail (tensor/cuda.cpp), but for some
/// first ones. Its work goes on.
class GpuLost {
 public:
  explicit GpuLost(int waits) { ::setenv(kName, std::to_string(waits).c_str(), 1); }
  ~GpuLost() { ::unsetenv(kName); }
  GpuLost(const GpuLost&) = delete;
  GpuLost& operator=(const GpuLost&) = delete;

 private:
  static constexpr const char* kName = "TANDEM_GPU_LOST";
};

}  // namespace tandem::test
