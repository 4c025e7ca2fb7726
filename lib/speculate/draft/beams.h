#pragma once

namespace tandem::speculate {

/// Beam search of a draft (kernels/tree/grow_beams.h): levels of `width` nodes each, `gamma` of
/// them after the root. The scores are of the softmax over `temperature`.
struct Beams {
  int width = 1;  // 1 .. kMaxBeams
  int gamma = 1;
  float temperature = 0.6f;  // > 0
};

}  // namespace tandem::speculate
