#include "train/export_model.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "base/convert.h"
#include "base/error.h"
#include "model/low_rank_merge.h"
#include "model/weight_table.h"
#include "train/export_low_rank.h"

namespace tandem::train {
namespace {

using model::Weight;
using Part = TrainedMatrix::Part;

/// Rows of a packed matrix that are a weight of the checkpoint, and what of them is trained.
struct Place {
  const TrainedMatrix* trained = nullptr;  // null: nothing
  int64_t first_row = 0;
};

Place place_of(Weight weight, int layer, const TrainedSet& set, const model::ModelConfig& c) {
  if (weight == Weight::lm_head) return {&set.lm_head};
  // A tied head's values are the embedding's, under its name.
  if (weight == Weight::tok_emb) return {c.tied_embeddings ? &set.lm_head : &set.embedding};
  if (!model::is_per_layer(weight) || set.layers.empty()) return {};
  const TrainedLayer& l = set.layers[static_cast<size_t>(layer)];
  switch (weight) {
    case Weight::wq:
    case Weight::bq:
      return {&l.qkv, 0};
    case Weight::wk:
    case Weight::bk:
      return {&l.qkv, c.q_dim()};
    case Weight::wv:
    case Weight::bv:
      return {&l.qkv, int64_t{c.q_dim()} + c.kv_dim()};
    case Weight::wo:
    case Weight::bo:
      return {&l.wo};
    case Weight::w_gate:
    case Weight::b_gate:
      return {&l.gate_up, 0};
    case Weight::w_up:
    case Weight::b_up:
      return {&l.gate_up, c.ffn_dim};
    case Weight::w_down:
    case Weight::b_down:
      return {&l.w_down};
    default:
      return {};
  }
}

/// Puts the trained values of rows [first, first + rows) of the packed matrix into `out`.
/// shapes   out [rows, cols]
void put_matrix(std::span<float> out, int64_t rows, int64_t cols, const Place& place,
                std::span<const float> values) {
  const TrainedMatrix& m = *place.trained;
  const auto at = [&](int64_t row, int64_t col) -> float& {
    return out[static_cast<size_t>(row * cols + col)];
  };
  const auto value = [&](int64_t i) { return values[static_cast<size_t>(m.offset + i)]; };
  const auto n = static_cast<int64_t>(m.index.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t index = m.index[static_cast<size_t>(i)];
    if (m.part == Part::columns) {
      for (int64_t r = 0; r < rows; ++r) at(r, index) = value((place.first_row + r) * n + i);
    } else if (m.part == Part::elements) {
      const int64_t r = index / cols - place.first_row;
      if (r >= 0 && r < rows) at(r, index % cols) = value(i);
    } else if (const int64_t r = index - place.first_row; r >= 0 && r < rows) {
      for (int64_t c = 0; c < cols; ++c) at(r, c) = value(i * cols + c);
    }
  }
}

/// Norms lie one after the other, as model::Weights has them: by layer attn, ffn, q, k; then the
/// last.
int64_t norm_offset(Weight weight, int layer, const model::ModelConfig& c) {
  const int64_t heads = c.qk_norm ? 2 * int64_t{c.head_dim} : 0, each = 2 * int64_t{c.dim} + heads;
  if (weight == Weight::out_norm) return c.n_layers * each;
  const int64_t first = layer * each;
  if (weight == Weight::attn_norm) return first;
  if (weight == Weight::ffn_norm) return first + c.dim;
  return first + 2 * int64_t{c.dim} + (weight == Weight::k_norm ? c.head_dim : 0);
}

bool is_norm(Weight w) {
  return w == Weight::attn_norm || w == Weight::ffn_norm || w == Weight::out_norm ||
         w == Weight::q_norm || w == Weight::k_norm;
}

/// A norm or a bias with its trained values.
std::vector<float> trained_vector(Weight weight, int layer, const model::WeightSource& source,
                                  const model::ModelConfig& c, const TrainedSet& set,
                                  std::span<const float> values) {
  std::vector<float> v = source.vector(weight, layer);
  int64_t from = -1;
  if (is_norm(weight)) {
    if (set.norms) from = set.norms_offset + norm_offset(weight, layer, c);
  } else if (const Place p = place_of(weight, layer, set, c);
             p.trained != nullptr && p.trained->bias) {
    from = p.trained->bias_offset + p.first_row;
  }
  if (from >= 0) std::copy_n(values.data() + from, v.size(), v.begin());
  return v;
}

std::vector<std::byte> in_dtype(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    auto* out = reinterpret_cast<bf16*>(bytes.data());
    std::ranges::transform(values, out, [](float x) { return to_bf16(x); });
  }
  return bytes;
}

/// Files that hold weights, the base model's in any program's format, or a list of them.
bool is_of_weights(const std::string& name) {
  if (name.find(".safetensors") != std::string::npos || name.ends_with(".bin.index.json"))
    return true;
  constexpr std::string_view kTypes[] = {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"};
  return std::ranges::any_of(kTypes, [&](std::string_view type) { return name.ends_with(type); });
}

/// What a model folder holds in addition to weights: configuration, tokenizer, template of chats.
void copy_others(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || is_of_weights(name)) continue;
    std::error_code code;
    fs::copy_file(entry.path(), to / name, fs::copy_options::overwrite_existing, code);
    if (code) throw input_error((to / name).string(), "cannot be written: {}", code.message());
  }
}

}  // namespace

void export_model(const std::filesystem::path& folder, const std::filesystem::path& base,
                  const model::ModelConfig& config, const model::WeightSource& source,
                  const TrainedSet& set, std::span<const float> values, DType dtype) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw input_error(folder.string(), "cannot be created: {}", code.message());
  copy_others(base, folder);
  std::deque<std::vector<std::byte>> memory;
  std::vector<io::TensorView> tensors;
  const std::vector<model::LowRankDelta> deltas = low_rank_deltas(set, config, values);
  const auto delta_of = [&](Weight weight, int layer) -> const model::LowRankDelta* {
    const auto it = std::ranges::find_if(
        deltas, [&](const auto& d) { return d.weight == weight && d.layer == layer; });
    return it == deltas.end() ? nullptr : &*it;
  };
  const auto add = [&](Weight weight, int layer) {
    const io::Shape shape = model::weight_shape(weight, config);
    std::vector<float> all;
    if (shape.size() == 1) {
      all = trained_vector(weight, layer, source, config, set, values);
    } else {
      all.resize(static_cast<size_t>(shape[0] * shape[1]));
      source.rows(weight, layer, 0, shape[0], DType::f32, all.data());
      if (const model::LowRankDelta* d = delta_of(weight, layer))
        model::merge_low_rank(all, *d);
      else if (const Place p = place_of(weight, layer, set, config); p.trained != nullptr)
        put_matrix(all, shape[0], shape[1], p, values);
    }
    // Norms and biases are f32 in a running model: a bf16 copy would be another model.
    const DType type = shape.size() == 1 ? DType::f32 : dtype;
    memory.push_back(in_dtype(all, type));
    tensors.push_back(
        {model::checkpoint_name(weight, std::max(layer, 0)), type, shape, memory.back()});
  };
  for (const Weight w : model::global_weights(config)) add(w, -1);
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Weight w : model::layer_weights(config)) add(w, layer);
  // Reference programs refuse files without it.
  io::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
}

}  // namespace tandem::train
