#pragma once
#include "base/types.h"
#include "model/spec/config.h"

namespace tandem::speculate {

/// What a forward of a model reads and computes, by its shape alone.
struct ModelCosts {
  double product_bytes =
      0;  // weights of the layers' products and of the head: read by each forward
  double product_flops = 0;  // of the same for one row
  double memory_bytes = 0;   // all weights
  double kv_bytes = 0;       // K and V of one token, all layers
  double key_flops = 0;      // attention of one row over one key, all layers
  int element_bytes = 2;
  int n_layers = 0, n_kv_heads = 0, head_dim = 0, dim = 0;
  int n_sliding = 0, window = 0;  // layers that attend to the last `window` tokens only

  /// Keys that a row sees, as a mean over the layers: `context`, unless layers slide.
  double keys_seen(double context) const;
};

/// dtype   of weights, activations and KV
ModelCosts costs_of(const model::ModelConfig& config, DType dtype);

}  // namespace tandem::speculate
