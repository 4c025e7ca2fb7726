#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "model/spec/config.h"
#include "recipe/problems.h"

namespace tandem::model {
namespace {

struct NamedShape {
  const char* name;
  int dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, max_context;
  double rms_eps, rope_theta, rope_factor;  // factor 0 = no RoPE scaling, else llama3's, or yarn's
  bool tied;
  int bos_id, eos_id;
  const char* architecture = "LlamaForCausalLM";
  RopeScalingKind scaling = RopeScalingKind::llama3;
  const char* others = "{}";  // further keys, as JSON
};

/// What the sizes of Qwen3 have in common.
constexpr NamedShape qwen3(const char* name, int dim, int n_layers, int n_heads, int ffn_dim,
                           bool tied) {
  return {name,  dim,  n_layers, n_heads, 8,    128,    ffn_dim, 151936,
          40960, 1e-6, 1e6,      0,       tied, 151643, 151645,  "Qwen3ForCausalLM"};
}

/// A size of Gemma 3.
constexpr NamedShape gemma3(const char* name, int dim, int n_layers, int n_heads, int n_kv_heads,
                            int head_dim, int ffn_dim, const char* others) {
  return {name,   dim,   n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, 262208,
          131072, 1e-6,  1e6,      0,       true,       2,        1,       "Gemma3ForCausalLM",
          {},     others};
}
constexpr const char* kGemma3Small =
    R"({"vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512})";
constexpr const char* kGemma3Scaled =
    R"({"sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8}})";

// The published shapes, from the models' own config.json files.
constexpr std::array kShapes = {
    // name, dim, L, Hq, Hkv, d, ffn, vocab, context, eps, theta, scale, tied, bos, eos
    NamedShape{"llama-2-7b", 4096, 32, 32, 32, 128, 11008, 32000, 4096, 1e-5, 1e4, 0, false, 1, 2},
    NamedShape{"llama-2-7b-128k", 4096, 32, 32, 32, 128, 11008, 32000, 131072, 1e-5, 1e4, 32, false,
               1, 2, "LlamaForCausalLM", RopeScalingKind::yarn},
    NamedShape{"llama-2-13b", 5120, 40, 40, 40, 128, 13824, 32000, 4096, 1e-5, 1e4, 0, false, 1, 2},
    NamedShape{"codellama-34b", 8192, 48, 64, 8, 128, 22016, 32000, 16384, 1e-5, 1e6, 0, false, 1,
               2},
    NamedShape{"llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 1e-5, 5e5, 8, false,
               128000, 128001},
    NamedShape{"llama-3.1-70b", 8192, 80, 64, 8, 128, 28672, 128256, 131072, 1e-5, 5e5, 8, false,
               128000, 128001},
    NamedShape{"llama-3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 1e-5, 5e5, 32, true,
               128000, 128001},
    NamedShape{"llama-68m", 768, 2, 12, 12, 64, 3072, 32000, 2048, 1e-6, 1e4, 0, false, 0, 2},
    NamedShape{"smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152, 8192, 1e-5, 1e5, 0, true, 0, 0},
    NamedShape{"phi-4", 5120, 40, 40, 10, 128, 17920, 100352, 16384, 1e-5, 250000, 0, false, 100257,
               100265, "Phi3ForCausalLM"},
    gemma3("gemma-3-270m", 640, 18, 4, 1, 256, 2048, kGemma3Small),
    gemma3("gemma-3-1b", 1152, 26, 4, 1, 256, 6912, kGemma3Small),
    gemma3("gemma-3-4b", 2560, 34, 8, 4, 256, 10240, kGemma3Scaled),
    gemma3("gemma-3-12b", 3840, 48, 16, 8, 256, 15360, kGemma3Scaled),
    gemma3("gemma-3-27b", 5376, 62, 32, 16, 128, 21504,
           R"({"sliding_window": 1024, "query_pre_attn_scalar": 168,
               "rope_scaling": {"rope_type": "linear", "factor": 8}})"),
    qwen3("qwen3-0.6b", 1024, 28, 16, 3072, true),
    qwen3("qwen3-1.7b", 2048, 28, 16, 6144, true),
    qwen3("qwen3-4b", 2560, 36, 32, 9728, true),
    qwen3("qwen3-8b", 4096, 36, 32, 12288, false),
    qwen3("qwen3-14b", 5120, 40, 40, 17408, false),
    qwen3("qwen3-32b", 5120, 64, 64, 25600, false),
};

ModelConfig expand(const NamedShape& shape) {
  io::Json j = {{"architectures", {shape.architecture}},
                {"hidden_size", shape.dim},
                {"num_hidden_layers", shape.n_layers},
                {"num_attention_heads", shape.n_heads},
                {"num_key_value_heads", shape.n_kv_heads},
                {"head_dim", shape.head_dim},
                {"intermediate_size", shape.ffn_dim},
                {"vocab_size", shape.vocab_size},
                {"max_position_embeddings", shape.max_context},
                {"rms_norm_eps", shape.rms_eps},
                {"rope_theta", shape.rope_theta},
                {"tie_word_embeddings", shape.tied},
                {"bos_token_id", shape.bos_id},
                {"eos_token_id", shape.eos_id},
                {"torch_dtype", "bfloat16"}};
  const bool yarn = shape.scaling == RopeScalingKind::yarn;
  if (shape.rope_factor > 0)
    j["rope_scaling"] = {{"rope_type", yarn ? "yarn" : "llama3"},
                         {"factor", shape.rope_factor},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", yarn ? 4096 : 8192}};
  j.update(io::Json::parse(shape.others));
  ModelConfig c = parse_config(j.dump(), shape.name);
  c.name = shape.name;
  c.trained = false;
  return c;
}

}  // namespace

std::vector<std::string> synthetic_names() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ModelConfig synthetic_config(const std::string& name_or_path) {
  for (const NamedShape& shape : kShapes)
    if (name_or_path == shape.name) return expand(shape);
  std::error_code ignored;
  const std::filesystem::path path = name_or_path;
  if (std::filesystem::exists(path, ignored)) {
    const bool folder = std::filesystem::is_directory(path, ignored);
    ModelConfig config = folder
                             ? load_config(path)
                             : parse_config(io::read_file(path, size_t{16} << 20), path.string());
    if (!folder) config.name = name_or_path;
    config.trained = false;
    return config;
  }
  const std::vector<std::string> names = synthetic_names();
  const std::string near = recipe::did_you_mean(name_or_path, {names.begin(), names.end()});
  throw input_error("synthetic:" + name_or_path, "{} is not a known shape or file",
                    io::quote(name_or_path))
      .hint(fmt::format("{}{}known shapes: {}; or give the path of a config.json", near,
                        near.empty() ? "" : "  ", fmt::join(names, ", ")));
}

}  // namespace tandem::model
