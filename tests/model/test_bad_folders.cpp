// Folders whose config.json contradicts itself or the weights: each error says what was expected,
// what was found, where, and what to do.
#include <doctest/doctest.h>

#include "engine_runs.h"
#include "error_text.h"
#include "io/file.h"
#include "io/json.h"
#include "model/weights/checkpoint.h"

using namespace tandem;
using namespace tandem::model;
using io::Json;
using test::small_model;

namespace {

/// The configuration of a small model with changes.
Json config_of(const char* model, const Json& changes) {
  Json j = Json::parse(io::read_file(small_model(model) / "config.json"));
  j.update(changes);
  return j;
}

/// Checks message and hint of the error of such a configuration.
void check_config(const char* model, const Json& changes, const std::string& message,
                  const std::string& hint) {
  const auto read = [&] { parse_config(config_of(model, changes).dump(), "config.json"); };
  CHECK(test::input_error_text(read) == "config.json: " + message);
  CHECK(test::hint_text(read) == hint);
}

/// The hint where the weights of one small model have the config.json of another.
std::string hint_of(const char* config, const char* weights) {
  const ModelConfig c = load_config(small_model(config));
  const Checkpoint checkpoint = Checkpoint::open(small_model(weights));
  const auto check = [&] { check_checkpoint(c, checkpoint); };
  CHECK(test::kind_of(check) == ErrorKind::input);
  return test::hint_text(check);
}

constexpr const char* kSameModel = "take config.json and the weights from the same model";

}  // namespace

TEST_SUITE("model/bad_folders") {
  TEST_CASE("a pattern of layers has an item for each layer") {
    check_config("qwen2-layer-types", {{"layer_types", {"full_attention", "sliding_attention"}}},
                 "key 'layer_types': expected 5 items, one for each layer, found 2",
                 "take config.json from the model's publisher: 'layer_types' must have as many "
                 "items as 'num_hidden_layers' says");
    check_config("smollm3", {{"no_rope_layers", {1, 1, 1, 0, 1}}},
                 "key 'no_rope_layers': expected 4 items, one for each layer, found 5",
                 "take config.json from the model's publisher: 'no_rope_layers' must have as many "
                 "items as 'num_hidden_layers' says");
  }

  TEST_CASE("longrope names the factors that it lacks") {
    for (const char* key : {"short_factor", "long_factor"}) {
      Json scaling = config_of("phi3", Json::object())["rope_scaling"];
      scaling.erase(key);
      const Json j = config_of("phi3", {{"rope_scaling", scaling}});
      CHECK(test::input_error_text([&] { parse_config(j.dump(), "config.json"); }) ==
            fmt::format(
                "config.json: rope_scaling: key '{}' is missing: longrope needs 8 factors, one "
                "for each pair",
                key));
    }
  }

  TEST_CASE("a config.json of another family: the hint names the family of the tensors") {
    const auto named = [](const char* config, const std::string& weights) {
      return fmt::format("config.json names {}, but the tensors have the names of {}: {}", config,
                         weights, kSameModel);
    };
    CHECK(hint_of("llama-3.1", "phi4") == named("LlamaForCausalLM", "Phi3ForCausalLM"));
    CHECK(hint_of("llama-3.1", "gemma3") == named("LlamaForCausalLM", "Gemma3ForCausalLM"));
    CHECK(hint_of("mistral-plain", "olmo2") == named("MistralForCausalLM", "Olmo2ForCausalLM"));
    CHECK(hint_of("granite", "qwen2-tied") == named("GraniteForCausalLM", "Qwen2ForCausalLM"));
    CHECK(hint_of("qwen2-tied", "qwen3-tied") == named("Qwen2ForCausalLM", "Qwen3ForCausalLM"));
    CHECK(hint_of("phi3", "llama-3.1") ==
          named("Phi3ForCausalLM",
                "GraniteForCausalLM or LlamaForCausalLM or MistralForCausalLM or "
                "SmolLM3ForCausalLM"));
    // Another model of the same family.
    CHECK(hint_of("phi3", "phi4") == kSameModel);
    CHECK(hint_of("llama-odd", "llama-3.1") == kSameModel);
  }

  TEST_CASE("Gemma 2's norms under Llama's config.json are named") {
    const test::TemporaryFolder folder;
    const ModelConfig c = load_config(small_model("llama-odd"));
    const auto llama = io::Safetensors::open(small_model("llama-odd") / "model.safetensors");
    std::vector<io::TensorView> tensors;
    for (const io::TensorEntry& entry : llama.entries()) tensors.push_back(llama.tensor(entry));
    const io::TensorView norm = llama.tensor(*llama.find("model.norm.weight"));
    for (const char* name : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
      tensors.push_back(
          {fmt::format("model.layers.0.{}.weight", name), norm.dtype, norm.shape, norm.bytes});
    io::write_safetensors(folder / "model.safetensors", tensors);
    const auto check = [&] { check_checkpoint(c, Checkpoint::open(folder.path())); };
    CHECK(test::input_error_text(check) ==
          (folder / "model.safetensors").string() +
              ": 1 tensor is not as config.json requires it:\n"
              "  model.layers.0.post_feedforward_layernorm.weight: unexpected norm, not announced "
              "by config.json");
    CHECK(test::hint_text(check) == kSameModel);
  }
}
