#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/adapters/adapter_parts.h"
#include "model/weights/weights.h"
#include "ops/adapters.h"
#include "tensor/arena.h"

namespace tandem::model {

/// Named adapters of which one at a time is in the weights: a switch puts the base's bytes back
/// where the old one was, then writes the new one's. Of slices both are kept, where the weights
/// are; of low-rank factors, which change all numbers of their matrices, a GPU's run keeps a copy
/// of those matrices of the base, and a run on the CPU reads them from the files again.
class AdapterSwitch {
 public:
  struct Spec {
    const ModelConfig& config;
    DType dtype = DType::bf16;  // of the weights
    Device device = {};
    std::span<const NamedAdapter> adapters;
  };
  /// errors   kind recipe: DoRA with a weight
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// weights  the base's, in place; on the CPU trainable, on a GPU w_down by input (WeightPlaces).
  ///          They outlive this, and so does `base`, the source that they were loaded from
  /// exec     the device of the spec
  AdapterSwitch(const Spec& spec, const WeightSource& base, Weights& weights, Arena& arena,
                const Exec& exec);

  /// Waits for work on the queue, changes the weights, and waits again: kernels read weights before
  /// the work ahead of them has ended. Negative: the base.
  /// errors   kind input: files of low-rank factors can no longer be read; the weights are of no use
  ///          then until the next call
  void to(int adapter);
  int current() const { return current_; }
  /// Bytes of the weights that going to an adapter and back writes.
  size_t bytes(int adapter) const;

 private:
  /// Slices of an adapter: on a GPU tables in its memory, on the CPU where to write what.
  struct Slices {
    std::vector<PartShape> shapes;
    std::vector<const int32_t*> index;
    std::vector<const std::byte*> fresh, base;  // [n, width], or as matrices have columns
    const SliceWrite *write_fresh = nullptr, *write_base = nullptr;
  };
  /// A matrix that an adapter's low-rank factors change.
  struct Factors {
    MatrixId id = {};
    const float *a = nullptr, *b = nullptr, *scale = nullptr;  // on a GPU
    int rank = 0;
  };
  void load_slices(size_t adapter, std::byte* memory);
  void load_factors(size_t adapter, std::byte* memory);
  void copy_matrices(Arena& arena);
  void write(const Slices& slices, bool fresh);
  void merge(size_t adapter);
  /// Whether the factors of `fresh` change all matrices that those of `old` change.
  bool writes_all_of(size_t old, size_t fresh) const;
  /// Puts the base's numbers back of all that factors have changed.
  void restore_matrices(size_t adapter);
  /// Rows of a weight on the CPU become those of the base, with the adapter's factors or without.
  void rewrite(int layer, Role weight, const NamedAdapter* with);
  ops::PackedWeights& matrix(int layer, Role of) const;
  void copy_in(void* to, const void* from, size_t bytes);

  Spec spec_;
  std::vector<NamedAdapter> adapters_;
  const WeightSource& base_;
  Weights& weights_;
  Exec exec_;
  std::vector<Slices> slices_;                 // [adapters]
  std::vector<std::vector<Factors>> factors_;  // [adapters]
  std::vector<const std::byte*> copies_;       // [layers, kLayerStacks] of the base, or null
  int current_ = -1;
  bool whole_ = true;  // false while a switch is under way, or where one failed
};

}  // namespace tandem::model
