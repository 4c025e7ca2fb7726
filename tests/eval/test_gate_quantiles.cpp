#include <doctest/doctest.h>

#include <cmath>

#include "eval/eval_testing.h"
#include "eval/gate_quantiles.h"
#include "temporary_folder.h"

using namespace eval_testing;
using namespace tandem;
using namespace tandem::eval;

namespace {

constexpr int kContext = 300;

std::vector<Window> some_windows() {
  std::vector<Window> windows(3);
  PhiloxStream rng(5);
  for (size_t i = 0; i < windows.size(); ++i)
    for (size_t n = 0; n < 100 + 97 * i; ++n)
      windows[i].ids.push_back(static_cast<int32_t>(rng.below(500)));
  return windows;
}

MeasuredThresholds measure(DType dtype, double keep) {
  const auto engine = make_engine("tiny-2m", gates_engine_spec(dtype, kContext));
  return measure_thresholds(*engine, some_windows(), keep, [](int64_t) { return true; });
}

/// Reads the windows token by token by the channels of the engine's second cache.
void read_sparsely(decode::Engine& engine) {
  for (const Window& window : some_windows()) {
    const std::span<const int32_t> ids = window.ids;
    const int base = engine.cache().create(engine.cache().all_readers());
    const decode::SeqTokens first[] = {{base, ids.first(1), true}};
    engine.prefill(first, [](std::span<const size_t>, const Tensor&) {});
    const int slot = engine.cache().fork(base, 1);
    for (size_t i = 1; i < ids.size(); ++i) {
      const decode::SeqTokens next[] = {{slot, ids.subspan(i, 1), true}};
      engine.forward_all(kv::Phase::extend, next, [](int, const Tensor&) {});
    }
    engine.cache().release(slot);
    engine.cache().release(base);
  }
}

/// |act(g)| of every token, layer by layer.
std::vector<std::vector<float>> all_gates() {
  decode::EngineSpec spec = gates_engine_spec(DType::f32, kContext);
  const auto engine = make_engine("tiny-2m", spec);
  const model::ModelConfig& c = engine->config();
  std::vector<std::vector<float>> gates(static_cast<size_t>(c.n_layers));
  const size_t width = 2 * static_cast<size_t>(c.ffn_dim);
  for (const Window& window : some_windows()) {
    const int slot = engine->cache().create();
    for (const int32_t& id : window.ids) {  // one by one
      std::vector<std::vector<float>> places(gates.size(), std::vector<float>(width));
      std::vector<model::LayerActivations> kept(gates.size());
      for (size_t i = 0; i < kept.size(); ++i) kept[i].gate_up = places[i].data();
      const kv::SeqRows rows[] = {{slot, 1, false}};
      const kv::Step step = engine->cache().begin({.phase = kv::Phase::prefill, .rows = rows});
      engine->model().forward({&id, 1}, step, engine->cache(), kept);
      engine->cache().commit(step);
      for (size_t i = 0; i < kept.size(); ++i)
        for (size_t j = 0; j < width / 2; ++j) {
          const float g = places[i][j];
          gates[i].push_back(std::abs(g / (1 + std::exp(-g))));
        }
    }
    engine->cache().release(slot);
  }
  return gates;
}

}  // namespace

TEST_SUITE("eval/gate_quantiles") {
  TEST_CASE("a threshold is the quantile, a thousandth below it at most") {
    std::vector<std::vector<float>> gates = all_gates();
    for (const double keep : {.1, .5, .9, 1.}) {
      CAPTURE(keep);
      const MeasuredThresholds m = measure(DType::f32, keep);
      CHECK(m.n_tokens == 100 + 197 + 294);
      REQUIRE(m.thresholds.values.size() == gates.size());
      for (size_t layer = 0; layer < gates.size(); ++layer) {
        std::vector<float>& all = gates[layer];
        std::ranges::sort(all, std::greater<>());
        const auto wanted = static_cast<size_t>(std::ceil(keep * static_cast<double>(all.size())));
        const float quantile = all[wanted - 1];
        // Tokens one by one round their sums as in chunks, to a few units.
        CHECK(m.thresholds.values[layer] <= quantile * 1.0001f);
        CHECK(m.thresholds.values[layer] >= quantile * .998f);
      }
      CHECK(m.thresholds.keep >= keep);
      CHECK(m.thresholds.keep < keep + .002);
    }
  }

  TEST_CASE("cats_threshold by the file reads the share of channels that was asked for") {
    const test::TemporaryFolder folder;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const MeasuredThresholds m = measure(dtype, .5);
      const auto path = folder.write("t.json", ffn::thresholds_text(m.thresholds));
      NamedPolicy policy{.name = "t", .cache = {}};
      policy.sparse.kind = recipe::SparseKind::cats_threshold;
      policy.sparse.keep = {.5};
      policy.sparse.thresholds = path;
      // Another name's file is refused, this model's is read.
      const auto engine = make_engine(
          "tiny-2m", text_engine_spec({full(), policy}, dtype, kContext, kContext, 128));
      const ffn::Channels& channels = *engine->channels();
      CHECK(channels.policy(1).expected_channels() ==
            doctest::Approx(.5 * engine->config().ffn_dim).epsilon(.005));
      CHECK(channels.lists_read(1).lists == 0);
      read_sparsely(*engine);
      const ffn::ListsRead read = channels.lists_read(1);
      CHECK(read.lists == (m.n_tokens - 3) * engine->config().n_layers);
      CHECK(channels.share_read(1) == doctest::Approx(.5).epsilon(.02));
      CHECK(channels.share_read(1, read) == doctest::Approx(m.thresholds.keep));
      CHECK_THROWS_WITH_AS(
          make_engine("tiny-16m", text_engine_spec({full(), policy}, dtype, kContext, 50, 128)),
          doctest::Contains("was measured on another model"), Error);
    }
  }

  TEST_CASE("a measurement that is broken off has no thresholds") {
    const auto engine = make_engine("tiny-2m", gates_engine_spec(DType::f32, kContext));
    const auto m =
        measure_thresholds(*engine, some_windows(), .5, [](int64_t done) { return done < 150; });
    CHECK(m.thresholds.values.empty());
    CHECK(engine->cache().store().free_pages() > 0);
  }
}
