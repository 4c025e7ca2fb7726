#pragma once
#include <cstdint>
#include <memory>

#include "base/types.h"

namespace tandem::machine {

/// y = x W^T by oneDNN alone on weights in the layout it prefers for exactly this shape: what the
/// library's own linear layers are measured against.
/// shapes   x [rows, in], W [out, in], y [rows, out], all of one dtype, uniform random numbers
class OneDnnGemm {
 public:
  OneDnnGemm(int64_t rows, int64_t out, int64_t in, DType dtype);
  ~OneDnnGemm();
  OneDnnGemm(OneDnnGemm&&) noexcept;

  void run() const;
  double flops() const;
  /// The type to measure layers of a dtype against: bf16 needs AVX512-BF16, below it oneDNN refuses
  /// or converts, and such layers compute in f32.
  static DType arithmetic(DType dtype);
  /// What a measurement of layers of a dtype says it was compared with.
  static const char* name(DType dtype);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::machine
