#pragma once
#include <memory>
#include <string>

#include "model/weights/weight_source.h"

namespace tandem::model {

/// Channels that stay on one rank, unless weights in groups need more.
inline constexpr int kChannelBlock = 16;

/// What one rank of several holds of a model: query heads, the KV heads that these read (some lie
/// on several ranks), FFN channels and rows of the vocabulary. Norms are on all ranks; biases of
/// products that enter the residual stream on rank 0 alone. Or all heads and channels, and of the
/// vocabulary alone a part.
struct Shard {
  struct Part {
    int first = 0, n = 0;
  };
  int rank = 0, n_ranks = 1;
  Part heads = {}, kv_heads = {};
  Part channels = {};  // uneven where blocks do not divide
  int channel_block = kChannelBlock;
  Part vocabulary =
      {};  // the same number on all ranks: the last one's are padded with rows of zeros

  bool whole_layers = false;  // all ranks hold all heads and channels

  bool whole() const { return n_ranks == 1; }
  bool divides_layers() const { return !whole() && !whole_layers; }
};

/// errors   kind recipe: the ranks do not divide the query heads, leave a rank groups of unlike
///          size, or more ranks than blocks of channels; names the numbers that do
Shard shard_of(const ModelConfig& whole, int rank, int n_ranks, int block = kChannelBlock);
/// The same of a model whose layers may stay whole on all ranks where their number does not divide
/// them, as a small draft's may. Its logits come from all ranks in any case, so that all have the
/// same bits.
Shard draft_shard_of(const ModelConfig& whole, int rank, int n_ranks, int block = kChannelBlock);
/// Whether shard_of takes this number of ranks.
bool divides(const ModelConfig& whole, int n_ranks, int block = kChannelBlock);
/// Channels of blocks that hold whole groups of down's inputs.
int channel_block(const ModelConfig& whole, const WeightSource& source);

/// Rows or columns of a role that the rank holds; none if the role is not divided.
Shard::Part own_features(Role role, const ModelConfig& whole, const Shard& shard);

/// The shape of what the rank holds.
ModelConfig config_of(const ModelConfig& whole, const Shard& shard);

/// The rank's weights, out of those of the whole model; embed() still knows all tokens.
std::unique_ptr<WeightSource> shard_source(const ModelConfig& whole, const Shard& shard,
                                           std::unique_ptr<WeightSource> source);

}  // namespace tandem::model
