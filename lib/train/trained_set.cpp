#include "train/trained_set.h"

#include <algorithm>
#include <numeric>

#include "base/convert.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/spec/weight_formats.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "train/low_rank/low_rank_set.h"

namespace tandem::train {
namespace {

constexpr const char* kIndices = "gradients/indices";

using Part = TrainedMatrix::Part;

void place(TrainedMatrix& m, Role role, const model::ModelConfig& config, int rank, int64_t& end) {
  const io::Shape shape = model::shape_of(role, config);
  const int64_t out = shape[0], in = shape[1];
  if (m.part == Part::low_rank) return lay_out_factors(m, in, rank, end);
  if (m.part == Part::all) {
    m.index.resize(static_cast<size_t>(out));
    std::iota(m.index.begin(), m.index.end(), 0);
  }
  const auto n = static_cast<int64_t>(m.index.size());
  m.rows = m.part == Part::columns ? out : n;
  m.cols = m.part == Part::columns ? n : m.part == Part::elements ? 1 : in;
  m.offset = end;
  end += m.size();
  m.bias = m.bias && model::has_bias(role, config);
  m.bias_size = m.bias ? out : 0;
  m.bias_offset = end;
  end += m.bias_size;
}

WeightPart weight_part(Part part) {
  return part == Part::rows      ? WeightPart::rows
         : part == Part::columns ? WeightPart::columns
         : part == Part::all     ? WeightPart::all
                                 : WeightPart::elements;
}

/// Bytes of a trained part that is held next to codes, a whole number of lines.
size_t held_size(const TrainedMatrix& m, DType dtype) {
  return (static_cast<size_t>(m.size()) * dtype_bytes(dtype) + 63) / 64 * 64;
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
  const auto first = std::ranges::find_if(
      layers, [](const auto& l) { return std::ranges::any_of(l, &TrainedMatrix::any); });
  return static_cast<int>(first - layers.begin());
}

model::Trainable TrainedSet::trainable() const {
  return {.from = first_layer(), .embedding = embedding.trained(), .codes = true};
}

void lay_out(TrainedSet& set, const model::ModelConfig& config) {
  const int rank = set.low_rank.rank;
  int64_t end = 0;
  for (auto& l : set.layers)
    for (const Role role : model::kLayerStacks) place(l[role], role, config, rank, end);
  place(set.lm_head, Role::head, config, rank, end);
  if (config.head.tied && set.embedding.trained())
    set.embedding = set.lm_head;
  else
    place(set.embedding, Role::embedding, config, rank, end);
  set.norms_offset = end;
  set.norms_size = set.norms ? model::norm_elements(config) : 0;
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
  for (auto& l : set.layers)
    for (const Role role : model::kLayerRoles) {
      TrainedMatrix& m = l[model::info(role).stack];
      const io::Shape shape = model::shape_of(role, config);
      const int64_t elements = shape[0] * shape[1];
      PhiloxStream stream(seed, matrix++);
      const auto n = static_cast<int64_t>(share * static_cast<double>(elements));
      draw(m.index, stream, model::first_row(role, config) * shape[1], elements, n);
      if (!m.index.empty()) m.part = Part::elements;
    }
  lay_out(set, config);
  if (set.size == 0)
    throw recipe_error("train.spft.ratio", "is {}, which selects no weight of any matrix", share);
  return set;
}

size_t held_bytes(const TrainedSet& set, const model::ModelConfig& config, DType dtype) {
  size_t bytes = 0;
  for (size_t i = 0; i < set.layers.size(); ++i)
    for (const Role role : model::kLayerStacks)
      if (const TrainedMatrix& m = set.layers[i][role];
          m.listed() && model::has_codes(config, {role, static_cast<int>(i)}))
        bytes += held_size(m, dtype);
  return bytes;
}

void hold_values(model::Weights& weights, const TrainedSet& set, const PlacedIndices& indices,
                 void* memory, Stream stream) {
  auto* to = static_cast<std::byte*>(memory);
  each_weight(set, weights, [&](const TrainedMatrix& m, ops::PackedWeights& w) {
    if (!m.listed() || !ops::is_frozen(w)) return;
    ops::hold_part(w, weight_part(m.part), indices.of(m), to, stream);
    to += held_size(m, w.input());
  });
}

void read_values(std::span<float> values, const TrainedSet& set, const PlacedIndices& indices,
                 const model::Weights& weights, std::span<std::byte> workspace, Stream stream) {
  each_weight(set, weights, [&](const TrainedMatrix& m, const ops::PackedWeights& w) {
    if (m.part == Part::low_rank)
      first_factors(values, m, set.low_rank, w, workspace, stream);
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

void PlacedIndices::plan(const TrainedSet& set, Device device, MemoryPlan& plan) {
  if (device.kind == Device::Kind::cuda && set.index_size > 0)
    plan.add(kIndices, static_cast<size_t>(set.index_size) * sizeof(int32_t), device);
}

PlacedIndices::PlacedIndices(const TrainedSet& set, Arena& arena, const Exec& exec) {
  if (!exec.on_gpu() || set.index_size == 0) return;
  auto* const copy = static_cast<int32_t*>(arena.take(kIndices));
  copy_ = copy;
  each_matrix(set, [&](const TrainedMatrix& m) {
    if (m.listed())
      exec.queue->copy_in(copy + m.index_offset, m.index.data(), m.index.size() * sizeof(int32_t));
  });
}

std::span<const int32_t> PlacedIndices::of(const TrainedMatrix& m) const {
  if (!m.listed()) return {};
  return {copy_ == nullptr ? m.index.data() : copy_ + m.index_offset, m.index.size()};
}

}  // namespace tandem::train
