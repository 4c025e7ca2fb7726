#pragma once
#include <memory>
#include <string>

#include "model/weights.h"

namespace tandem::model {

/// What one rank of several holds of a model: query heads, the KV heads that these read (some lie
/// on several ranks), FFN channels and rows of the vocabulary. Norms are on all ranks; biases of
/// products that enter the residual stream on rank 0 alone.
struct Shard {
  struct Part {
    int first = 0, n = 0;
  };
  int rank = 0, n_ranks = 1;
  Part heads = {}, kv_heads = {};
  Part channels = {};  // uneven where blocks of 16 do not divide
  Part vocabulary =
      {};  // the same number on all ranks: the last one's are padded with rows of zeros

  bool whole() const { return n_ranks == 1; }
};

/// errors   kind recipe: the ranks do not divide the query heads, leave a rank groups of unlike
///          size, or more ranks than blocks of channels; names the numbers that do
Shard shard_of(const ModelConfig& whole, int rank, int n_ranks);
/// Whether shard_of takes this number of ranks.
bool divides(const ModelConfig& whole, int n_ranks);

/// The shape of what the rank holds.
ModelConfig config_of(const ModelConfig& whole, const Shard& shard);

/// The rank's weights, out of those of the whole model; embed() still knows all tokens.
std::unique_ptr<WeightSource> shard_source(const ModelConfig& whole, const Shard& shard,
                                           std::unique_ptr<WeightSource> source);

}  // namespace tandem::model
