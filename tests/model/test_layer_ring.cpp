#include <doctest/doctest.h>

#include <algorithm>

#include "model/layer_ring.h"
#include "model/layer_stream.h"

using namespace tandem;
using namespace tandem::model;

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

  TEST_CASE("every layer is in the buffer that it is used from, forward after forward") {
    for (int n = 1; n <= 9; ++n) {
      CAPTURE(n);
      LayerRing ring(n);
      std::vector<int> held;
      for (int i = 0; i < ring.n_buffers(); ++i) held.push_back(i);
      for (int forward = 0; forward < 5; ++forward) {
        CHECK(ring.at_first_layer());
        for (int layer = 0; layer < n; ++layer) {
          REQUIRE(ring.layer() == layer);
          REQUIRE(held[static_cast<size_t>(ring.buffer())] == layer);
          held[static_cast<size_t>(ring.buffer())] = ring.successor();
          ring.advance();
        }
      }
    }
  }

  TEST_CASE("after a forward that was broken off the ring begins anew") {
    LayerRing ring(5);
    for (int i = 0; i < 3; ++i) ring.advance();
    CHECK_FALSE(ring.at_first_layer());
    ring.restart();
    CHECK(ring.at_first_layer());
    CHECK(ring.buffer() == 0);
    CHECK(ring.successor() == 2);
  }

  TEST_CASE("the plan holds a block a layer on the host and two on the GPU") {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    MemoryPlan plan;
    LayerStream::plan(streamed_layers(40, 27), 1000, kGpu, plan);
    CHECK(plan.group_bytes("weights", {}) == 27'000);
    CHECK(plan.group_bytes("weights", kGpu) == 0);
    CHECK(plan.group_bytes("ring", kGpu) == 2'000);
  }
}
