#pragma once
#include <string>
#include <vector>

#include "train/trained_set.h"

namespace tandem::train {

/// How far a backward pass goes into a layer, from its output down. Each but the first implies the
/// one before it.
struct LayerFrontier {
  bool output = false;     // the gradient of the layer's output is used
  bool gate_up = false;    // goes through w_down and the gate
  bool middle = false;     // goes through the FFN and its norm to the residual stream between
  bool attention = false;  // goes through wo and attention to qkv
  bool input = false;      // goes through the first norm to the layer's input

  // What the forward keeps for it.
  bool keeps_gate_up() const { return output; }
  bool keeps_middle = false;    // residual stream before the FFN
  bool keeps_attended = false;  // attention's output
  bool keeps_input = false;     // residual stream before attention
  bool keeps_qkv = false;       // the projection, for norms of heads
};

/// How far each layer is back-propagated and what it saves: the static plan of a training run,
/// which follows from the trained set alone.
struct Frontier {
  std::vector<LayerFrontier> layers;

  /// Layers that run as for inference.
  int first() const;
};

Frontier frontier_of(const TrainedSet& set, const model::ModelConfig& config);

/// Lines for people, runs of equal layers together: "layers 1-31: back to the input; keeps ...".
std::string describe(const Frontier& frontier);

}  // namespace tandem::train
