#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kv/policies/device_index.h"
#include "kv/policies/kept_lists.h"
#include "kv/policies/scratch.h"
#include "kv/policies/token_index.h"
#include "kv/policy.h"

namespace tandem::kv {

/// Chunks of each sequence's keys, known by their means, and the choosing of them by queries, on
/// either device. Means lie in blocks that forks share; each is worked out once, when the first
/// choice after its tokens needs it. Lists have the best chunks first, so that a shorter list is
/// the choice of fewer: on the CPU by tokens, on a GPU by chunks, which are runs of a KeyLists.
/// Where another reader has the keys in host memory, a GPU keeps no means: those of a layer are
/// worked out with each choice, part by part, from keys that pass by.
class ChunkKeys {
 public:
  struct Rule {
    int budget = 0;  // tokens of a list at most
    int chunk = 8;   // tokens, a divisor of 64
    recipe::ScoreGroup group = recipe::ScoreGroup::sum;
  };
  /// layers   of the model, those that have lists
  ChunkKeys(const Rule& rule, std::vector<int> layers, const Bounds& bounds);

  void plan(MemoryPlan& plan, const std::string& prefix) const;
  void allocate(Arena& arena, const std::string& prefix);
  void run_on(const Exec& exec);
  void read_queries(const QueryRing& queries) { queries_ = &queries; }

  /// Chunks of a list at most: none where no text is longer than the budget.
  int capacity() const {
    return bounds_.max_tokens > rule_.budget ? rule_.budget / rule_.chunk : 0;
  }
  /// What the index of a slot lacks of the tokens before `end`, a multiple of the chunk: means of
  /// all layers, which `choose` then makes.
  TokenIndex::Work extend(int slot, int end);
  /// Queries of tokens, all held.
  struct Queries {
    int first, end;
  };
  /// Chooses among the chunks of the work's tokens, under the layers that its ordinals say: chunk
  /// 0, and of the others the best, `n` in all. Each layer needs it once after `extend`.
  /// store    of these layers, with the keys of all these tokens
  void choose(const TokenIndex::Work& work, const Queries& queries, int n, const PagedStore& store);
  /// Makes chunk 0 the slot's list, of all layers.
  void choose_first(int slot);
  /// A sequence's page table in a store, where choices are made; until the next call of this or
  /// `choose`.
  const int32_t* pages_of(int slot, const PagedStore& store);
  /// Whether a slot has means.
  bool has_means(int slot) const { return !index_.empty(slot); }
  /// A slot's text is cut to n tokens: the means of chunks beyond go.
  void cut(int slot, int n);
  void fork(int from, int to);
  void release(int slot);

  const KeptLists& kept() const { return kept_; }
  KeptLists& kept() { return kept_; }
  /// Keys and means of a layer that a choice reads.
  int keys_read(const TokenIndex::Work& work) const;

 private:
  struct CpuScratch;
  struct GpuScratch;

  bool on_gpu() const { return bounds_.on_gpu(); }
  bool keeps_means() const { return !on_gpu() || bounds_.far_layers.empty(); }
  const Geometry& geometry() const { return bounds_.geometry; }
  const std::vector<int>& layers() const { return kept_.layers(); }
  int n_layers() const { return static_cast<int>(layers().size()); }
  HeadGrid grid() const { return {n_layers(), geometry().n_kv_heads}; }
  /// Chunks of a sequence at most, and of a block.
  int max_chunks() const { return bounds_.max_tokens / rule_.chunk; }
  int block_chunks() const { return index_.capacity() / rule_.chunk; }
  size_t mean_bytes() const;
  size_t means_bytes() const { return grid().cells(index_.n_blocks()) * cell_bytes(); }
  size_t cell_bytes() const { return static_cast<size_t>(block_chunks()) * mean_bytes(); }
  /// The means of a block under a sparse layer and KV head, [block_chunks, d].
  std::byte* means(int block, int ordinal, int kv_head) const {
    return means_ + grid().cell(block, ordinal, kv_head) * cell_bytes();
  }
  /// Those of a slot, from layer `ordinal` on.
  ChunkBlocks blocks_of(int slot, int ordinal) const;
  size_t scratch_bytes() const;
  /// Of a GPU's scores.
  int layers_at_a_time() const;

  void write_means(const TokenIndex::Work& work, const PagedStore& store);
  struct Choice {
    int slot;
    Queries queries;
    int n_chunks, n;
    Range ordinals;
  };
  void choose_list(const Choice& c, int ordinal, int kv_head, const CpuScratch& s) const;
  void choose_on_gpu(const Choice& c);
  void choose_passing(const Choice& c, const PagedStore& store);
  ChunkScoresCudaParams scores_of(const Choice& c, int ordinal, float* scores) const;
  void choose_best(const Choice& c, int ordinal, int n_layers, const GpuScratch& s);

  Rule rule_;
  Bounds bounds_;
  KeptLists kept_;
  TokenIndex index_;
  std::optional<DeviceIndex> device_index_;  // on a GPU
  Exec exec_;
  const QueryRing* queries_ = nullptr;
  std::byte* means_ = nullptr;  // [blocks, sparse layers, KV heads, chunks, d] of the keys' type
  std::byte* scratch_ = nullptr;
  int n_scratch_ = 1;
};

}  // namespace tandem::kv
