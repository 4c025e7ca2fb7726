#pragma once
#include <span>

#include "model/spec/config.h"
#include "train/backward/frontier.h"
#include "train/backward/micro_batch.h"

namespace tandem::train {

/// Operations of a step in products and attention (a multiply-add is two); pointwise ones do
/// not count.
struct Work {
  double forward = 0;
  double input_gradients = 0;
  double weight_gradients = 0;
  double factors = 0;  // forward products with low-rank factors, again too
  double again = 0;    // that the forward did already: layers, scores of attention

  double done() const { return forward + input_gradients + weight_gradients + factors + again; }
  /// The same forward in a step that trains all weights and computes nothing again: what speeds of
  /// methods are compared by.
  double of_full_step() const { return 3 * forward; }

  Work& operator+=(const Work& other);
};

/// The micro-batches' forward and backward pass, the loss on their supervised rows.
Work work_of(const TrainedSet& set, const Frontier& frontier, const model::ModelConfig& config,
             std::span<const MicroBatch> batches);

}  // namespace tandem::train
