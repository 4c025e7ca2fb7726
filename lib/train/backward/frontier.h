#pragma once
#include <string>
#include <vector>

#include "train/trained_set.h"

namespace tandem::train {

/// How far a backward pass goes into a layer, from its output down. Each but the first implies the
/// one before it.
struct LayerFrontier {
  bool output = false;     // the gradient of the layer's output is used
  bool gate_up = false;    // goes through down and the gate
  bool middle = false;     // goes through the FFN and its norm to the residual stream between
  bool attention = false;  // goes through o and attention to qkv
  bool input = false;      // goes through the first norm to the layer's input

  // The activations that it reads.
  bool reads_gate_up() const { return output; }
  bool reads_middle = false;    // residual stream before the FFN
  bool reads_attended = false;  // attention's output
  bool reads_input = false;     // residual stream before attention
  bool reads_qkv = false;       // the projection, for norms of heads and magnitudes of DoRA
  // What low-rank factors keep of their matrices: the inputs of B, and outputs of DoRA.
  bool reads_factors = false, reads_added = false;

  // What the forward keeps so as not to compute it again, of trained weights' inputs.
  bool keeps_normed_in = false, keeps_normed_mid = false;  // outputs of the norms
  bool keeps_ffn = false;                                  // output of the gate
  // Outputs of o and down, before norms that follow them.
  bool reads_o_out = false, reads_down_out = false;

  /// Those that are computed again before the layer's turn, not kept by the forward.
  enum class Again : uint8_t {
    none,
    gate_up,  // from the middle
    layer,    // all but the input, from that
  };
  Again again = Again::none;

  bool operator==(const LayerFrontier&) const = default;
};

/// How much of a layer is computed again: nothing but listed columns of the gate's output; all
/// outputs of the norms and of the gate, which cost little compared with a product; then gate and
/// up; then whole layers, of which K and V stay in their pages all the same.
enum class Recomputation : uint8_t { none, light, ffn, layer };

/// How far each layer is back-propagated and what it saves: the static plan of a training run,
/// which follows from the trained set alone.
struct Frontier {
  std::vector<LayerFrontier> layers;

  /// Layers that run as for inference.
  int first() const;
};

Frontier frontier_of(const TrainedSet& set, const model::ModelConfig& config,
                     Recomputation recompute = Recomputation::light);

/// Lines for people, runs of equal layers together: "layers 1-31: back to the input; keeps ...".
std::string describe(const Frontier& frontier);

}  // namespace tandem::train
