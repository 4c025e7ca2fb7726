#pragma once
#include <memory>
#include <vector>

#include "model/adapters/any_adapter.h"
#include "model/weights/weights.h"

namespace tandem::model {

/// An adapter, and how much of its change is added.
struct WeightedAdapter {
  AnyAdapter adapter;
  float weight = 1;  // finite
};

/// The weights of `base` with adapters merged into them: W + sum_i weight_i delta_i, in the order
/// given. A delta is value - W of a slice, gamma B A of LoRA, and the merged row - W of DoRA and of
/// weights that an adapter of PEFT replaces.
/// numerics accumulated in f32, rounded once to the type asked for. An element that one slice
///          changes at weight 1, and nothing else, is that slice's value, bit for bit; one that no
///          adapter changes has the base's bytes. So slices that share no element give the same
///          bits in any order; where adapters overlap, the order of the list is that of the sum. A
///          single adapter of PEFT at weight 1 is LowRankAdapter::merge.
/// An adapter of weight 0 changes nothing. Where adapters are merged into `base` already, these
/// follow in its list.
std::unique_ptr<WeightSource> fused_source(std::unique_ptr<WeightSource> base,
                                           std::vector<WeightedAdapter> adapters,
                                           const ModelConfig& config);

/// The weights of a model that ties embedding and head, with the head as a separate weight.
std::unique_ptr<WeightSource> untied_source(std::unique_ptr<WeightSource> tied);

}  // namespace tandem::model
