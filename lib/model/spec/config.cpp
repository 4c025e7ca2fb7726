#include "model/spec/config.h"

#include <algorithm>

#include "base/convert.h"
#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "model/families/family.h"
#include "model/spec/config_rope.h"
#include "model/spec/quantization.h"
#include "model/weights/model_folder.h"

namespace tandem::model {
namespace {

using io::Json;

// Largest values accepted, each well above any published model. Together they keep a product of any
// two sizes and a layer count below 2^63: vocab * dim * layers <= 2^24 * 2^20 * 2^12 = 2^56.
constexpr int64_t kMaxDim = 1 << 20;  // dim, ffn_dim, n_heads * head_dim
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr const char* kWrongValue = "correct the file, or take it from the original model folder";
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

/// By the name of an architecture or its model_type: Qwen3MoeForCausalLM, qwen2_moe, mixtral.
bool is_mixture(std::string_view name) {
  for (const char* part : {"Moe", "_moe", "Mixtral", "mixtral"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

const Family& parse_family(const Json& j, const std::string& where) {
  const Json* names = io::find_array(j, "architectures", where);
  const bool by_name = names != nullptr && !names->empty();
  const std::string found = by_name ? io::as_string((*names)[0], "key 'architectures'", where)
                                    : io::find_string(j, "model_type", where).value_or("");
  if (found.empty())
    throw input_error(
        where, "keys 'architectures' and 'model_type' are missing: the architecture is unknown")
        .hint("give the config.json of a model folder");
  std::vector<std::string> known;
  for (const Family* family : families()) {
    if (found == (by_name ? family->architecture : family->model_type)) return *family;
    known.push_back(std::string(family->architecture));
    if (!family->members.empty()) known.back() += fmt::format(" ({})", family->members);
  }
  throw input_error(where, "architecture {} {} not supported", io::quote(found),
                    is_mixture(found) ? "is a mixture of experts (MoE), which is" : "is")
      .hint(fmt::format("supported: {}", fmt::join(known, ", ")));
}

/// Features that would change the result and that the forward does not have.
void refuse_unsupported(const Json& j, const std::string& where) {
  if (const Json* q = io::find_object(j, "quantization_config", where))
    parse_quantization(*q, where);
}

Gate parse_gate(const Json& j, const std::string& where, const GateKey& by) {
  constexpr std::pair<std::string_view, Gate> kNames[] = {
      {"silu", Gate::silu},          {"swish", Gate::silu},
      {"gelu", Gate::gelu},          {"gelu_pytorch_tanh", Gate::gelu_tanh},
      {"gelu_new", Gate::gelu_tanh}, {"relu", Gate::relu}};
  const std::string act = io::find_string(j, by.key, where).value_or(std::string(by.absent));
  for (const auto& [name, gate] : kNames)
    if (act == name) return gate;
  throw input_error(where,
                    "key '{}': expected 'silu', 'gelu', 'gelu_pytorch_tanh', 'gelu_new' or 'relu', "
                    "found {}",
                    by.key, io::quote(act))
      .hint("choose another model: other activations are not supported");
}

/// absent   for a file without the key; 0: it must have it
int get_size(const Json& j, const char* key, const std::string& where, int64_t max,
             int absent = 0) {
  const bool given = absent == 0 || j.contains(key);
  return given ? static_cast<int>(io::get_int(j, key, where, 1, max)) : absent;
}

int parse_head_dim(const Json& j, const std::string& where, const ModelConfig& c, int usual) {
  const int64_t most = kMaxDim / c.n_heads;
  const auto given = io::find_int(j, "head_dim", where, 2, most);
  if (!given && usual > most)
    throw input_error(where,
                      "key 'head_dim' is missing, and 'num_attention_heads' {} times {} exceeds {}",
                      c.n_heads, usual, kMaxDim);
  if (!given && usual == 0 && c.dim % c.n_heads != 0)
    throw input_error(where,
                      "key 'head_dim' is missing, and 'hidden_size' {} is not a multiple of "
                      "'num_attention_heads' {}",
                      c.dim, c.n_heads);
  const int head_dim = static_cast<int>(given.value_or(usual > 0 ? usual : c.dim / c.n_heads));
  if (head_dim % 2 != 0)
    throw input_error(where, "head dimension {} is odd, expected an even number for RoPE",
                      head_dim);
  return head_dim;
}

/// A file without the key has the family's default; null stands for n_heads, as in transformers.
/// usual    the family's default; 0: n_heads
int parse_kv_heads(const Json& j, const std::string& where, int n_heads, int usual) {
  constexpr const char* kKey = "num_key_value_heads";
  const bool absent = !j.contains(kKey) && usual > 0;
  const int64_t n =
      absent ? usual : io::find_int(j, kKey, where, 1, n_heads).value_or(int64_t{n_heads});
  if (n_heads % n == 0) return static_cast<int>(n);
  if (absent)
    throw input_error(where,
                      "key '{}' is missing, and 'num_attention_heads' {} is not a multiple of its "
                      "default {}",
                      kKey, n_heads, n);
  throw input_error(where, "'num_attention_heads' {} is not a multiple of '{}' {}", n_heads, kKey,
                    n);
}

void parse_sizes(const Json& j, const std::string& where, const Family& family, ModelConfig& c) {
  c.dim = get_size(j, "hidden_size", where, kMaxDim);
  c.n_layers = get_size(j, "num_hidden_layers", where, kMaxLayers);
  c.n_heads = get_size(j, "num_attention_heads", where, kMaxHeads, family.n_heads);
  c.ffn_dim = get_size(j, "intermediate_size", where, kMaxDim);
  c.vocab_size = get_size(j, "vocab_size", where, kMaxVocab, family.vocab_size);
  c.stated_context =
      static_cast<int>(io::find_int(j, "max_position_embeddings", where, 1, kMaxContext)
                           .value_or(family.max_context));
  c.n_kv_heads = parse_kv_heads(j, where, c.n_heads, family.n_kv_heads);
  c.head_dim = parse_head_dim(j, where, c, family.head_dim);

  c.rms_eps = io::find_double(j, "rms_norm_eps", where).value_or(family.rms_eps);
  if (c.rms_eps < 0.0 || c.rms_eps > 1.0)
    throw input_error(where, "key 'rms_norm_eps': expected a number from 0 to 1, found {}",
                      c.rms_eps);
}

/// The context as vLLM derives it: linear scaling extends what the file states, YaRN its original
/// context. Published files of YaRN state either length, hence the longer one.
int scaled_context(const ModelConfig& c) {
  const RopeScaling& s = c.ropes.front().scaling;
  const bool yarn = s.kind == RopeScalingKind::yarn;
  if (!yarn && s.kind != RopeScalingKind::linear) return c.stated_context;
  const double scaled = s.factor * (yarn ? s.original_context : c.stated_context);
  return std::max(c.stated_context,
                  static_cast<int>(std::min(scaled, static_cast<double>(kMaxContext))));
}

/// One token id or a list of them; -1 and null mean none. Ids beyond the embedding never occur, and
/// are left out.
std::vector<int> parse_ids(const Json& j, const char* key, const std::string& where,
                           int vocab_size) {
  std::vector<int> ids;
  const auto add = [&](const Json& value) {
    const auto id = io::as_int(value, fmt::format("key '{}'", key), where, -1, kMaxVocab - 1);
    if (id >= 0 && id < vocab_size && std::ranges::find(ids, id) == ids.end())
      ids.push_back(static_cast<int>(id));
  };
  const auto it = j.find(key);
  if (it == j.end() || it->is_null()) return ids;
  if (!it->is_array()) {
    add(*it);
    return ids;
  }
  constexpr size_t kMaxIds = 1024;
  if (it->size() > kMaxIds)
    throw input_error(where, "key '{}': expected at most {} ids, found {}", key, kMaxIds,
                      it->size());
  for (const Json& value : *it) add(value);
  return ids;
}

DType parse_dtype(const Json& j, const std::string& where) {
  const char* key = j.contains("dtype") ? "dtype" : "torch_dtype";
  const std::string name = io::find_string(j, key, where).value_or("float32");
  if (name == "float32" || name == "auto") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw input_error(where, "key '{}': expected 'bfloat16', 'float16' or 'float32', found {}", key,
                    io::quote(name))
      .hint("use the original checkpoint in bf16, f16 or f32");
}

/// The configuration of a model's text part, with what the file says of the whole.
Json text_config(const Json& j, const std::string& where, const Family& family) {
  Json text = io::get_object(j, "text_config", where);
  text["architectures"] = {family.text->architecture};
  for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype",
                          "torch_dtype", "quantization_config"})
    if (!text.contains(key) && j.contains(key)) text[key] = j[key];
  return text;
}

ModelConfig read_config(const Json& j, const std::string& where) {
  if (!j.is_object()) throw input_error(where, "expected an object, found {}", io::describe(j));
  ModelConfig c;
  const Family& family = parse_family(j, where);
  if (family.text != nullptr)
    return read_config(text_config(j, where, family), where + ": text_config");
  c.architecture = family.architecture;
  refuse_unsupported(j, where);
  parse_sizes(j, where, family, c);
  c.kinds.front().ffn.gate = parse_gate(j, where, family.gate);
  read_layers(family, j, where, c);
  if (const std::string_view part = first_unserved(c); !part.empty())
    throw input_error(where, "this model has {}, which no code here computes", part)
        .hint("choose another model");
  c.head.tied = io::find_bool(j, "tie_word_embeddings", where).value_or(family.tied);
  c.ropes = parse_ropes(
      j, where, {c.stated_context, family.theta, family.sliding_theta, c.head_dim, family.partial});
  c.max_context = family.scaled_context ? c.stated_context : scaled_context(c);
  const std::vector<int> bos = parse_ids(j, "bos_token_id", where, c.vocab_size);
  if (!bos.empty()) c.bos_id = bos.front();
  c.eos_ids = parse_ids(j, "eos_token_id", where, c.vocab_size);
  c.dtype = parse_dtype(j, where);
  return c;
}

}  // namespace

float EmbeddingSpec::scale_in(DType type) const {
  if (!rounded || type == DType::f32) return scale;
  return type == DType::bf16 ? to_float(to_bf16(scale)) : to_float(to_f16(scale));
}

std::vector<uint8_t> ModelConfig::layers_from(int first) const {
  std::vector<uint8_t> layers(static_cast<size_t>(n_layers));
  std::fill(layers.begin() + std::min(first, n_layers), layers.end(), uint8_t{1});
  return layers;
}

void ModelConfig::slide(int window, const std::vector<uint8_t>& slides) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < n_layers; ++i) {
    layers.push_back(layer(i));
    if (slides[static_cast<size_t>(i)] != 0) layers.back().attention.window = window;
  }
  set_layers(layers);
}

void ModelConfig::set_layers(const std::vector<LayerSpec>& layers) {
  kinds.clear();
  kind_of.clear();
  for (const LayerSpec& spec : layers) {
    const auto at = std::ranges::find(kinds, spec);
    kind_of.push_back(static_cast<uint8_t>(at - kinds.begin()));
    if (at == kinds.end()) kinds.push_back(spec);
  }
}

ModelConfig::Sliding ModelConfig::sliding() const {
  for (int i = 0; i < n_layers; ++i)
    if (const int window = layer(i).attention.window; window > 0) return {window, i};
  return {};
}

ModelConfig parse_config(std::string_view text, const std::string& where) {
  const Json j = io::parse_json(text, where);
  return with_remedy(kWrongValue, [&] { return read_config(j, where); });
}

std::vector<int> parse_generation_eos(std::string_view text, const std::string& where,
                                      int vocab_size) {
  const Json j = io::parse_json(text, where);
  return with_remedy(kWrongValue, [&] {
    if (!j.is_object()) throw input_error(where, "expected an object, found {}", io::describe(j));
    return parse_ids(j, "eos_token_id", where, vocab_size);
  });
}

ModelConfig load_config(const std::filesystem::path& folder) {
  require_model_folder(folder);
  const std::filesystem::path path = folder / "config.json";
  if (!std::filesystem::exists(path)) {
    refuse_foreign_weights(folder);
    throw input_error(folder.string(), "config.json is missing: not a Hugging Face model folder")
        .hint("give the folder that holds config.json, tokenizer and safetensors files");
  }
  ModelConfig config = parse_config(io::read_regular_file(path, kMaxConfigBytes), path.string());
  config.name = folder_name(folder);

  const std::filesystem::path generation = folder / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    auto eos = parse_generation_eos(io::read_regular_file(generation, kMaxConfigBytes),
                                    generation.string(), config.vocab_size);
    if (!eos.empty()) config.eos_ids = std::move(eos);
  }
  return config;
}

}  // namespace tandem::model
