#pragma once
#include <span>

#include "tensor/arena.h"
#include "tensor/exec.h"
#include "train/trained_set.h"

namespace tandem::train {

/// The indices of a trained set where a run computes: on a GPU a copy.
class PlacedIndices {
 public:
  static void plan(const TrainedSet& set, Device device, MemoryPlan& plan);
  /// The set must outlive this.
  PlacedIndices(const TrainedSet& set, Arena& arena, const Exec& exec);

  /// TrainedMatrix::index of a matrix of the set; empty where all of it is trained.
  std::span<const int32_t> of(const TrainedMatrix& m) const;

 private:
  const int32_t* copy_ = nullptr;
};

}  // namespace tandem::train
