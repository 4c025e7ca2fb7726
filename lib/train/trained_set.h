#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/spec/config.h"
#include "model/weights/weights.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::train {

using model::Role;

/// Factors that are trained next to some rows of a packed matrix: W + gamma B A.
struct LowRankFactors {
  Role role = Role::q;
  int layer = 0;
  int64_t first_row = 0, rows = 0;  // of the packed matrix
  int64_t a = 0, b = 0;             // offsets of A [rank, in] and B [rows, rank]
  int64_t magnitude = -1;           // of DoRA's magnitudes [rows]; -1: none
};

/// Which values of a matrix [out, in] are trained, and where they lie in the flat buffers of
/// trained values: rows as [n, in], columns as [out, n], row-major; single elements as [n, 1].
/// Low-rank factors, next to the matrix, as [n, 1]: the A of all factors, one [factors
/// rank, in] matrix, then each one's B, then magnitudes.
struct TrainedMatrix {
  enum class Part : uint8_t { none, rows, columns, all, elements, low_rank };

  Part part = Part::none;
  std::vector<int32_t> index = {};  // of rows, columns or elements, ascending; of `all` every row
  int64_t offset = 0, rows = 0, cols = 0;
  int64_t index_offset = 0;  // of the index, among those of all matrices
  bool bias = false;         // the bias too, whole
  int64_t bias_offset = 0, bias_size = 0;
  std::vector<LowRankFactors> factors = {};  // of low_rank

  bool trained() const { return part != Part::none; }
  bool listed() const {
    return part == Part::rows || part == Part::columns || part == Part::elements;
  }
  bool any() const { return trained() || bias; }
  int64_t size() const { return rows * cols; }
};

/// Settings that all low-rank factors of a set share.
struct LowRankShape {
  int rank = 0;            // 0: there are none
  float gamma = 1;         // W + gamma B A
  double dropout = 0;      // share of the inputs of A
  bool magnitude = false;  // DoRA: rows are scaled to a trained norm
  uint64_t seed = 0;       // of A's first values, and of dropout
};

/// All trained values of a model, one after another in flat buffers: weights, their moments, the
/// gradient, which several ranks would sum at once.
struct TrainedSet {
  std::vector<model::PerStack<TrainedMatrix>> layers;
  TrainedMatrix lm_head;
  /// Where heads are tied, its values are those of the head.
  TrainedMatrix embedding;
  bool norms = false;  // all of them, as Weights::norms has them
  int64_t norms_offset = 0, norms_size = 0;
  LowRankShape low_rank = {};
  int64_t size = 0;        // of all
  int64_t index_size = 0;  // of all lists

  /// The lowest layer that is trained, or whose gradients are needed below: none = n_layers.
  int first_layer() const;
  /// What the model must keep for them.
  model::Trainable trainable() const;
};

/// Offsets of a set whose parts have been chosen.
void lay_out(TrainedSet& set, const model::ModelConfig& config);

/// Every weight of a model.
TrainedSet full_set(const model::ModelConfig& config);

/// SpFT, the baseline of S2FT: single weights, drawn at random by the seed, the same share of each
/// of q, k, v, o, gate, up and down.
/// errors   kind recipe: the share is no number in (0, 1], or gives nothing
TrainedSet scattered_set(const model::ModelConfig& config, double share, uint64_t seed);

/// Calls visit(trained matrix) for all.
template <class Set, class Visit>
void each_matrix(Set& set, const Visit& visit) {
  for (auto& l : set.layers)
    for (auto& m : l) visit(m);
  visit(set.lm_head);
  visit(set.embedding);
}

/// Calls visit(trained matrix, its weights) for all that a model has.
template <class Weights, class Visit>
void each_weight(const TrainedSet& set, Weights& weights, const Visit& visit) {
  for (size_t i = 0; i < set.layers.size(); ++i)
    for (const Role role : model::kLayerStacks) visit(set.layers[i][role], weights.layers[i][role]);
  visit(set.lm_head, weights.lm_head);
  if (!weights.own_embedding.empty()) visit(set.embedding, weights.own_embedding);
}

/// The indices of a trained set where a run computes: on a GPU a copy.
class PlacedIndices {
 public:
  static void plan(const TrainedSet& set, Device device, MemoryPlan& plan);
  /// The set must outlive this.
  PlacedIndices(const TrainedSet& set, Arena& arena, const Exec& exec);

  /// TrainedMatrix::index of a matrix of the set; empty where all of it is trained.
  std::span<const int32_t> of(const TrainedMatrix& m) const;

 private:
  const int32_t* copy_ = nullptr;
};

/// The trained parts of matrices whose others stay codes are numbers of the compute type next
/// to them: their bytes, and from now on (ops::hold_part).
/// memory   held_bytes where the weights are, aligned to 64; it and the indices outlive the weights
size_t held_bytes(const TrainedSet& set, const model::ModelConfig& config, DType dtype);
void hold_values(model::Weights& weights, const TrainedSet& set, const PlacedIndices& indices,
                 void* memory, Stream stream = {});

/// Copies the values of the trained weights from the model, and back, rounded to nearest to the
/// weights' dtype; values outside the set keep their bits. Low-rank factors are not the model's:
/// read_values gives them their first values, write_values leaves them out.
/// shapes   values [set.size] where the weights are; workspace as ops::each_rows'
void read_values(std::span<float> values, const TrainedSet& set, const PlacedIndices& indices,
                 const model::Weights& weights, std::span<std::byte> workspace, Stream stream = {});
void write_values(model::Weights& weights, const TrainedSet& set, const PlacedIndices& indices,
                  std::span<const float> values, Stream stream = {});

}  // namespace tandem::train
