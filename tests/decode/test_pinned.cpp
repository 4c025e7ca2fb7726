// Numbers that files and records of users rest on. A change of how models are described must not
// move them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>

#include "decode/model_files.h"
#include "engine_runs.h"
#include "model/settings.h"

using namespace tandem;
using namespace tandem::test;

namespace {

std::string hash_of(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

/// The first rows of every matrix of a model with random weights of seed 7, by checkpoint names.
std::string random_rows(const model::ModelConfig& config) {
  const auto source = model::synthetic_source(config, 7);
  std::string all;
  const auto add = [&](model::Weight weight, int layer) {
    const io::Shape shape = model::weight_shape(weight, config);
    if (shape.size() != 2) return;
    std::vector<float> rows(static_cast<size_t>(2 * shape[1]));
    source->rows(weight, layer, 0, 2, DType::f32, rows.data());
    all += model::checkpoint_name(weight, layer);
    all.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
  };
  for (const model::Weight weight : model::global_weights(config)) add(weight, 0);
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const model::Weight weight : model::layer_weights(config)) add(weight, layer);
  return hash_of(all);
}

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
}
