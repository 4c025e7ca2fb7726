#include "model/families/family.h"

#include <array>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::model {
namespace {

/// Reads from key `layer_types` which layers slide; empty where the file does not give it.
std::vector<uint8_t> sliding_layers(const io::Json& j, const std::string& where, int n_layers) {
  std::vector<uint8_t> slides;
  const io::Json* const types = io::find_array(j, "layer_types", where);
  if (types == nullptr) return slides;
  if (types->size() != static_cast<size_t>(n_layers))
    throw pattern_error("layer_types", n_layers, types->size(), where);
  for (const io::Json& item : *types) {
    const std::string& type = io::as_string(item, "key 'layer_types'", where);
    slides.push_back(type == "sliding_attention");
    if (slides.back() == 0 && type != "full_attention")
      throw input_error(where,
                        "key 'layer_types': expected 'full_attention' or 'sliding_attention', "
                        "found {} for layer {}",
                        io::quote(type), slides.size() - 1);
  }
  return slides;
}

}  // namespace

std::span<const Family* const> families() {
  static constexpr std::array kAll = {&kGemma3,  &kGemma3Whole, &kGranite, &kLlama,
                                      &kMistral, &kMistral3,    &kOlmo2,   &kPhi3,
                                      &kQwen2,   &kQwen3,       &kSmolLm3};
  return kAll;
}

std::string_view first_unserved(const ModelConfig& c) {
  for (const LayerSpec& layer : c.kinds) {
    const LayerSpec& first = c.kinds.front();
    if (layer.attention.sink) return "attention sinks";
    if (layer.ffn.kind == FfnSpec::Kind::experts) return "mixtures of experts";
    if (layer.ffn.clamp != 0) return "clamped gates";
    if (layer.attention.qk_norm != first.attention.qk_norm ||
        layer.attention.qkv_bias != first.attention.qkv_bias ||
        layer.attention.o_bias != first.attention.o_bias || layer.ffn.bias != first.ffn.bias ||
        layer.norms != first.norms)
      return "layers with different biases or norms";
  }
  return c.head.softcap != 0 ? "capped logits" : "";
}

StoredPart stored_part(MatrixId id, const ModelConfig& c) {
  for (const Family* family : families()) {
    if (family->architecture != c.architecture || is_bias(id.role)) continue;
    for (const StoredAs& f : family->stored)
      if (info(id.role).stack == f.stack)
        return {fmt::format("model.layers.{}.{}", id.layer, f.tensor), first_row(id.role, c),
                shape_of(f.stack, c)};
  }
  return {canonical_name(id), 0, shape_of(id.role, c)};
}

void read_window(const io::Json& j, const std::string& where, std::vector<uint8_t> slides,
                 ModelConfig& c) {
  const auto window = j.contains("sliding_window")
                          ? io::find_int(j, "sliding_window", where, 1, kMaxContext).value_or(0)
                          : 4096;
  if (window == 0) return;
  if (auto given = sliding_layers(j, where, c.n_layers); !given.empty()) slides = std::move(given);
  c.slide(static_cast<int>(window), slides);
}

Error pattern_error(const char* key, int n_layers, size_t found, const std::string& where) {
  return input_error(where, "key '{}': expected {} items, one for each layer, found {}", key,
                     n_layers, found)
      .hint(fmt::format("take config.json from the model's publisher: '{}' must have as many items "
                        "as 'num_hidden_layers' says",
                        key));
}

void read_attention_bias(const io::Json& j, const std::string& where, LayerSpec& layer) {
  layer.attention.qkv_bias = layer.attention.o_bias =
      io::find_bool(j, "attention_bias", where).value_or(false);
}

void read_layers(const Family& family, const io::Json& j, const std::string& where,
                 ModelConfig& c) {
  sliding_layers(j, where, c.n_layers);  // a family may not read it, but no type is passed over
  family.read_layers(j, where, c);
}

}  // namespace tandem::model
