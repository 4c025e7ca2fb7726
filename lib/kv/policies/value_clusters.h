#pragma once
#include <span>
#include <string>

#include "base/divide_up.h"
#include "kernels/code/code.h"
#include "kernels/code/value_clusters.h"
#include "kv/policies/token_index.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Holds kValueClusters mean values for every sequence, sparse layer and KV head, and the nearest
/// of them for the value of every indexed key. The means are frozen when the prompt ends: k-means
/// over a sample of its values, from centers at even distances.
class ValueClusters {
 public:
  ValueClusters(const Bounds& bounds, const TokenIndex& index, HeadGrid grid);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  void run_on(const Exec& exec) { exec_ = exec; }
  void index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                    const PagedStore& store, const int32_t* device_pages);
  void copy_block(const TokenIndex::Piece& piece);
  void on_fork(int from, int to);

  MeanRows means(int slot, int ordinal, int kv_head) const {
    return {cell(slot, ordinal, kv_head).means, kValueClusters};
  }
  /// Adds exp(min(score, most) - origin) of all indexed tokens to their clusters' masses.
  void add_masses(int slot, int ordinal, int kv_head, const float* scores, float most, float origin,
                  float* masses) const;
  DeviceClusters device(int ordinal) const;
  /// Rows of means at a slot's cell, for lists on a GPU.
  ListTails device_tails(int ordinal) const;

 private:
  struct Cell {
    bf16* means;      // [kValueClusters, d]
    int8_t* centers;  // [kValueClusters, d]
    float* unit;
  };
  Cell cell(int slot, int ordinal, int kv_head) const;
  size_t cell_bytes() const { return static_cast<size_t>(cluster_cell_bytes(geometry_.head_dim)); }
  uint8_t* ids(int block, int ordinal, int kv_head) const {
    return ids_ + grid_.cell(block, ordinal, kv_head) * id_room();
  }
  /// Ids of a block: of whole groups of keys.
  size_t id_room() const {
    return static_cast<size_t>(divide_up(index_.capacity(), kCodeKeys) * kCodeKeys);
  }
  void make(const Cell& cell, const KeyRows& values, int begin, int end) const;
  void assign(const Cell& cell, const KeyRows& values, int token, int n, uint8_t* to) const;
  size_t scratch_bytes() const;

  Bounds bounds_;
  Geometry geometry_;
  const TokenIndex& index_;
  HeadGrid grid_;
  uint8_t* cells_ = nullptr;   // [slots, sparse layers, KV heads]
  uint8_t* ids_ = nullptr;     // [blocks, sparse layers, KV heads, capacity]
  int8_t* scratch_ = nullptr;  // on a GPU
  Exec exec_;
};

}  // namespace tandem::kv
