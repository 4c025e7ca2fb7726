#include "model/weights/channel_sets.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "ops/channels.h"

namespace tandem::model {
namespace {

constexpr const char *kChannels = "index/channel sets.places", *kSwaps = "index/channel sets.swaps";

size_t most_swaps(int n_channels, int n_set) {
  return static_cast<size_t>(std::min(n_set, n_channels - n_set));
}

}  // namespace

ChannelPlaces::ChannelPlaces(int n_channels, int n_set)
    : n_set_(n_set), channel_(static_cast<size_t>(n_channels)) {
  TANDEM_CHECK(0 < n_set && n_set <= n_channels, "{} hot neurons are out of range for {} neurons",
               n_set, n_channels);
  std::iota(channel_.begin(), channel_.end(), 0);
}

std::vector<ChannelPlaces::Swap> ChannelPlaces::exchange(std::span<const int32_t> wanted) {
  TANDEM_CHECK(std::ssize(wanted) == n_set_, "found {} neurons, expected {} hot ones",
               wanted.size(), n_set_);
  std::vector<bool> is_wanted(channel_.size());
  for (const int32_t c : wanted) {
    TANDEM_CHECK(c >= 0 && c < std::ssize(channel_) && !is_wanted[static_cast<size_t>(c)],
                 "neuron {} is listed twice or out of range for {} neurons", c, channel_.size());
    is_wanted[static_cast<size_t>(c)] = true;
  }
  // As many leave the set as come: both in the order of their places.
  std::vector<Swap> swaps;
  size_t in_rest = static_cast<size_t>(n_set_);
  for (int32_t i = 0; i < n_set_; ++i) {
    int32_t& leaves = channel_[static_cast<size_t>(i)];
    if (is_wanted[static_cast<size_t>(leaves)]) continue;
    while (!is_wanted[static_cast<size_t>(channel_[in_rest])]) ++in_rest;
    swaps.push_back({i, static_cast<int32_t>(in_rest) - n_set_});
    std::swap(leaves, channel_[in_rest]);
    ++in_rest;
  }
  return swaps;
}

void ChannelSets::plan(const ModelConfig& c, const WeightPlaces& places, MemoryPlan& plan) {
  const auto layers = static_cast<size_t>(c.n_layers);
  plan.add(kChannels, layers * static_cast<size_t>(c.ffn_dim) * sizeof(int32_t), places.device);
  plan.add(kSwaps,
           layers * most_swaps(c.ffn_dim, places.set_channels) * sizeof(ChannelPlaces::Swap),
           places.device);
}

ChannelSets::ChannelSets(const ModelConfig& c, const WeightPlaces& places, Arena& arena,
                         const Exec& exec)
    : exec_(exec),
      n_channels_(c.ffn_dim),
      n_set_(places.set_channels),
      places_(static_cast<size_t>(c.n_layers), ChannelPlaces(n_channels_, n_set_)),
      channels_(static_cast<int32_t*>(arena.take(kChannels))),
      swaps_(static_cast<int32_t*>(arena.take(kSwaps))) {
  for (int layer = 0; layer < c.n_layers; ++layer)
    exec_.queue->copy_in(channels_ + int64_t{layer} * n_channels_,
                         places_.front().channels().data(),
                         places_.front().channels().size_bytes());
}

void ChannelSets::bring(Weights& weights, std::span<const int32_t* const> lists) {
  TANDEM_CHECK(lists.size() == places_.size(), "unexpected number of layers: {}", lists.size());
  const auto n = static_cast<size_t>(n_set_);
  std::vector<int32_t> wanted(lists.size() * n);
  for (size_t l = 0; l < lists.size(); ++l)
    exec_.queue->copy_out(wanted.data() + l * n, lists[l], n * sizeof(int32_t));
  exec_.queue->wait();
  std::vector<std::vector<ChannelPlaces::Swap>> swaps;
  bool any = false;
  for (size_t l = 0; l < lists.size(); ++l) {
    swaps.push_back(places_[l].exchange(std::span(wanted).subspan(l * n, n)));
    any = any || !swaps.back().empty();
  }
  if (!any) return;
  const Stopwatch watch;
  const auto work = [&] { exchange(weights, swaps); };
  if (weights.stream)
    weights.stream->change(*exec_.queue, work);
  else
    work();
  // Products may read weights before the work ahead of them has ended.
  exec_.queue->wait();
  exchanged_.seconds += watch.seconds();
}

void ChannelSets::exchange(Weights& weights,
                           std::span<const std::vector<ChannelPlaces::Swap>> swaps) {
  const size_t room = most_swaps(n_channels_, n_set_) * 2;
  LayerStream* const stream = weights.stream.get();
  for (size_t l = 0; l < swaps.size(); ++l) {
    const int layer = static_cast<int>(l);
    const auto far = [&](LayerPart part) {
      return stream != nullptr && stream->holds(layer, part) ? stream->on_host(layer, part)
                                                             : LayerWeights{};
    };
    const LayerWeights set = far(LayerPart::ffn), rest = far(LayerPart::rest);
    const auto pick = [&](const LayerWeights& on_host, Role role) -> const ops::PackedWeights& {
      return on_host[role].empty() ? weights.layers[l][role] : on_host[role];
    };
    int32_t* const at = swaps_ + l * room;
    exec_.queue->copy_in(at, swaps[l].data(), swaps[l].size() * sizeof(ChannelPlaces::Swap));
    exec_.queue->copy_in(channels_ + int64_t{layer} * n_channels_, places_[l].channels().data(),
                         places_[l].channels().size_bytes());
    const ops::ExchangeChannels what{pick(set, Role::gate_up),
                                     pick(set, Role::down),
                                     pick(rest, Role::rest_gate_up),
                                     pick(rest, Role::rest_down),
                                     at,
                                     static_cast<int>(swaps[l].size())};
    ops::exchange_channels(what, exec_.stream());
    exchanged_.bytes +=
        std::ssize(swaps[l]) * 3 * static_cast<int64_t>(what.set_gate_up.row_bytes());
  }
}

}  // namespace tandem::model
