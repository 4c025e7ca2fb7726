#include <doctest/doctest.h>

#include <fmt/format.h>

#include <set>

#include "io/file.h"
#include "model/adapters/adapter.h"
#include "safetensors_text.h"
#include "temporary_folder.h"
#include "train/export/export_adapter.h"
#include "train/export/export_model.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

recipe::Model section(const std::filesystem::path& model, const std::filesystem::path& adapter) {
  recipe::Model m;
  m.path = {model.string()};
  m.adapters.emplace_back().path = adapter;
  return m;
}

std::vector<Row> logits(decode::ModelFiles files, DType compute) {
  decode::Engine engine(std::move(files), engine_spec({.compute = compute}));
  const Ids ids = random_ids(engine, 12, 3);
  return run_alone(engine, ids, random_ids(engine, 4, 4));
}

}  // namespace

TEST_SUITE("train/adapter") {
  TEST_CASE("base and adapter give the merged model's logits, for every architecture") {
    for (const char* name : small_models()) {
      CAPTURE(name);
      const TemporaryFolder folder;
      const train::TrainerSpec spec = trainer_spec(name);
      const train::TrainedSet set =
          train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
      const auto trainer = make_trainer(name, spec, set);
      const train::MicroBatch batch = random_documents({40, 20}, spec.config.vocab_size, 5);
      trainer->step({&batch, 1});
      const decode::ModelFiles base = decode::open_model(small_model(name).string(), 0);
      train::export_model(folder / "model", base.folder, spec.config, *base.source, set,
                          trainer->state().values, DType::f32);
      train::export_adapter(folder / "adapter", base, {}, 0, *trainer);

      const model::Adapter adapter =
          model::Adapter::open(folder / "adapter", spec.config, {base.name, base.fingerprint});
      CHECK(adapter.file().metadata().at("trained_steps") == "1");
      int64_t values = 0;
      for (const io::TensorEntry& entry : adapter.file().entries())
        if (entry.name.ends_with(".value"))
          values += static_cast<int64_t>(adapter.file().tensor(entry).bytes.size() / sizeof(float));
      CHECK(values == set.size);
      for (const model::Role weight : model::kLayerRoles) {
        int layers = 0;  // of one KV head, half of the layers
        for (int layer = 0; layer < spec.config.n_layers; ++layer)
          layers += adapter.holds({weight, layer});
        CHECK(layers > 0);
      }

      const recipe::Model both = section(base.folder, folder / "adapter");
      for (const DType compute : {DType::f32, DType::bf16}) {
        const auto merged = logits(decode::open_model((folder / "model").string(), 0), compute);
        CHECK(same(logits(decode::open_model(both, 0), compute), merged));
        CHECK_FALSE(same(logits(decode::open_model(base.folder.string(), 0), compute), merged));
      }
      // States of one are not states of the other.
      const std::string fingerprint = decode::open_model(both, 0).fingerprint;
      CHECK(fingerprint != base.fingerprint);
      CHECK(decode::open_model(both, 0).fingerprint == fingerprint);
      // Nor are those of another weight, or of more adapters, in whichever order.
      const auto of_weights = [&](std::vector<double> weights) {
        recipe::Model m = both;
        m.adapters.clear();
        for (const double weight : weights) {
          m.adapters.push_back(both.adapters.front());
          m.adapters.back().weight = weight;
        }
        return decode::open_model(m, 0).fingerprint;
      };
      CHECK(of_weights({1}) == fingerprint);
      std::set<std::string> all = {base.fingerprint};
      for (const auto& weights :
           std::vector<std::vector<double>>{{1}, {0.5}, {1, 0.5}, {0.5, 1}, {0.5, 0.5}})
        CHECK(all.insert(of_weights(weights)).second);
      trainer->step({&batch, 1});
      train::export_adapter(folder / "adapter", base, {}, 0, *trainer);
      CHECK(decode::open_model(both, 0).fingerprint != fingerprint);
    }
  }

  TEST_CASE("an adapter of another model is refused, and of other methods none is written") {
    const TemporaryFolder folder;
    const train::TrainerSpec spec = trainer_spec("llama-2");
    const train::TrainedSet set =
        train::slices_of(train::select_random(half_of_everything(), spec.config), spec.config);
    const auto trainer = make_trainer("llama-2", spec, set);
    const decode::ModelFiles base = decode::open_model(small_model("llama-2").string(), 0);
    train::export_adapter(folder / "adapter", base, {}, 0, *trainer);
    try {
      decode::open_model(section(small_model("llama-3.1"), folder / "adapter"), 0);
      FAIL("nothing thrown");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::input);
      CHECK(e.message().find("was trained on model 'llama-2' (fingerprint '" + base.fingerprint) !=
            std::string::npos);
      CHECK(e.message().find("the model is 'llama-3.1'") != std::string::npos);
      CHECK(e.hint_text().find("set model.path") == 0);
    }
    // Another model of one shape: where that is asked for.
    const train::MicroBatch batch = random_documents({40, 20}, spec.config.vocab_size, 5);
    trainer->step({&batch, 1});
    train::export_model(folder / "other", base.folder, spec.config, *base.source, set,
                        trainer->state().values, DType::f32);
    const recipe::Model again = section(folder / "other", folder / "adapter");
    CHECK_THROWS_AS(decode::open_model(again, 0), Error);
    recipe::Model forced = again;
    forced.adapters[0].force = true;
    CHECK(decode::open_model(forced, 0).fingerprint !=
          decode::open_model(again.path.value, 0).fingerprint);
    // Another shape: never.
    recipe::Model unlike = section(small_model("llama-3.1"), folder / "adapter");
    unlike.adapters[0].force = true;
    CHECK_THROWS_AS(decode::open_model(unlike, 0), Error);
    train::TrainSettings other;
    other.method = train::Method::spft;
    train::export_adapter(folder / "none", base, other, 0, *trainer);
    CHECK_FALSE(std::filesystem::exists(folder / "none"));
  }

  TEST_CASE("a model whose head is not the embedding, though config.json ties it, stays so") {
    const TemporaryFolder folder;
    std::filesystem::copy(small_model("llama-3.2-tied"), folder / "m");
    const std::string path = (folder / "m").string();
    const auto bytes = [](const model::ModelConfig& c) {
      return static_cast<size_t>(c.vocab_size) * static_cast<size_t>(c.dim) * 2;
    };
    {
      const model::ModelConfig c = decode::open_model(path, 0).config;
      folder.write("m/model.safetensors",
                   with_tensor(io::read_file(folder / "m/model.safetensors"), "lm_head.weight",
                               "BF16", fmt::format("[{},{}]", c.vocab_size, c.dim), bytes(c)));
    }
    const decode::ModelFiles base = decode::open_model(path, 0);
    train::export_model(folder / "out", base.folder, base.config, *base.source, {}, {}, DType::f32);
    const decode::ModelFiles out = decode::open_model((folder / "out").string(), 0);
    CHECK(out.warnings.empty());
    CHECK_FALSE(out.config.head.tied);
    CHECK(logits(decode::open_model((folder / "out").string(), 0), DType::f32) ==
          logits(decode::open_model(path, 0), DType::f32));
  }
}
