#pragma once
#include "model/adapters/named_adapter.h"
#include "model/weights/shard.h"

namespace tandem::model {

/// What a rank has of an adapter, in memory: new values of the features of its heads and channels,
/// or of low-rank factors their rows and columns.
/// errors   kind recipe: DoRA, which measures whole rows; kind input: files that can no longer be
///          read
NamedAdapter shard_adapter(const NamedAdapter& named, const ModelConfig& whole, const Shard& shard);

}  // namespace tandem::model
