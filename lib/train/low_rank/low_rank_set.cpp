#include "train/low_rank/low_rank_set.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/families/family.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "ops/low_rank.h"

namespace tandem::train {
namespace {

/// Numbers of the random tensors that A begins as: none that a synthetic model has.
constexpr uint32_t kFirstTensor = 0x80000000u;

size_t at(int64_t offset) { return static_cast<size_t>(offset); }

/// PEFT has one list of magnitudes for the rows of a tensor, which may be those of several
/// matrices.
/// errors   kind recipe: a target's tensor holds a matrix that is no target
void check_magnitudes(const model::ModelConfig& c, const LoraSettings& settings) {
  const auto tensor = [&](Role role) { return model::stored_part({role}, c).tensor; };
  for (const Role target : settings.targets)
    for (const Role other : model::kLayerRoles)
      if (tensor(other) == tensor(target) &&
          std::ranges::find(settings.targets, other) == settings.targets.end())
        throw recipe_error("train.lora.targets",
                           "has {} without {}, which DoRA needs, too: this model stores both in {}",
                           model::word_of(target), model::word_of(other), tensor(target))
            .hint(fmt::format("add {}, or set train.method to lora", model::word_of(other)));
}

}  // namespace

TrainedSet low_rank_set(const model::ModelConfig& c, const LoraSettings& settings, bool magnitude,
                        uint64_t seed) {
  if (magnitude) check_magnitudes(c, settings);
  const double rank = settings.rank;
  TrainedSet set;
  set.low_rank = {
      .rank = settings.rank,
      .gamma = static_cast<float>(settings.alpha / (settings.rslora ? std::sqrt(rank) : rank)),
      .dropout = settings.dropout,
      .magnitude = magnitude,
      .seed = seed};
  set.layers.resize(at(c.n_layers));
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const Role role : model::kLayerRoles) {
      if (std::ranges::find(settings.targets, role) == settings.targets.end()) continue;
      TrainedMatrix& m = set.layers[at(layer)][model::info(role).stack];
      m.part = TrainedMatrix::Part::low_rank;
      m.factors.push_back({.role = role,
                           .layer = layer,
                           .first_row = model::first_row(role, c),
                           .rows = model::shape_of(role, c)[0],
                           .magnitude = magnitude ? 0 : -1});
    }
  lay_out(set, c);
  return set;
}

void lay_out_factors(TrainedMatrix& m, int64_t in, int rank, int64_t& end) {
  m.offset = end;
  for (LowRankFactors& f : m.factors) {
    f.a = end;
    end += rank * in;
  }
  for (LowRankFactors& f : m.factors) {
    f.b = end;
    end += f.rows * rank;
  }
  for (LowRankFactors& f : m.factors) {
    if (f.magnitude < 0) continue;
    f.magnitude = end;
    end += f.rows;
  }
  m.rows = end - m.offset;
  m.cols = 1;
}

void first_factors(std::span<float> values, const TrainedMatrix& m, const LowRankShape& shape,
                   const ops::PackedWeights& w, std::span<std::byte> workspace, Stream stream) {
  const auto in = static_cast<double>(w.in());
  for (const LowRankFactors& f : m.factors) {
    ops::fill_random(
        values.data() + f.a, DType::f32,
        {.seed = shape.seed,
         .tensor = kFirstTensor + static_cast<uint32_t>(model::matrix_index(f.layer, f.role)),
         .n = shape.rank * w.in(),
         .stddev = static_cast<float>(1 / std::sqrt(3 * in))},
        stream);
    ops::clear(values.data() + f.b, f.rows * shape.rank, stream);
    if (f.magnitude < 0) continue;
    ops::each_rows(w, f.first_row, f.rows, workspace, stream,
                   [&](int64_t row, const Tensor& rows, std::span<std::byte>) {
                     ops::initial_magnitudes(values.data() + f.magnitude + row - f.first_row, rows,
                                             stream);
                   });
  }
}

}  // namespace tandem::train
