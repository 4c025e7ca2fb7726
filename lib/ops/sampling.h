#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sample/sample.h"
#include "kernels/sample/widen_rows.h"
#include "tensor/tensor.h"

namespace tandem::ops {

/// Softmax statistics of rows of logits; kernels/sample/sample.h defines them exactly.
struct LogitStats {
  std::vector<int32_t> argmax;  // [rows], ties: the lowest id
  std::vector<float> max, lse;  // [rows], natural log
};

/// shapes   logits [rows, V] f32
/// errors   kind numeric for a row with NaN, +inf or no finite logit
LogitStats logit_stats(const Tensor& logits);

/// How a token is drawn from logits.
struct SampleRule {
  float temperature = 0.0f;  // 0 = argmax
  int top_k = 0;             // 0 = off
  double top_p = 1.0;
  double min_p = 0.0;
  float repetition_penalty = 1.0f;

  bool operator==(const SampleRule&) const = default;
  bool needs_seen() const { return repetition_penalty != 1.0f; }
  /// The same for kernels.
  KeepRule kept() const { return {repetition_penalty, temperature, top_k, top_p, min_p}; }
};

/// errors   kind numeric when a token is that of a row with NaN, +inf or no finite logit
void check_valid(std::span<const int32_t> tokens);

/// The same over arrays in the memory of the stream's device, or at once on the CPU where the
/// stream is null: kernels/sample/sample.h defines both. A meaningless row shows as kInvalidToken.
/// On the CPU the workspace is not used.
/// errors   kind device in a build without CUDA, kind internal for a vocabulary beyond its limits
void sample(const SampleParams& params, Stream stream);
void top_n(const TopNParams& params, Stream stream);

/// Rows of logits over a vocabulary with other padding, on the GPU whose stream is given, or at
/// once on the CPU where that is null; kernels/sample/widen_rows.h defines it.
/// errors   kind device in a build without CUDA
void widen_rows(const WidenRowsParams& params, Stream stream);

}  // namespace tandem::ops
