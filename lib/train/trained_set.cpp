#include "train/trained_set.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "train/backward/placed_index.h"
#include "train/low_rank/low_rank_set.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

struct Shape {
  int64_t out, in;
  bool bias;
};

struct LayerShapes {
  Shape qkv, wo, gate_up, w_down;

  explicit LayerShapes(const model::ModelConfig& c)
      : qkv{c.q_dim() + 2 * int64_t{c.kv_dim()}, c.dim, c.qkv_bias()},
        wo{c.dim, c.q_dim(), c.o_bias()},
        gate_up{2 * int64_t{c.ffn_dim}, c.dim, c.mlp_bias()},
        w_down{c.dim, c.ffn_dim, c.mlp_bias()} {}
};

void place(TrainedMatrix& m, const Shape& shape, int rank, int64_t& end) {
  if (m.part == Part::low_rank) return lay_out_factors(m, shape.in, rank, end);
  if (m.part == Part::all) {
    m.index.resize(static_cast<size_t>(shape.out));
    std::iota(m.index.begin(), m.index.end(), 0);
  }
  const auto n = static_cast<int64_t>(m.index.size());
  m.rows = m.part == Part::columns ? shape.out : n;
  m.cols = m.part == Part::columns ? n : m.part == Part::elements ? 1 : shape.in;
  m.offset = end;
  end += m.size();
  m.bias = m.bias && shape.bias;
  m.bias_size = m.bias ? shape.out : 0;
  m.bias_offset = end;
  end += m.bias_size;
}

WeightPart weight_part(Part part) {
  return part == Part::rows      ? WeightPart::rows
         : part == Part::columns ? WeightPart::columns
         : part == Part::all     ? WeightPart::all
                                 : WeightPart::elements;
}

size_t at(int64_t offset) { return static_cast<size_t>(offset); }

/// `n` of [first, first + of) without replacement, ascending. A run that goes on draws its set
/// again, so the same seed gives the same numbers in every version.
void draw(std::vector<int32_t>& to, PhiloxStream& stream, int64_t first, int64_t of, int64_t n) {
  std::vector<bool> drawn(at(of));
  for (int64_t missing = n; missing > 0;) {
    const auto number = at(stream.below(static_cast<uint32_t>(of)));
    if (drawn[number]) continue;
    drawn[number] = true;
    --missing;
  }
  for (int64_t i = 0; i < of; ++i)
    if (drawn[at(i)]) to.push_back(static_cast<int32_t>(first + i));
}

TrainedMatrix whole() { return {.part = Part::all, .bias = true}; }

}  // namespace

int TrainedSet::first_layer() const {
  if (embedding.trained() || norms) return 0;
  const auto first = std::ranges::find_if(layers, [](const TrainedLayer& l) {
    return l.qkv.any() || l.wo.any() || l.gate_up.any() || l.w_down.any();
  });
  return static_cast<int>(first - layers.begin());
}

model::Trainable TrainedSet::trainable() const {
  return {.from = first_layer(), .embedding = embedding.trained()};
}

void lay_out(TrainedSet& set, const model::ModelConfig& config) {
  const LayerShapes shapes(config);
  const Shape table{config.vocab_size, config.dim, false};
  const int rank = set.low_rank.rank;
  int64_t end = 0;
  for (TrainedLayer& l : set.layers) {
    place(l.qkv, shapes.qkv, rank, end);
    place(l.wo, shapes.wo, rank, end);
    place(l.gate_up, shapes.gate_up, rank, end);
    place(l.w_down, shapes.w_down, rank, end);
  }
  place(set.lm_head, table, rank, end);
  if (config.head.tied && set.embedding.trained())
    set.embedding = set.lm_head;
  else
    place(set.embedding, table, rank, end);
  const int64_t of_heads = config.qk_norm() ? 2 * int64_t{config.head_dim} : 0;
  set.norms_offset = end;
  set.norms_size =
      set.norms ? config.n_layers * (2 * int64_t{config.dim} + of_heads) + config.dim : 0;
  set.size = end + set.norms_size;
  set.index_size = 0;
  each_matrix(set, [&](TrainedMatrix& m) {
    m.index_offset = set.index_size;
    if (m.listed()) set.index_size += static_cast<int64_t>(m.index.size());
  });
}

TrainedSet full_set(const model::ModelConfig& config) {
  TrainedSet set;
  set.layers.assign(at(config.n_layers), {whole(), whole(), whole(), whole()});
  set.lm_head = set.embedding = {.part = Part::all};
  set.norms = true;
  lay_out(set, config);
  return set;
}

TrainedSet scattered_set(const model::ModelConfig& config, double share, uint64_t seed) {
  if (!(share > 0 && share <= 1))
    throw recipe_error("train.spft.ratio", "expected a number in (0, 1], found {}", share);
  TrainedSet set;
  set.layers.resize(at(config.n_layers));
  uint32_t matrix = 0;
  const auto scatter = [&](TrainedMatrix& m, int64_t in, std::initializer_list<int64_t> parts) {
    int64_t first = 0;
    for (const int64_t rows : parts) {
      PhiloxStream stream(seed, matrix++);
      const auto n = static_cast<int64_t>(share * static_cast<double>(rows * in));
      draw(m.index, stream, first, rows * in, n);
      first += rows * in;
    }
    if (!m.index.empty()) m.part = Part::elements;
  };
  for (TrainedLayer& l : set.layers) {
    scatter(l.qkv, config.dim, {config.q_dim(), config.kv_dim(), config.kv_dim()});
    scatter(l.wo, config.q_dim(), {config.dim});
    scatter(l.gate_up, config.dim, {config.ffn_dim, config.ffn_dim});
    scatter(l.w_down, config.ffn_dim, {config.dim});
  }
  lay_out(set, config);
  if (set.size == 0)
    throw recipe_error("train.spft.ratio", "is {}, which selects no weight of any matrix", share);
  return set;
}

void read_values(std::span<float> values, const TrainedSet& set, const PlacedIndices& indices,
                 const model::Weights& weights, Stream stream) {
  each_weight(set, weights, [&](const TrainedMatrix& m, const ops::PackedWeights& w) {
    if (m.part == Part::low_rank)
      first_factors(values, m, set.low_rank, w, stream);
    else if (m.trained())
      ops::read_part(values.subspan(at(m.offset), at(m.size())), w, weight_part(m.part),
                     indices.of(m), stream);
    if (m.bias) ops::read_bias(values.subspan(at(m.bias_offset), at(m.bias_size)), w, stream);
  });
  ops::convert(values.data() + set.norms_offset, DType::f32, weights.norms.data(), DType::f32,
               set.norms_size, stream);
}

void write_values(model::Weights& weights, const TrainedSet& set, const PlacedIndices& indices,
                  std::span<const float> values, Stream stream) {
  each_weight(set, weights, [&](const TrainedMatrix& m, ops::PackedWeights& w) {
    if (m.trained() && m.part != Part::low_rank)
      ops::write_part(w, weight_part(m.part), indices.of(m),
                      values.subspan(at(m.offset), at(m.size())), stream);
    if (m.bias) ops::write_bias(w, values.subspan(at(m.bias_offset), at(m.bias_size)), stream);
  });
  ops::convert(weights.norms.data(), DType::f32, values.data() + set.norms_offset, DType::f32,
               set.norms_size, stream);
}

}  // namespace tandem::train
