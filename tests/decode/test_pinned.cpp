// Numbers that files and records of users rest on. A change of how models are described must not
// move them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>

#include "decode/model_files.h"
#include "engine_runs.h"
#include "model/spec/settings.h"
#include "pinned.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The first rows of every matrix of a model with random weights of seed 7, by checkpoint names.
std::string random_rows(const model::ModelConfig& config) {
  const auto source = model::synthetic_source(config, 7);
  std::string all;
  const auto add = [&](model::MatrixId id) {
    const io::Shape shape = model::shape_of(id.role, config);
    if (shape.size() != 2) return;
    std::vector<float> rows(static_cast<size_t>(2 * shape[1]));
    source->rows(id, 0, 2, DType::f32, rows.data());
    all += model::canonical_name(id);
    all.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
  };
  for (const model::Role weight : model::outer_roles(config)) add({weight, 0});
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const model::Role weight : model::layer_roles(config)) add({weight, layer});
  return hash_of(all);
}

/// Names, sizes and order of buffers: on the CPU, on a GPU with layers in host memory and with
/// divided channels.
std::string plans(const decode::ModelFiles& files) {
  std::string text = text_of(decode::Engine::plan(files, engine_spec({})));
  for (const model::WeightPlaces& places :
       {model::WeightPlaces{
            .device = {Device::Kind::cuda, 0}, .n_streamed = 1, .host_embedding = true},
        model::WeightPlaces{.device = {Device::Kind::cuda, 0},
        .n_streamed = 3,
        .by_channel = true,
        .set_channels = 16}}) {
    MemoryPlan plan;
    model::Weights::plan(files.config, DType::bf16, plan, places);
    text += text_of(plan);
  }
  return hash_of(text);
}

/// Rank 0 of two, which notes what room it asks for.
class NotedParts final : public Comm {
 public:
  std::vector<int> sets;

  int rank() const override { return 0; }
  int size() const override { return 2; }
  void sum(const Tensor& /*x*/, Stream /*stream*/) override {}
  Tensor parts(int set, int64_t /*rows*/, int64_t /*width*/) override {
    sets.push_back(set);
    return {};
  }
  double sum_of(double mine) override { return mine; }
  double of_rank0(double mine) override { return mine; }
  void gather(void* /*all*/, size_t /*part_bytes*/, Stream /*stream*/) override {}
  void gather_on_host(std::byte* /*all*/, size_t /*part_bytes*/) override {}
};

}  // namespace

TEST_SUITE("decode/pinned") {
  TEST_CASE("fingerprints, settings and random weights of each architecture stay as they are") {
    struct Pinned {
      std::string fingerprint, settings, random;
    };
    const std::map<std::string, Pinned> pinned = {
        {"llama-2", {"124dcb49c7790bc6", "a364200f0429f2f2", "527c77fa6655d800"}},
        {"llama-3.1", {"93a3837ac3dd72b5", "78c7b0cad7d32c58", "f9135bfc61642dcb"}},
        {"llama-3.2-tied", {"5957f639df7b0515", "4a5000d041816aaf", "d115ad1e2373900c"}},
        {"llama-linear", {"252af555b5a1030e", "bfbce465d2a0ea39", "effdcf6675ebe937"}},
        {"mistral-window", {"6ac2e0ea31202720", "98eb303a906d79e7", "69c8b22b1b0c9f39"}},
        {"qwen2-tied", {"24704710c889c272", "050995e8b63533ca", "aeede132df49d909"}},
        {"qwen2-untied-sharded", {"7c657e4f367593eb", "7f7ad9c7f2799be6", "e593488c614519af"}},
        {"qwen3-odd", {"1cb2683eca30de14", "e50bff3f9de9cb11", "9d8ae87cebb84b44"}},
        {"qwen3-tied", {"3f5007e6a7f2629e", "5efde127ee7ad8e6", "d115ad1e2373900c"}},
    };
    for (const auto& [name, expected] : pinned) {
      CAPTURE(name);
      const decode::ModelFiles files = decode::open_model(small_model(name).string(), 0);
      CHECK(files.fingerprint == expected.fingerprint);
      CHECK(hash_of(model::settings_text(model::settings_of(files.config))) == expected.settings);
      CHECK(random_rows(files.config) == expected.random);
    }
  }

  TEST_CASE("names, sizes and order of buffers stay as they are") {
    const std::map<std::string, std::string> pinned = {{"llama-odd", "e8dce380708c6103"},
                                                       {"qwen2-untied-sharded", "67e7a929c1e888e5"},
                                                       {"qwen3-odd", "cb4c2bb54c8941e9"}};
    for (const auto& [name, expected] : pinned) {
      CAPTURE(name);
      CHECK(plans(decode::open_model(small_model(name).string(), 0)) == expected);
    }
  }

  TEST_CASE("o and down take turns in room for sums over ranks") {
    decode::ModelFiles files = decode::open_model(small_model("llama-3.1").string(), 0);
    decode::take_shard(files, 0, 2);
    decode::EngineSpec spec = engine_spec({.compute = DType::bf16});
    const auto comm = std::make_shared<NotedParts>();
    spec.n_ranks = 2;
    spec.comm = comm;
    decode::Engine engine(std::move(files), spec);
    comm->sets.clear();
    prefill(engine, engine.cache().create(), random_ids(engine, 5, 3), 5);
    for (size_t i = 0; i < comm->sets.size(); ++i) CHECK(comm->sets[i] == static_cast<int>(i % 2));
    CHECK(comm->sets.size() == 2 * static_cast<size_t>(engine.config().n_layers));
  }
}
