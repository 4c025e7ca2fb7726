#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "model/gguf/gguf_arch.h"
#include "model/gguf/gguf_model.h"

namespace tandem::model {
namespace {

using io::Json;

constexpr const char* kConvertAgain = "convert the model again with a current llama.cpp";
constexpr const char* kOtherModel = "choose another model, or its original Hugging Face folder";
constexpr const char* kConvertOrChoose =
    "convert the model again with a current llama.cpp, or choose another model";
constexpr int64_t kLargestValue = int64_t{1} << 31;
constexpr int64_t kLargestId = (int64_t{1} << 24) - 1;

/// Reads keys of one architecture, "llama.block_count".
class GgufKeys {
 public:
  GgufKeys(const io::Gguf& file, const GgufArch& arch) : file_(file), arch_(arch) {}

  std::string name(std::string_view key) const { return fmt::format("{}.{}", arch_.name, key); }

  std::optional<int64_t> find_int(std::string_view key) const {
    const std::string whole = name(key);
    if (!file_.is_array(whole)) return file_.find_int(whole, 0, kLargestValue);
    const std::vector<int64_t> by_layer = file_.ints(whole);
    if (by_layer.empty() ||
        std::ranges::any_of(by_layer, [&](int64_t n) { return n != by_layer.front(); }))
      throw input_error(file_.where(), "key {} differs between layers, which is not supported",
                        io::quote(whole));
    return by_layer.front();
  }
  int64_t get_int(std::string_view key) const {
    const auto found = find_int(key);
    if (!found)
      throw input_error(file_.where(), "key {} is missing", io::quote(name(key)))
          .hint(kConvertAgain);
    return *found;
  }
  std::optional<double> find_double(std::string_view key) const {
    return file_.find_double(name(key));
  }
  std::optional<std::string_view> find_string(std::string_view key) const {
    return file_.find_string(name(key));
  }

 private:
  const io::Gguf& file_;
  const GgufArch& arch_;
};

/// The numbers of a small f32 tensor.
std::vector<float> small_vector(const io::Gguf& file, std::string_view name) {
  std::vector<float> values;
  const io::GgufTensor* const t = file.find(name);
  if (t == nullptr) return values;
  if (t->type != io::GgufType::f32 || t->shape.size() != 1)
    throw input_error(file.where(), "tensor {}: expected a vector in F32, found {}",
                      io::quote(name), io::gguf_type_name(static_cast<uint32_t>(t->type)));
  values.resize(static_cast<size_t>(t->shape[0]));
  file.read(*t, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

/// RoPE scaling by factors: Phi's longrope, or Llama 3's, which converters write as a tensor.
std::optional<Json> scaling_by_factors(const io::Gguf& file, const GgufKeys& keys,
                                       int64_t context) {
  const std::vector<float> same = small_vector(file, "rope_freqs.weight");
  if (!same.empty())
    return Json{{"rope_type", "longrope"}, {"short_factor", same},
                {"long_factor", same},     {"original_max_position_embeddings", context},
                {"factor", 1.0},           {"attention_factor", 1.0}};
  const std::vector<float> of_long = small_vector(file, "rope_factors_long.weight"),
                           of_short = small_vector(file, "rope_factors_short.weight");
  if (of_long.empty() && of_short.empty()) return std::nullopt;
  Json j = {{"rope_type", "longrope"}, {"short_factor", of_short}, {"long_factor", of_long}};
  j["original_max_position_embeddings"] = keys.get_int("rope.scaling.original_context_length");
  j["attention_factor"] = keys.find_double("rope.scaling.attn_factor").value_or(1);
  return j;
}

std::optional<Json> rope_scaling(const io::Gguf& file, const GgufKeys& keys, int64_t context) {
  if (auto by_factors = scaling_by_factors(file, keys, context)) return by_factors;
  auto factor = keys.find_double("rope.scaling.factor");
  if (!factor) factor = keys.find_double("rope.scale_linear");
  const std::string type(keys.find_string("rope.scaling.type").value_or("linear"));
  if (type != "none" && type != "linear" && type != "yarn")
    throw input_error(file.where(), "RoPE scaling {} is not supported", io::quote(type))
        .hint("supported: none, linear, yarn, and factors in tensors");
  if (type == "none" || factor.value_or(0) == 0 || *factor == 1) return std::nullopt;
  Json j = {{"rope_type", type}, {"factor", *factor}};
  if (type == "linear") return j;
  for (const auto& [key, usual] : {std::pair{"rope.scaling.yarn_log_multiplier", 0.0},
                                   {"rope.scaling.attn_factor", 1.0},
                                   {"rope.scaling.yarn_attn_factor", 1.0},
                                   {"rope.scaling.yarn_ext_factor", 1.0}})
    if (const double found = keys.find_double(key).value_or(usual); found != usual)
      throw input_error(file.where(), "key {}: only {} is supported, found {}",
                        io::quote(keys.name(key)), usual, found)
          .hint(kOtherModel);
  j["original_max_position_embeddings"] =
      keys.find_int("rope.scaling.original_context_length").value_or(context);
  for (const auto& [key, ours] : {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                  {"rope.scaling.yarn_beta_slow", "beta_slow"}})
    if (const auto value = keys.find_double(key)) j[ours] = *value;
  return j;
}

/// Ids that end a text: EOS, end of a turn, end of a message.
std::vector<int64_t> end_ids(const io::Gguf& file) {
  std::vector<int64_t> ids;
  const auto add = [&](int64_t id) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"})
    if (const auto id = file.find_int(key, 0, kLargestId)) add(*id);
  if (ids.empty() && file.find_string("tokenizer.ggml.model") == "llama") add(2);
  constexpr std::array kEnds = {"<|eot_id|>",    "<|im_end|>",      "<|end|>",   "<end_of_turn>",
                                "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"};
  const std::vector<std::string_view> tokens = file.strings("tokenizer.ggml.tokens");
  for (size_t id = 0; id < tokens.size(); ++id)
    if (std::ranges::find(kEnds, tokens[id]) != kEnds.end()) add(static_cast<int64_t>(id));
  return ids;
}

const GgufArch& arch_in(const io::Gguf& file) {
  const auto type = file.find_string("general.type").value_or("model");
  if (type != "model")
    throw input_error(file.where(), "holds {}, expected a model", io::quote(type))
        .hint("give the file that holds the model's weights");
  const auto name = file.find_string("general.architecture");
  if (!name)
    throw input_error(file.where(), "key 'general.architecture' is missing").hint(kConvertAgain);
  if (const GgufArch* arch = find_gguf_arch(*name)) return *arch;
  std::vector<std::string_view> known;
  for (const GgufArch& arch : gguf_archs()) known.push_back(arch.name);
  throw input_error(file.where(), "architecture {} is not supported in GGUF files",
                    io::quote(*name))
      .hint(fmt::format("supported: {}", fmt::join(known, ", ")));
}

/// Adds keys of config.json that only one architecture has.
void add_own_keys(const io::Gguf& file, const GgufArch& arch, const GgufKeys& keys, Json& j) {
  if (const auto window = keys.find_int("attention.sliding_window"); window.value_or(0) > 0) {
    if (arch.name == "olmo2")
      throw input_error(file.where(), "holds OLMo 3, which is not supported").hint(kOtherModel);
    if (arch.name == "llama") j["architectures"] = {"MistralForCausalLM"};
    j["sliding_window"] = *window;
  }
  if (arch.name == "granite")
    for (const auto& [key, ours] : {std::pair{"attention.scale", "attention_multiplier"},
                                    {"embedding_scale", "embedding_multiplier"},
                                    {"residual_scale", "residual_multiplier"},
                                    {"logit_scale", "logits_scaling"}})
      if (const auto value = keys.find_double(key)) j[ours] = *value;
  if (arch.name == "granite" && !j.contains("attention_multiplier"))
    j["attention_multiplier"] = 1 / std::sqrt(j["head_dim"].get<double>());
  if (arch.name != "gemma3") return;
  keys.get_int("attention.sliding_window");  // has to be there
  // Only the largest size scales scores by another number than that of a head.
  constexpr int kLargestLayers = 62;
  const int64_t heads = j["num_attention_heads"];
  j["query_pre_attn_scalar"] = j["num_hidden_layers"] == kLargestLayers
                                   ? j["hidden_size"].get<int64_t>() / std::max<int64_t>(1, heads)
                                   : j["head_dim"].get<int64_t>();
  if (const auto every = keys.find_int("attention.sliding_window_pattern"))
    j["sliding_window_pattern"] = *every;
  if (const auto theta = keys.find_double("rope.freq_base_swa")) j["rope_local_base_freq"] = *theta;
}

struct KeyName {
  std::string_view ours, theirs;  // in config.json; in a GGUF file, after "llama."
};
constexpr std::array kKeyNames = {
    KeyName{"hidden_size", "embedding_length"},
    KeyName{"num_hidden_layers", "block_count"},
    KeyName{"num_attention_heads", "attention.head_count"},
    KeyName{"num_key_value_heads", "attention.head_count_kv"},
    KeyName{"intermediate_size", "feed_forward_length"},
    KeyName{"max_position_embeddings", "context_length"},
    KeyName{"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    KeyName{"sliding_window", "attention.sliding_window"},
    KeyName{"sliding_window_pattern", "attention.sliding_window_pattern"},
    KeyName{"attention_multiplier", "attention.scale"},
    KeyName{"embedding_multiplier", "embedding_scale"},
    KeyName{"residual_multiplier", "residual_scale"},
    KeyName{"logits_scaling", "logit_scale"},
    KeyName{"rope_theta", "rope.freq_base"},
    KeyName{"rope_local_base_freq", "rope.freq_base_swa"},
    KeyName{"attention_factor", "rope.scaling.attn_factor"},
    KeyName{"beta_fast", "rope.scaling.yarn_beta_fast"},
    KeyName{"beta_slow", "rope.scaling.yarn_beta_slow"}};

/// Returns the message of an error about a config.json with the names that the values have in the
/// GGUF file.
std::string message_of(const Error& e, const io::Gguf& file, const GgufKeys& keys) {
  std::string text = e.message();
  const auto by_key = [&](std::string_view ours, std::string_view theirs) {
    text = io::replace_all(text, fmt::format("'{}'", ours), fmt::format("'{}'", keys.name(theirs)));
  };
  const auto by_source = [&](std::string_view ours, const std::string& source) {
    text = io::replace_all(text, fmt::format("key '{}'", ours), source);
  };
  const auto has = [&](std::string_view key) { return file.has(keys.name(key)); };
  for (const KeyName& name : kKeyNames) by_key(name.ours, name.theirs);
  by_key("factor", has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear");
  constexpr const char* kOriginal = "rope.scaling.original_context_length";
  by_key("original_max_position_embeddings", has(kOriginal) ? kOriginal : "context_length");
  const std::string ratio =
      fmt::format("'{}' / '{}'", keys.name("embedding_length"), keys.name("attention.head_count"));
  const std::string head = keys.name("attention.key_length");
  const bool given = file.has(head);
  by_source("head_dim", given ? fmt::format("key '{}'", head) : ratio);
  text = io::replace_all(text, "head dimension", given ? fmt::format("'{}'", head) : ratio);
  by_source("query_pre_attn_scalar", ratio);
  by_source("vocab_size", "rows of 'token_embd.weight'");
  const bool of_llama = file.find("rope_freqs.weight") != nullptr;
  by_source("short_factor",
            fmt::format("tensor '{}.weight'", of_llama ? "rope_freqs" : "rope_factors_short"));
  by_source("long_factor",
            fmt::format("tensor '{}.weight'", of_llama ? "rope_freqs" : "rope_factors_long"));
  return text;
}

/// errors   kind input: as parse_config, with the names of the GGUF file
ModelConfig parse_values(const Json& j, const io::Gguf& file, const GgufKeys& keys) {
  try {
    return parse_config(j.dump(), file.where());
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::input) throw;
    throw input_error(file.where(), "{}", message_of(e, file, keys)).hint(kConvertOrChoose);
  }
}

}  // namespace

ModelConfig gguf_config(const io::Gguf& file) {
  const GgufArch& arch = arch_in(file);
  const GgufKeys keys(file, arch);
  if (keys.find_int("expert_count").value_or(0) > 0)
    throw input_error(file.where(), "holds a mixture of experts (MoE), which is not supported")
        .hint(kOtherModel);
  const io::GgufTensor* const embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    throw input_error(file.where(), "tensor 'token_embd.weight' is missing or no matrix")
        .hint(kConvertAgain);
  const auto vocabulary = keys.find_int("vocab_size");
  if (vocabulary && *vocabulary != embedding->shape.front())
    throw input_error(file.where(), "key {} is {}, but 'token_embd.weight' has {} rows",
                      io::quote(keys.name("vocab_size")), *vocabulary, embedding->shape.front())
        .hint(kConvertAgain);
  const int64_t dim = keys.get_int("embedding_length"),
                heads = keys.get_int("attention.head_count"),
                head_dim = keys.find_int("attention.key_length")
                               .value_or(dim / std::max<int64_t>(1, heads)),
                context = keys.get_int("context_length");
  if (const auto of_values = keys.find_int("attention.value_length");
      of_values.value_or(head_dim) != head_dim)
    throw input_error(file.where(), "heads of keys and of values differ: {} and {}", head_dim,
                      *of_values)
        .hint(kOtherModel);
  Json j = {{"architectures", {arch.architecture}},
            {"hidden_size", dim},
            {"num_hidden_layers", keys.get_int("block_count")},
            {"num_attention_heads", heads},
            {"num_key_value_heads", keys.find_int("attention.head_count_kv").value_or(heads)},
            {"head_dim", head_dim},
            {"intermediate_size", keys.get_int("feed_forward_length")},
            {"vocab_size", embedding->shape.front()},
            {"max_position_embeddings", context},
            {"rope_theta", keys.find_double("rope.freq_base").value_or(10000)},
            {"tie_word_embeddings", file.find("output.weight") == nullptr},
            {"attention_bias", file.find("blk.0.attn_q.bias") != nullptr},
            {"mlp_bias", file.find("blk.0.ffn_down.bias") != nullptr},
            {"eos_token_id", end_ids(file)},
            {"dtype", "bfloat16"}};
  const auto eps = keys.find_double("attention.layer_norm_rms_epsilon");
  if (!eps)
    throw input_error(file.where(), "key {} is missing",
                      io::quote(keys.name("attention.layer_norm_rms_epsilon")))
        .hint(kConvertAgain);
  j["rms_norm_eps"] = *eps;
  if (const auto bos = file.find_int("tokenizer.ggml.bos_token_id", 0, kLargestId))
    j["bos_token_id"] = *bos;
  const int64_t turned = keys.find_int("rope.dimension_count").value_or(head_dim);
  if (turned != head_dim && arch.name != "phi3")
    throw input_error(file.where(), "key {} is {}, but heads have {} dimensions",
                      io::quote(keys.name("rope.dimension_count")), turned, head_dim)
        .hint(kOtherModel);
  if (turned != head_dim && (turned < 2 || turned > head_dim || turned % 2 != 0))
    throw input_error(file.where(), "key {}: expected an even number from 2 to {}, found {}",
                      io::quote(keys.name("rope.dimension_count")), head_dim, turned)
        .hint(kConvertOrChoose);
  // The share is cut to whole dimensions when it is read.
  if (turned != head_dim)
    j["partial_rotary_factor"] =
        (static_cast<double>(turned) + 0.5) / static_cast<double>(head_dim);
  if (auto scaling = rope_scaling(file, keys, context)) j["rope_scaling"] = *scaling;
  add_own_keys(file, arch, keys, j);
  ModelConfig config = parse_values(j, file, keys);
  config.context_key = keys.name("context_length");
  // Converters have added the 1.
  for (LayerSpec& kind : config.kinds) kind.norms.unit_offset = false;
  return config;
}

}  // namespace tandem::model
