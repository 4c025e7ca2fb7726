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
  /// Room for this rank's part of a large sum, which all ranks read from there, as add_parts does;
  /// empty where sum() is as fast. Of two sets, which take turns.
  /// shapes   result [rows, width] bf16
  virtual Tensor parts(int /*set*/, int64_t /*rows*/, int64_t /*width*/) { return {}; }
  /// Makes such room, at the same time on all ranks.
  virtual void reserve_parts(int64_t /*numbers*/) {}
  /// x += all ranks' parts, in the order of ranks; otherwise as sum().
  /// shapes   x f32, parts that of parts(set, ..)
  virtual void add_parts(const Tensor& /*x*/, const Tensor& /*parts*/, Stream /*stream*/) {}
  /// The sum of numbers of the host, in the order of ranks, and rank 0's number: for what all ranks
  /// must decide in the same way.
  virtual double sum_of(double mine) = 0;
  virtual double of_rank0(double mine) = 0;
  /// Each rank's part, to all ranks.
  /// shapes   all [size][part_bytes], with the own part in its place
  virtual void gather(void* all, size_t part_bytes, Stream stream) = 0;
  /// The same of memory of the host, at once.
  virtual void gather_on_host(std::byte* all, size_t part_bytes) = 0;
};

}  // namespace tandem
