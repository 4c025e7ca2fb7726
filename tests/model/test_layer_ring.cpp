#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/rng.h"
#include "model/weights/channel_sets.h"
#include "model/weights/layer_ring.h"
#include "model/weights/layer_stream.h"

using namespace tandem;
using namespace tandem::model;

namespace {

/// Blocks that each buffer holds, as a stream would copy them.
struct Buffers {
  LayerRing ring;
  std::vector<int> held;
  int restarts = 0;

  Buffers(std::vector<int> all, std::vector<int> set)
      : ring(std::move(all), std::move(set)), held(ring.held()) {}
  /// A forward that uses `blocks`, or breaks off after n of them.
  void run(ReadKind kind, const std::vector<int>& blocks, size_t n = 100) {
    if (!ring.begin(kind)) {
      ++restarts;
      held = ring.held();
    }
    for (size_t i = 0; i < std::min(n, blocks.size()); ++i) {
      REQUIRE(ring.block() == blocks[i]);
      REQUIRE(held[static_cast<size_t>(ring.buffer())] == blocks[i]);
      const auto buffer = static_cast<size_t>(ring.buffer());
      held[buffer] = ring.advance();
    }
  }
};

std::vector<int> up_to(int n) {
  std::vector<int> blocks(static_cast<size_t>(n));
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

}  // namespace

TEST_SUITE("model/layer_ring") {
  TEST_CASE("streamed layers are spread evenly and begin with the first") {
    CHECK(streamed_layers(8, 0).empty());
    CHECK(streamed_layers(8, 8) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(streamed_layers(8, 4) == std::vector<int>{0, 2, 4, 6});
    CHECK(streamed_layers(8, 3) == std::vector<int>{0, 2, 5});
    for (int n_layers = 1; n_layers <= 80; ++n_layers)
      for (int n = 1; n <= n_layers; ++n) {
        std::vector<int> layers = streamed_layers(n_layers, n);
        REQUIRE(layers.size() == static_cast<size_t>(n));
        REQUIRE(layers.front() == 0);
        layers.push_back(n_layers);  // the next forward's first
        int shortest = n_layers, longest = 0;
        for (size_t i = 1; i < layers.size(); ++i) {
          shortest = std::min(shortest, layers[i] - layers[i - 1]);
          longest = std::max(longest, layers[i] - layers[i - 1]);
        }
        REQUIRE(shortest >= 1);
        REQUIRE(longest - shortest <= 1);
      }
  }

  TEST_CASE("every block is in the buffer that it is used from, forward after forward") {
    for (int n = 1; n <= 9; ++n) {
      CAPTURE(n);
      Buffers buffers(up_to(n), {});
      for (int forward = 0; forward < 5; ++forward) buffers.run(ReadKind::all, up_to(n));
      CHECK(buffers.restarts == 0);
    }
  }

  TEST_CASE("after a forward that was broken off the ring begins anew") {
    Buffers buffers(up_to(5), {});
    buffers.run(ReadKind::all, up_to(5), 3);
    buffers.run(ReadKind::all, up_to(5));
    CHECK(buffers.restarts == 1);
    buffers.run(ReadKind::all, up_to(5));
    CHECK(buffers.restarts == 1);
  }

  TEST_CASE("drafts that use no block leave what was copied for the check") {
    Buffers buffers(up_to(4), {});
    for (int round = 0; round < 4; ++round) {
      for (int draft = 0; draft < 3; ++draft) buffers.run(ReadKind::set, {});
      buffers.run(ReadKind::all, up_to(4));
    }
    CHECK(buffers.restarts == 0);
  }

  TEST_CASE("rounds of a kind are guessed after the first, plain steps again after one") {
    for (const std::vector<int>& set : {std::vector{1, 4, 5}, std::vector{2}, std::vector{0, 3}}) {
      Buffers buffers(up_to(6), set);
      const auto round = [&](int n_drafts) {
        for (int i = 0; i < n_drafts; ++i) buffers.run(ReadKind::set, set);
        buffers.run(ReadKind::all, up_to(6));
      };
      buffers.run(ReadKind::all, up_to(6));  // the prompt
      for (int i = 0; i < 3; ++i) round(5);
      const int learnt = buffers.restarts;
      CHECK(learnt > 0);
      for (int i = 0; i < 5; ++i) round(5);
      CHECK(buffers.restarts == learnt);
      round(2);
      round(2);
      round(2);
      const int again = buffers.restarts;
      CHECK(again > learnt);
      for (int i = 0; i < 5; ++i) round(2);
      CHECK(buffers.restarts == again);
      for (int i = 0; i < 5; ++i) buffers.run(ReadKind::all, up_to(6));
      CHECK(buffers.restarts <= again + 1);
    }
  }

  TEST_CASE("the plan holds a block a part on the host and two of the largest on the GPU") {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    std::vector<LayerStream::Part> parts;
    for (const int layer : streamed_layers(40, 27)) {
      parts.push_back({layer, LayerPart::attention, 1000});
      parts.push_back({layer, LayerPart::ffn, 3000});
    }
    MemoryPlan plan;
    LayerStream::plan(parts, kGpu, plan);
    CHECK(plan.group_bytes("weights", {}) == 108'000);
    CHECK(plan.group_bytes("weights", kGpu) == 0);
    CHECK(plan.group_bytes("ring", kGpu) == 6'000);
  }

  TEST_CASE("of divided layers the rests are streamed first, then sets, then attention") {
    const auto parts = [](int n, int set) {
      const StreamedParts p = streamed_parts(10, {.n_streamed = n, .set_channels = set});
      return std::array{p.attention, p.ffn, p.rest};
    };
    CHECK(parts(4, 0) == std::array{4, 4, 0});
    CHECK(parts(4, 8) == std::array{0, 0, 4});
    CHECK(parts(13, 8) == std::array{0, 3, 10});
    CHECK(parts(30, 8) == std::array{10, 10, 10});
  }
}

TEST_SUITE("model/channel_places") {
  TEST_CASE("the wanted channels become the set, all others keep their places") {
    ChannelPlaces places(10, 4);
    CHECK(places.exchange(std::vector<int32_t>{0, 1, 2, 3}).empty());
    const auto swaps = places.exchange(std::vector<int32_t>{1, 3, 7, 9});
    REQUIRE(swaps.size() == 2);
    CHECK(swaps[0].set == 0);
    CHECK(swaps[0].rest == 3);
    CHECK(swaps[1].set == 2);
    CHECK(swaps[1].rest == 5);
    CHECK(std::ranges::equal(places.channels(), std::array{7, 1, 9, 3, 4, 5, 6, 0, 8, 2}));
  }

  TEST_CASE("any number of exchanges keeps every channel in one place") {
    PhiloxStream rng(1);
    ChannelPlaces places(37, 11);
    std::vector<int32_t> all(37), before(37);
    std::iota(all.begin(), all.end(), 0);
    for (int turn = 0; turn < 200; ++turn) {
      for (uint32_t i = 36; i > 0; --i) std::swap(all[i], all[rng.below(i + 1)]);
      std::ranges::copy(places.channels(), before.begin());
      const std::span<const int32_t> wanted = std::span(all).first(11);
      for (const auto& swap : places.exchange(wanted))
        std::swap(before[static_cast<size_t>(swap.set)],
                  before[static_cast<size_t>(11 + swap.rest)]);
      REQUIRE(std::ranges::equal(places.channels(), before));
      std::vector<int32_t> set(before.begin(), before.begin() + 11);
      std::vector<int32_t> sorted(wanted.begin(), wanted.end());
      std::ranges::sort(set);
      std::ranges::sort(sorted);
      REQUIRE(set == sorted);
      std::ranges::sort(before);
      for (int32_t c = 0; c < 37; ++c) REQUIRE(before[static_cast<size_t>(c)] == c);
    }
  }
}
