#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/channels/channel_places.h"
#include "model/weights/weights.h"
#include "tensor/exec.h"

namespace tandem::model {

/// Which channels of a layer's FFN are in its set and which in the rest: a place each, those of the
/// set first. To begin with channel c has place c.
class ChannelPlaces {
 public:
  struct Swap {
    int32_t set, rest;  // a place in the set, one in the rest
  };
  ChannelPlaces(int n_channels, int n_set);

  /// Makes these channels the set.
  /// wanted   [n_set] distinct
  /// returns  what changes places; channels that stay in the set or in the rest keep theirs
  std::vector<Swap> exchange(std::span<const int32_t> wanted);
  /// [n_channels] by place.
  std::span<const int32_t> channels() const { return channel_; }

 private:
  int n_set_;
  std::vector<int32_t> channel_;
};

/// The sets of all layers of a model on a GPU, and where their channels are.
class ChannelSets {
 public:
  static void plan(const ModelConfig& config, const WeightPlaces& places, MemoryPlan& plan);
  /// Takes the planned memory.
  ChannelSets(const ModelConfig& config, const WeightPlaces& places, Arena& arena,
              const Exec& exec);

  int n_set() const { return n_set_; }
  /// The channels by place, [n_channels], in the GPU's memory.
  const int32_t* channels(int layer) const { return channels_ + int64_t{layer} * n_channels_; }
  /// Makes these the sets; waits for all work so far, and for that.
  /// lists    [n_layers][n_set] in the GPU's memory
  void bring(Weights& weights, std::span<const int32_t* const> lists);
  /// What bring has exchanged so far, one way, and how long that took.
  struct Exchanged {
    int64_t bytes = 0;
    double seconds = 0;
  };
  const Exchanged& exchanged() const { return exchanged_; }

 private:
  void exchange(Weights& weights, std::span<const std::vector<ChannelPlaces::Swap>> swaps);

  Exec exec_;
  int n_channels_, n_set_;
  std::vector<ChannelPlaces> places_;  // by layer
  int32_t* channels_;                  // [n_layers, n_channels]
  int32_t* swaps_;                     // [n_layers, min(n_set, n_channels - n_set), 2]
  Exchanged exchanged_;
};

}  // namespace tandem::model
