#include "train/export_model.h"

#include <cstring>
#include <deque>
#include <vector>

#include "base/check.h"
#include "base/convert.h"
#include "base/error.h"
#include "model/weight_table.h"

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

/// Where the norms of a layer begin among all (model::Weights::norms), or of the last one.
std::span<const float> trained_norm(Weight weight, int layer, const TrainedSet& set,
                                    const model::Weights& weights, std::span<const float> values) {
  const model::LayerNorms* n =
      layer < 0 ? nullptr : &weights.layers[static_cast<size_t>(layer)].norms;
  const float* at = weight == Weight::out_norm    ? weights.out_norm
                    : weight == Weight::attn_norm ? n->attn
                    : weight == Weight::ffn_norm  ? n->ffn
                    : weight == Weight::q_norm    ? n->q
                                                  : n->k;
  return values.subspan(static_cast<size_t>(set.norms_offset + (at - weights.norms.data())));
}

}  // namespace

}  // namespace tandem::train
