#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/gather/attend_lists.h"
#include "kv/policies/code_frames.h"
#include "kv/policies/device_index.h"
#include "kv/policies/value_clusters.h"
#include "ops/selection.h"

namespace tandem::kv {

/// For every sparse layer and KV head the codes of each indexed key (kernels/code/code.h), and the
/// means of values over runs of kMeanKeys of them, or the clusters of values: bits / 8 bytes a
/// dimension and 2 a key, and two bytes a dimension and run, or one a key and the means.
class KeyCodes {
 public:
  KeyCodes(const recipe::Hybrid& spec, uint64_t seed, const Bounds& bounds, const TokenIndex& index,
           HeadGrid grid);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  /// Where they are; after allocate.
  void run_on(const Exec& exec);
  /// Of a fresh index frames are set first.
  /// device_pages  on a GPU, the slot's page table there
  void index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                    const PagedStore& store, const QueryRing* queries, const int32_t* device_pages);
  void on_fork(int from, int to, const Exec& exec) {
    frames_.copy(from, to, exec);
    if (clusters_) clusters_->on_fork(from, to);
  }
  /// Clusters of values; null where runs of keys share means.
  const ValueClusters* clusters() const { return clusters_ ? &*clusters_ : nullptr; }
  /// On a GPU: what kernels read of a sparse layer.
  DeviceCodes device_codes(int ordinal) const;
  ListTails device_tails(int ordinal, const DeviceIndex& device_index) const;

  int bits() const { return bits_; }
  size_t dims() const { return static_cast<size_t>(dims_); }
  CodeFrame frame(int slot, int ordinal, int kv_head) const {
    return frames_.at(slot, ordinal, kv_head);
  }
  /// A query [head_dim] f32 as scans read it, for scores q . (key - center) / sqrt(head_dim).
  /// rotated  scratch [dims]; sums [4 dims] and q8 [dims] hold what the result points to
  CodeQuery query(const CodeFrame& frame, std::span<const float> q, ops::ScoreScale scale,
                  float* rotated, uint8_t* sums, int8_t* q8) const;
  /// Scores by signs of all indexed tokens of a slot, token index().begin() + i at [i] of each
  /// query's row; rows hold whole groups of kCodeKeys.
  void scan(int slot, int ordinal, int kv_head, std::span<const CodeQuery> queries, float* scores,
            int64_t score_stride) const;
  /// Refines scores[keys[i]] of one query, in place, and lists them in `refined`.
  void refine(int slot, int ordinal, int kv_head, const CodeQuery& query,
              std::span<const int32_t> keys, float* scores, float* refined) const;
  /// The means of values in the order of scores; `rows` gets at most blocks(slot) of them. Returns
  /// how many.
  int means(int slot, int ordinal, int kv_head, MeanRows* rows) const;

  /// Room for the scores of any slot's keys: whole groups of whole blocks.
  int64_t score_room() const;

  /// Bytes that a tail reads for n keys, next to their scores.
  double tail_bytes(int n) const;
  double scan_bytes_a_key() const { return dims_ / 8.0 + 2; }
  double refine_bytes_a_key() const { return static_cast<double>(code_low_bytes(dims_, bits_)); }

 private:
  /// A GPU's memory for the making of an index.
  struct Coding;

  int64_t group_bytes() const;  // of a cell
  int64_t low_bytes() const;
  int64_t mean_rows() const;
  uint8_t* low(size_t cell) const {
    return bits_ > 1 ? low_ + cell * static_cast<size_t>(low_bytes()) : nullptr;
  }
  void copy_block(const TokenIndex::Piece& piece);
  void index_on_gpu(const TokenIndex::Work& work, std::span<const int> layers,
                    const PagedStore& store, const QueryRing* queries, const int32_t* device_pages);
  void code(const TokenIndex::Piece& piece, const KeyRows& keys, const CodeFrame& frame,
            size_t cell) const;
  void average(const TokenIndex::Piece& piece, const KeyRows& values, size_t cell) const;
  /// Calls do_block(i, cell, n) for every block of a slot.
  template <class DoBlock>
  void for_blocks(int slot, int ordinal, int kv_head, const DoBlock& do_block) const;

  int bits_, dims_;
  Bounds bounds_;
  Geometry geometry_;
  const TokenIndex& index_;
  HeadGrid grid_;
  CodeFrames frames_;
  std::optional<ValueClusters> clusters_;
  std::vector<float> signs_;  // [2, dims] of the rotation
  uint8_t* groups_ = nullptr;
  uint8_t* low_ = nullptr;
  bf16* means_ = nullptr;
  std::byte* coding_ = nullptr;  // on a GPU: Coding
  Exec exec_;
};

}  // namespace tandem::kv
