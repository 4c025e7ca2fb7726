#include <doctest/doctest.h>

#include <cmath>

#include "error_text.h"
#include "temporary_folder.h"
#include "train/export/export_adapter.h"
#include "train/selection/choose_set.h"
#include "train/selection/exclude.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// A run's adapter, of these shares of all matrices.
train::TrainedSet adapter_at(const std::filesystem::path& folder, const char* name, double share,
                             const train::Excluded& excluded) {
  const train::TrainerSpec spec = trainer_spec(name);
  train::TrainSettings settings;
  settings.select.scope = train::Scope::global;  // some have one KV head a layer
  auto& r = settings.select.ratios;
  for (recipe::Fraction* ratio : {&r.o, &r.d, &r.v, &r.u, &r.g, &r.q, &r.k}) ratio->value = share;
  train::TrainedSet set = train::choose_set(settings, spec, 3, {}, excluded.units);
  const auto trainer = make_trainer(name, spec, set);
  train::export_adapter(folder / "adapter", decode::open_model(small_model(name).string(), 0),
                        settings, 3, *trainer);
  return set;
}

}  // namespace

TEST_SUITE("train/exclude") {
  TEST_CASE("adapters that exclude each other share no weight, and have exact counts") {
    for (const char* name : {"llama-3.1", "qwen3-odd"}) {
      CAPTURE(name);
      const TemporaryFolder folder;
      const decode::ModelFiles files = decode::open_model(small_model(name).string(), 0);
      const model::ModelConfig& c = files.config;
      const model::AdapterBase base = {files.name, files.fingerprint};
      std::vector<std::filesystem::path> runs;
      train::Excluded excluded;
      for (const char* run : {"one", "two", "three"}) {
        adapter_at(folder / run, name, 0.25, excluded);
        runs.push_back(folder / run);
        excluded = train::units_of_adapters(runs, c, base);
        CHECK(excluded.n_adapters == static_cast<int>(runs.size()));
      }
      for (const model::Role weight : model::kLayerRoles) {
        const io::Shape shape = model::shape_of(weight, c);
        const int64_t features = shape[model::ends_in_stream(weight) ? 1 : 0];
        const int width = model::unit_features(weight, c);
        const auto each = static_cast<int64_t>(
            std::floor(0.25 * static_cast<double>(features / width * c.n_layers)));
        std::vector<int> times(static_cast<size_t>(features * c.n_layers));
        for (const auto& run : runs) {
          const auto adapter = model::Adapter::open(run / "adapter", c, base);
          int64_t n = 0;
          for (int layer = 0; layer < c.n_layers; ++layer)
            for (const int32_t i : adapter.index({weight, layer})) {
              ++times[static_cast<size_t>(layer * features + i)];
              ++n;
            }
          CHECK(n == each * width);
        }
        CHECK(std::ranges::max(times) <= 1);
      }
      const auto first = train::units_of_adapters(std::span(runs).first(1), c, base);
      CHECK(first.fingerprint() != excluded.fingerprint());
      CHECK(train::Excluded{}.fingerprint() == "none");
      CHECK(first.text().find(fmt::format("d {}", c.ffn_dim * c.n_layers / 4)) !=
            std::string::npos);
      // Overlapping lists are one.
      const std::vector<std::filesystem::path> twice = {runs[0], runs[0] / "adapter"};
      CHECK(train::units_of_adapters(twice, c, base).fingerprint() == first.fingerprint());
      const std::string text =
          error_text([&] { adapter_at(folder / "four", name, 0.5, excluded); });
      CHECK(text.find("train.select.exclude: leaves ") == 0);
    }
  }

  TEST_CASE("an adapter of another model is refused") {
    const TemporaryFolder folder;
    adapter_at(folder / "run", "llama-3.1", 0.5, {});
    const std::vector<std::filesystem::path> runs = {folder / "run"};
    CHECK(input_error_text([&] {
            train::units_of_adapters(runs, trainer_spec("llama-3.1").config, {"other", "beef"});
          }).find("the model is 'other'") != std::string::npos);
  }
}
