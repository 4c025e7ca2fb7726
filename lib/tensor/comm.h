#pragma once
#include <cstddef>

#include "tensor/tensor.h"

namespace tandem {

/// The ranks of a run as a forward sees them: each computes a part of every sum. All ranks call the
/// same operations in the same order.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// x becomes the sum of the ranks' x: work on the stream, on the CPU at once. The same bits on
  /// all ranks, and a number's do not depend on its place or on how many there are.
  /// shapes   x [..] f32
  virtual void sum(const Tensor& x, Stream stream) = 0;
  /// Each rank's part, to all ranks.
  /// shapes   all [size][part_bytes], with the own part in its place
  virtual void gather(void* all, size_t part_bytes, Stream stream) = 0;
};

}  // namespace tandem
