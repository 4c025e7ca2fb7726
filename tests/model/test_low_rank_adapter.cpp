#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/convert.h"
#include "error_text.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/adapters/fused_source.h"
#include "model/adapters/low_rank_config.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;
using test::TemporaryFolder;

namespace {

constexpr const char* kPrefix = "base_model.model.model.layers.";

ModelConfig config() {
  ModelConfig c;
  c.dim = 12;
  c.n_layers = 2;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.ffn_dim = 6;
  c.vocab_size = 16;
  c.max_context = 16;
  return c;
}

/// Factors of v of both layers, of rank 2, and of down of rank 2.
struct Factors {
  std::vector<std::vector<float>> values;
  std::vector<LowRankDelta> deltas;
  LowRankInfo info{.base = "some/base", .rank = 2, .alpha = 3, .dropout = 0.25};

  explicit Factors(bool dora = false) {
    info.dora = dora;
    info.targets = {Role::v, Role::down};
    values.reserve(16);
    for (int layer = 0; layer < 2; ++layer)
      for (const Role weight : info.targets) {
        const io::Shape shape = shape_of(weight, config());
        LowRankDelta d{.id = {weight, layer}, .rank = 2, .gamma = 1.5f};
        d.a = numbers(2 * shape[1]);
        d.b = numbers(2 * shape[0]);
        if (dora) d.magnitude = numbers(shape[0]);
        deltas.push_back(d);
      }
  }
  std::span<const float> numbers(int64_t n) {
    std::vector<float>& v = values.emplace_back();
    for (int64_t i = 0; i < n; ++i)
      v.push_back(0.25f * static_cast<float>((i * 7 + static_cast<int64_t>(values.size())) % 9) -
                  0.75f);
    return v;
  }
  void write(const std::filesystem::path& folder) const {
    write_low_rank_adapter(folder, info, deltas);
  }
};

/// The tensors of an adapter, to be changed and written again.
struct Parts {
  struct Part {
    DType dtype;
    io::Shape shape;
    std::string bytes;
  };
  std::map<std::string, Part> tensors;

  explicit Parts(const std::filesystem::path& folder) {
    const auto file = io::Safetensors::open(folder / "adapter_model.safetensors");
    CHECK(file.metadata().at("format") == "pt");
    for (const io::TensorEntry& entry : file.entries()) {
      const io::TensorView t = file.tensor(entry);
      tensors[entry.name] = {
          t.dtype, t.shape, {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}};
    }
  }
  void write(const std::filesystem::path& folder) const {
    std::vector<io::TensorView> views;
    for (const auto& [name, part] : tensors)
      views.push_back({name, part.dtype, part.shape, std::as_bytes(std::span(part.bytes))});
    io::write_safetensors(folder / "adapter_model.safetensors", views, {{"format", "pt"}});
  }
  template <class T, class Narrow>
  void narrow(DType dtype, const Narrow& to) {
    for (auto& [name, part] : tensors) {
      std::string narrowed;
      for (size_t i = 0; i < part.bytes.size(); i += sizeof(float)) {
        float x;
        std::memcpy(&x, part.bytes.data() + i, sizeof x);
        const T y = to(x);
        narrowed.append(reinterpret_cast<const char*>(&y), sizeof y);
      }
      part.dtype = dtype;
      part.bytes = narrowed;
    }
  }
};

std::vector<float> rows(const WeightSource& source, MatrixId id, DType dtype = DType::f32) {
  const io::Shape shape = shape_of(id.role, config());
  const auto n = static_cast<size_t>(shape[0] * shape[1]);
  std::vector<float> values(n);
  if (dtype == DType::f32) {
    source.rows(id, 0, shape[0], dtype, values.data());
  } else {
    std::vector<bf16> narrow(n);
    source.rows(id, 0, shape[0], dtype, narrow.data());
    std::ranges::transform(narrow, values.begin(), [](bf16 x) { return to_float(x); });
  }
  return values;
}

std::unique_ptr<WeightSource> adapted(const std::filesystem::path& folder) {
  std::vector<WeightedAdapter> one;
  one.push_back({LowRankAdapter::open(folder, config())});
  return fused_source(synthetic_source(config(), 1), std::move(one), config());
}

LowRankConfig parsed(const std::string& members) {
  return parse_low_rank_config(R"({"peft_type": "LORA", )" + members + "}", "here", config());
}

}  // namespace

TEST_SUITE("model/low_rank_adapter") {
  TEST_CASE("weights are those of the base and the product of the factors, rounded once") {
    for (const bool dora : {false, true}) {
      CAPTURE(dora);
      const TemporaryFolder folder;
      const Factors factors(dora);
      factors.write(folder / "a");
      const auto base = synthetic_source(config(), 1), source = adapted(folder / "a");
      for (const LowRankDelta& d : factors.deltas) {
        const std::vector<float> before = rows(*base, d.id), after = rows(*source, d.id),
                                 narrow = rows(*source, d.id, DType::bf16);
        const auto in = d.a.size() / 2;
        double worst = 0;
        for (size_t r = 0; r < d.b.size() / 2; ++r) {
          std::vector<double> want;
          double squares = 0;
          for (size_t c = 0; c < in; ++c) {
            want.push_back(before[r * in + c] + 1.5 * (double{d.b[2 * r]} * d.a[c] +
                                                       double{d.b[2 * r + 1]} * d.a[in + c]));
            squares += want.back() * want.back();
          }
          for (size_t c = 0; c < in; ++c) {
            if (dora) want[c] *= d.magnitude[r] / std::sqrt(squares);
            worst = std::max(worst, std::abs(after[r * in + c] - want[c]));
            CHECK(narrow[r * in + c] == to_float(to_bf16(after[r * in + c])));
          }
        }
        CHECK(worst < 1e-6);
      }
      for (const Role other : {Role::q, Role::o, Role::up, Role::head})
        CHECK(rows(*source, {other, 0}) == rows(*base, {other, 0}));
      CHECK(source->vector({Role::attn_pre, 1}) == base->vector({Role::attn_pre, 1}));
    }
  }

  TEST_CASE("values may be of 16 bits") {
    const TemporaryFolder folder;
    Factors().write(folder / "a");
    const std::vector<float> want = rows(*adapted(folder / "a"), {Role::down, 1});
    const Parts parts(folder / "a");
    Parts half = parts, brain = parts;
    half.narrow<f16>(DType::f16, [](float x) { return to_f16(x); });
    brain.narrow<bf16>(DType::bf16, [](float x) { return to_bf16(x); });
    for (const Parts* p : {&half, &brain}) {  // quarters, which all three hold
      p->write(folder / "a");
      CHECK(rows(*adapted(folder / "a"), {Role::down, 1}) == want);
    }
  }

  TEST_CASE("the configuration is written with all that PEFT would otherwise guess") {
    const TemporaryFolder folder;
    Factors().write(folder / "a");
    CHECK(io::read_file(folder / "a/adapter_config.json") == R"({
  "alpha_pattern": {},
  "base_model_name_or_path": "some/base",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_pattern": null,
  "layers_to_transform": null,
  "lora_alpha": 3.0,
  "lora_dropout": 0.25,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 2,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "v_proj",
    "down_proj"
  ],
  "task_type": "CAUSAL_LM",
  "use_dora": false,
  "use_rslora": false
}
)");
    const Parts parts(folder / "a");
    CHECK(parts.tensors.size() == 8);
    CHECK(parts.tensors.at(kPrefix + std::string("1.mlp.down_proj.lora_A.weight")).shape ==
          io::Shape{2, 6});
    CHECK(parts.tensors.at(kPrefix + std::string("0.self_attn.v_proj.lora_B.weight")).shape ==
          io::Shape{4, 2});
    Factors(true).write(folder / "d");
    CHECK(Parts(folder / "d")
              .tensors.at(kPrefix + std::string("0.mlp.down_proj.lora_magnitude_vector"))
              .shape == io::Shape{12});
  }

  TEST_CASE("ranks, scales and targets by PEFT's rules") {
    using Key = MatrixId;
    const LowRankConfig defaults = parsed(R"("bias": "none")");
    CHECK(defaults.modules.size() == 4);  // q and v, rank 8, alpha 8
    CHECK(defaults.modules.at(Key{Role::q, 1}).rank == 8);
    CHECK(defaults.modules.at(Key{Role::v, 0}).gamma == 1);
    CHECK_FALSE(defaults.magnitudes);
    const LowRankConfig patterns =
        parsed(R"("r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "mlp.down_proj"],
               "rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 16, "down_proj": 3},
               "alpha_pattern": {"model.*down_proj": 9.0}, "use_dora": true)");
    CHECK(patterns.modules.size() == 4);
    CHECK(patterns.modules.at(Key{Role::q, 1}).rank == 2);
    CHECK(patterns.modules.at(Key{Role::q, 1}).gamma == 4);
    CHECK(patterns.modules.at(Key{Role::q, 0}).rank == 16);
    CHECK(patterns.modules.at(Key{Role::down, 0}).rank == 3);
    CHECK(patterns.modules.at(Key{Role::down, 0}).gamma == 3);
    CHECK(patterns.magnitudes);
    // The first that fits holds, in the file's order, not in that of names.
    CHECK(parsed(R"("rank_pattern": {"q_proj": 2, ".*": 5, "a.*": 3})")
              .modules.at(Key{Role::v, 0})
              .rank == 5);
    const LowRankConfig expression = parsed(R"("r": 16, "lora_alpha": 8, "use_rslora": true,
               "target_modules": "model\\.layers\\.[01]\\.mlp\\.(up|gate)_proj")");
    CHECK(expression.modules.size() == 4);
    CHECK(expression.modules.at(Key{Role::up, 1}).gamma == 2);
    CHECK(parsed(R"("target_modules": "all-linear")").modules.size() == 14);
    CHECK(
        parsed(R"("target_modules": "all-linear", "exclude_modules": ["o_proj"])").modules.size() ==
        12);
    CHECK(parsed(R"("layers_to_transform": 1)").modules.size() == 2);
    CHECK(parsed(R"("layers_to_transform": [1])").modules.contains(Key{Role::q, 1}));
  }

  TEST_CASE("layers_pattern names the layers that layers_to_transform counts") {
    const auto layers = [](const std::string& members) {
      std::vector<int> found;
      for (const auto& [place, module] : parsed(members).modules) found.push_back(place.layer);
      return found;
    };
    const std::string q = R"("target_modules": ["q_proj"], )";
    CHECK(layers(q + R"("layers_to_transform": [1], "layers_pattern": "layers")") ==
          std::vector{1});
    CHECK(layers(q + R"("layers_to_transform": 0, "layers_pattern": ["h", "layers"])") ==
          std::vector{0});
    CHECK(layers(q + R"("layers_to_transform": [], "layers_pattern": [])") == std::vector{0, 1});
    // layers_to_transform does not limit a full path; the embedding is in no layer.
    CHECK(layers(R"("target_modules": ["model.layers.0.self_attn.q_proj", "v_proj"],
                    "layers_to_transform": [1])") == std::vector{0, 1});
    CHECK(parsed(R"("target_modules": ["q_proj", "embed_tokens"], "layers_to_transform": [1])")
              .modules.size() == 1);
    const auto other = [&] { layers(q + R"("layers_to_transform": [1], "layers_pattern": "h")"); };
    CHECK(test::input_error_text(other).find("names no matrix") != std::string::npos);
  }

  TEST_CASE("target names that the model lacks get a warning while another one fits") {
    const auto warnings = [](const std::string& members) { return parsed(members).warnings; };
    CHECK(warnings(R"("target_modules": ["q_proj", "v_proj"])").empty());
    const auto one = warnings(R"("target_modules": ["q_proj", "W_pack"])");
    REQUIRE(one.size() == 1);
    CHECK(one[0].find("'W_pack', which this model does not have") != std::string::npos);
    const auto two = warnings(R"("target_modules": ["fc1", "down_proj", "query_key_value"])");
    REQUIRE(two.size() == 1);
    CHECK(two[0].find("'fc1', 'query_key_value'") != std::string::npos);
    CHECK(warnings(R"("target_modules": ".*(q|W)_proj")").empty());
    const auto none = [&] { warnings(R"("target_modules": ["W_pack", "fc1"])"); };
    CHECK(test::input_error_text(none).find("names no matrix of this model: 'W_pack', 'fc1'") !=
          std::string::npos);
  }

  TEST_CASE("keys of PEFT that change no number are ignored") {
    for (const char* key :
         {R"("bias": "all")", R"("bias": "lora_only")", R"("fan_in_fan_out": true)",
          R"("init_lora_weights": "gaussian")", R"("init_lora_weights": "eva")",
          R"("init_lora_weights": "orthogonal")", R"("init_lora_weights": false)",
          R"("megatron_config": {"a": 1})", R"("loftq_config": {"loftq_bits": 4})",
          R"("eva_config": {"rho": 2.0})", R"("corda_config": {"a": 1})", R"("unheard_of": 7)",
          R"("use_qalora": false)", R"("qalora_group_size": 16)", R"("target_parameters": [])"}) {
      CAPTURE(key);
      CHECK(parsed(key).modules.size() == 4);
    }
  }

  TEST_CASE("settings that change numbers otherwise are refused by name, with what to do") {
    const auto refuses = [](const std::string& members, const char* message,
                            const char* hint = "merge the adapter") {
      const auto parse = [&] { parsed(members); };
      const std::string text = test::input_error_text(parse);
      CAPTURE(text);
      CHECK(text.find(message) != std::string::npos);
      CHECK(test::hint_text(parse).find(hint) != std::string::npos);
    };
    const char* const convert = "path_initial_model_for_weight_conversion";
    refuses(R"("init_lora_weights": "pissa_niter_4")", "'init_lora_weights' is 'pissa_niter_4'",
            convert);
    refuses(R"("init_lora_weights": "olora")", "'init_lora_weights' is 'olora'", convert);
    refuses(R"("init_lora_weights": "lora_ga")", "'init_lora_weights' is 'lora_ga'", convert);
    refuses(R"("init_lora_weights": "newest")", "'init_lora_weights' is 'newest'");
    refuses(R"("kasa_config": {"beta": 1})", "'kasa_config'");
    refuses(R"("use_qalora": true)", "'use_qalora'");
    refuses(R"("target_parameters": ["mlp.up_proj.weight"])", "'target_parameters'");
    refuses(R"("layer_replication": [[0, 2]])", "'layer_replication'");
    refuses(R"("alora_invocation_tokens": [1])", "'alora_invocation_tokens'");
    refuses(R"("target_modules": "nothing")", "names no matrix", "model.path");
    refuses(R"("target_modules": ".*q_proj", "layers_to_transform": [1])", "'layers_to_transform'",
            "remove one");
    refuses(R"("target_modules": ["q_proj", "embed_tokens"], "use_dora": true)", "'use_dora'");
    refuses(R"("trainable_token_indices": {"q_proj": [1]})", "names 'q_proj'");
    refuses(R"("rank_pattern": {"q_proj": 2.5})", "expected an integer");
    refuses(R"("rank_pattern": {"q_proj": 0})", "expected a positive number");
    const auto type = [] { parse_low_rank_config(R"({"peft_type": "LOHA"})", "here", config()); };
    CHECK(test::input_error_text(type).find("of type 'LOHA', expected LORA") != std::string::npos);
    const auto token = [] { parsed(R"("trainable_token_indices": [16])"); };
    CHECK(test::input_error_text(token).find("trainable_token_indices") != std::string::npos);
  }

  TEST_CASE("what is wrong with its folder") {
    const auto expect = [](const std::filesystem::path& folder, const char* message,
                           const char* hint) {
      const auto open = [&] { LowRankAdapter::open(folder, config()); };
      const std::string text = test::input_error_text(open);
      CAPTURE(text);
      CHECK(text.find(message) != std::string::npos);
      CHECK(test::hint_text(open).find(hint) != std::string::npos);
    };
    const TemporaryFolder folder;
    const auto fresh = [&] {
      std::filesystem::remove_all(folder / "a");
      Factors().write(folder / "a");
      return Parts(folder / "a");
    };
    fresh();
    std::filesystem::rename(folder / "a/adapter_model.safetensors", folder / "a/adapter_model.bin");
    CHECK(LowRankAdapter::is_at(folder / "a"));
    expect(folder / "a", "is a pickle file", "safe_serialization=True");
    fresh();
    std::filesystem::remove(folder / "a/adapter_config.json");
    expect(folder / "a", "adapter_config.json: is missing", "save_pretrained");
    const std::string b = kPrefix + std::string("1.mlp.down_proj.lora_B.weight");
    Parts parts = fresh();
    parts.tensors.erase(b);
    parts.write(folder / "a");
    expect(folder / "a", "lora_B.weight' is missing", "base model");
    parts = fresh();
    parts.tensors[b].shape = {2, 12};
    parts.write(folder / "a");
    expect(folder / "a", "is 'F32' [2,12], expected F32, BF16 or F16 [12,2]", "base model");
    parts = fresh();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(parts.tensors[b].bytes.data() + 20, &nan, sizeof nan);
    parts.write(folder / "a");
    expect(folder / "a", "value 5 of", "diverged");
  }
}
