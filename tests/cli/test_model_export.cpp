#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "cli/probe.h"
#include "io/safetensors.h"

using namespace tandem::testing;

namespace {

/// Writes a model without adapters.
Outcome write(const std::string& model, const std::string& to, const Words& more) {
  return command(Words{"s2ft-adapter", "-m", model, "--to", "model", "-o", to} + more);
}

std::string greedy(const std::string& model, const Words& more) {
  const Outcome run = command(
      "pig-generate -p 'Once upon a time' -n 24 -q -s model.compute=f32 -s "
      "model.activations=compute --device cpu -m " +
      model + more);
  CAPTURE(run.err);
  REQUIRE(run.status == 0);
  return run.out;
}

std::string data_model(const char* name) {
  return tandem::test::source_dir() / "tests/data/models" / name;
}

/// Copies a tensor of a file.
template <class T>
std::vector<T> numbers(const tandem::io::Safetensors& file, const std::string& name) {
  const tandem::io::TensorView t = file.tensor(name);
  std::vector<T> values(t.bytes.size() / sizeof(T));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

}  // namespace

TEST_SUITE("cli/model-export") {
  TEST_CASE("a GGUF file in Q8_0 writes the text of weights that are quantized at load time") {
    const TemporaryFolder folder;
    const std::string path = (folder / "tiny.gguf").string();
    const Outcome written = write("tiny-2m", path, {"--weights", "int8", "--verify"});
    CAPTURE(written.err);
    REQUIRE(written.status == 0);
    CHECK(written.out.find("matrices in int8 in groups of 32\nverified file ") !=
          std::string::npos);
    const std::string text = greedy(path, {});
    CHECK(text == greedy("tiny-2m", {"-s", "model.weights=int8", "-s", "model.group=32"}));
    CHECK(text.size() > 24);
    CHECK(write("tiny-2m", path, {"--weights", "int4"}).err.find("exists already") !=
          std::string::npos);
    const Outcome again = write("tiny-2m", path, {"--weights", "int4", "--overwrite", "--verify"});
    CAPTURE(again.err);
    CHECK(again.status == 0);
    CHECK(greedy(path, {}).size() > 24);
  }

  TEST_CASE("a GGUF file in numbers writes the text of its folder") {
    const TemporaryFolder folder;
    const std::string path = (folder / "tiny.gguf").string();
    REQUIRE(write("tiny-2m", path, {"--verify"}).status == 0);
    CHECK(greedy(path, {}) == greedy("tiny-2m", {}));
    for (const char* name :
         {"llama-3.1", "mistral-window", "llama-linear", "qwen2-untied-sharded", "qwen3-tied"}) {
      const std::string odd = (folder / name).string() + ".gguf";
      const Outcome written = write(data_model(name), odd, {"--weights", "int4", "--verify"});
      CAPTURE(name);
      CAPTURE(written.err);
      CHECK(written.status == 0);
    }
  }

  TEST_CASE("a folder in compressed-tensors' format: its words give the base's weights") {
    const TemporaryFolder folder;
    const std::string path = (folder / "tiny").string();
    const Outcome written = write(
        "tiny-2m", path, {"--weights", "int4", "--group", "32", "-s", "output.scale_search=false"});
    CAPTURE(written.err);
    REQUIRE(written.status == 0);
    const Json config = Json::parse(file_text(path + "/config.json"))["quantization_config"];
    CHECK(config["quant_method"] == "compressed-tensors");
    CHECK(config["format"] == "pack-quantized");
    CHECK(config["ignore"] == Json{"lm_head"});
    CHECK(config["config_groups"]["group_0"]["weights"]["num_bits"] == 4);
    CHECK(std::filesystem::exists(path + "/tokenizer.json"));
    const auto file = tandem::io::Safetensors::open(path + "/model.safetensors"),
               base = tandem::io::Safetensors::open(tandem::test::source_dir() /
                                                    "recipes/models/tiny-2m/model.safetensors");
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    CHECK(file.find(name) == nullptr);
    CHECK(file.find("model.embed_tokens.weight")->dtype == "BF16");
    const auto shape = numbers<int64_t>(file, name + "_shape");
    REQUIRE(shape == std::vector<int64_t>{192, 512});
    const auto words = numbers<uint32_t>(file, name + "_packed"),
               zeros = numbers<uint32_t>(file, name + "_zero_point");
    const auto scales = numbers<tandem::f16>(file, name + "_scale");
    const auto weights = numbers<tandem::bf16>(base, name);
    REQUIRE(zeros.size() == 24 * 16);
    double worst = 0;
    for (size_t row = 0; row < 192; ++row)
      for (size_t k = 0; k < 512; ++k) {
        const uint32_t code = words[row * 64 + k / 8] >> 4 * (k % 8) & 15,
                       zero = zeros[row / 8 * 16 + k / 32] >> 4 * (row % 8) & 15;
        const double scale = tandem::to_float(scales[row * 16 + k / 32]),
                     value = scale * (static_cast<double>(code) - static_cast<double>(zero));
        worst = std::max(worst, std::abs(value - tandem::to_float(weights[row * 512 + k])) / scale);
      }
    CHECK(worst < 1.01);  // rounding of the weight and of the zero
    CHECK(worst > .4);
  }

  TEST_CASE("fp8 codes in a folder, times the scales of their rows, give the base's weights") {
    const TemporaryFolder folder;
    const std::string path = (folder / "tiny").string();
    const Outcome written = write("tiny-2m", path, {"--weights", "fp8", "--verify"});
    CAPTURE(written.err);
    REQUIRE(written.status == 0);
    CHECK(written.out.find("matrices in fp8, embedding bf16\nverified file ") != std::string::npos);
    const Json config = Json::parse(file_text(path + "/config.json"))["quantization_config"];
    CHECK(config["format"] == "float-quantized");
    const Json& scheme = config["config_groups"]["group_0"]["weights"];
    CHECK(scheme["type"] == "float");
    CHECK(scheme["strategy"] == "channel");
    CHECK(scheme["group_size"].is_null());
    const auto file = tandem::io::Safetensors::open(path + "/model.safetensors"),
               base = tandem::io::Safetensors::open(tandem::test::source_dir() /
                                                    "recipes/models/tiny-2m/model.safetensors");
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    REQUIRE(file.find(name) != nullptr);
    CHECK(file.find(name)->dtype == "F8_E4M3");
    CHECK(file.find(name + "_scale")->shape == tandem::io::Shape{192, 1});
    const std::string text = file_text(path + "/model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof header);
    const Json entry = Json::parse(text.substr(8, header))[name];
    const char* const codes = text.data() + 8 + header + entry["data_offsets"][0].get<size_t>();
    const auto scales = numbers<float>(file, name + "_scale");
    const auto weights = numbers<tandem::bf16>(base, name);
    double worst = 0;
    for (size_t row = 0; row < 192; ++row)
      for (size_t k = 0; k < 512; ++k) {
        const double want = tandem::to_float(weights[row * 512 + k]) / scales[row],
                     got = tandem::fp8_number(static_cast<uint8_t>(codes[row * 512 + k]));
        worst = std::max(worst, std::abs(got - want) / std::max(std::abs(want), 0x1p-6));
      }
    CHECK(worst <= 0.0626);
    CHECK(worst > 0.05);

    Json other = Json::parse(file_text(path + "/config.json"));
    other["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}};
    folder.write("tiny/config.json", other.dump());
    const Outcome refused =
        run_process(program("pig-generate"), {.arguments = {"-m", path, "-p", "a"}});
    CAPTURE(refused.err);
    CHECK(refused.status == 4);
    CHECK(refused.err.find("requires them:\n  model.layers.0.self_attn.q_proj.qweight: missing") !=
          std::string::npos);
    CHECK(refused.err.find("are those of compressed-tensors, fp8, but config.json says AWQ\n  ") !=
          std::string::npos);
  }

  TEST_CASE("bad input to an export is an error") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& model, const char* to, const Words& more,
                             const char* text) {
      const Outcome run = write(model, (folder / to).string(), more);
      CAPTURE(run.err);
      CHECK(run.status != 0);
      CHECK(run.err.find(text) != std::string::npos);
      CHECK_FALSE(std::filesystem::exists(folder / to));
    };
    refused("tiny-2m", "out", {"--weights", "int4", "--group", "128"},
            "groups of 128 weights do not divide the 192 inputs of "
            "model.layers.0.self_attn.q_proj.weight");
    refused("tiny-2m", "out", {"--weights", "int4", "--group", "48"},
            "output.group: expected 32, 64 or 128");
    refused("tiny-2m", "out.gguf", {"--weights", "int4", "--group", "64"},
            "blocks of GGUF have 32 weights, found 64");
    refused("tiny-2m", "out", {"--weights", "int4", "-s", "output.head=int8"},
            "the head is tied to the embedding");
    refused("tiny-2m", "out", {"--weights", "int4", "-s", "output.embedding=int8"},
            "compressed-tensors quantizes only linear layers");
    refused("tiny-2m", "out", {"--group", "64"}, "output.group: needs weights int8 or int4");
    refused("tiny-2m", "out.gguf", {"--weights", "fp8"}, "output.weights: GGUF has no fp8");
    refused("tiny-2m", "out", {"--weights", "fp8", "--group", "64"},
            "output.group: needs weights int8 or int4, found fp8");
    refused(data_model("gemma3"), "out.gguf", {"--weights", "int4"},
            "Gemma3ForCausalLM cannot be written as a GGUF file");
    REQUIRE(std::filesystem::create_directory(folder / "taken"));
    CHECK(write("tiny-2m", (folder / "taken").string(), {"--weights", "int4"}).status == 2);
  }
}
