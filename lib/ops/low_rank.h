#pragma once
#include <cstdint>

#include "tensor/tensor.h"

/// The operations of low-rank adapters (LoRA, DoRA) other than their products.
namespace tandem::ops {

/// Names a draw of dropout: no two with other names share a number.
struct DropoutDraw {
  uint64_t seed = 0;
  uint32_t step = 0, place = 0;
};

/// Share of elements that are dropped, in steps of 2^-16; the others are scaled by its complement's
/// reciprocal.
class Dropout {
 public:
  explicit Dropout(double share);
  bool drops() const { return threshold_ > 0; }

  /// out = D(in), or out += D(in); the same draw drops the same elements.
  /// shapes   out, in [rows, width] of one dtype
  void apply(const Tensor& out, const Tensor& in, const DropoutDraw& draw, bool add,
             Stream stream = {}) const;

 private:
  uint32_t threshold_;
  float scale_;
};

/// out = scale (in - bias) + bias over columns [first, first + n), of DoRA (kernels/adapter/
/// magnitude.h).
struct MagnitudeScaleArgs {
  Tensor out, in;  // [rows, width], may be one; of one dtype, or in f32
  int64_t first = 0, n = 0;
  const float* scale = nullptr;  // [n]
  const float* bias = nullptr;   // [n] or null
  Tensor sum = {};               // [rows, width] f32 that the results are added to; or empty
};
void magnitude_scale(const MagnitudeScaleArgs& args, Stream stream = {});

/// sums [n] += gradient of the magnitudes from the gradient of y and y itself.
struct MagnitudeGradientArgs {
  float* sums = nullptr;
  Tensor dy, y;  // [rows, width]
  int64_t first = 0, n = 0;
  const float* magnitude = nullptr;  // [n]
  const float* bias = nullptr;       // [n] or null
};
void magnitude_gradient(const MagnitudeGradientArgs& args, Stream stream = {});

/// squares[o] = |row o|^2.
/// shapes   squares [rows]; weights [rows, in]
void row_squares(float* squares, const Tensor& weights, Stream stream = {});

/// scale[o] = magnitude[o] / |row o of W + gamma B A|.
struct WeightNormsArgs {
  float* scale = nullptr;            // [rows]
  const float* squares = nullptr;    // [rows] of row_squares(W)
  const float* wa = nullptr;         // [rows, rank] W A^T
  const float* aa = nullptr;         // [rank, rank] A A^T
  Tensor b;                          // [rows, rank]
  const float* magnitude = nullptr;  // [rows]
  float gamma = 1.0f;
};
void weight_norms(const WeightNormsArgs& args, Stream stream = {});
/// What a magnitude is before training: the norm of a row, not less than kLeastWeightNorm.
void initial_magnitudes(float* magnitude, const Tensor& weights, Stream stream = {});

}  // namespace tandem::ops
