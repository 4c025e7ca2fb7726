#pragma once
#include <span>
#include <string>
#include <vector>

#include "kv/policies/centered_keys.h"
#include "kv/policies/token_index.h"
#include "ops/selection.h"

namespace tandem::kv {

/// Of hash tables over a block of tokens, under one KV head.
size_t hash_block_bytes(const recipe::Lsh& spec, int capacity);
/// The projections of all tables, a group of tables padded to whole words.
Projections lsh_projections(const recipe::Lsh& spec, int head_dim);

/// MagicPIG's index: for every sparse layer and KV head, hash tables over the blocks of a
/// TokenIndex, and the norms of the centred keys. Collisions choose keys; norms give their
/// inclusion probabilities.
class LshTables {
 public:
  static constexpr int kLogUIntervals = 1024;  // 8e-6 off: better than f32 evaluates it

  LshTables(const recipe::Lsh& spec, const Geometry& geometry, const TokenIndex& index,
            HeadGrid grid);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);

  /// Hashes the pieces' tokens of a slot into their blocks, in all layers.
  void index_tokens(const TokenIndex::Work& work, std::span<const int> layers,
                    const KeyCenters& centers, const PagedStore& store);
  /// Copies the tables and norms of a new block's tokens under one KV head of a sparse layer from a
  /// GPU, which made them in a block of the same layout: work on a queue.
  /// shapes   tables hash_block_bytes, norms [capacity], in the GPU's memory
  void copy_out(const uint16_t* tables, const float* norms, const TokenIndex::Piece& piece,
                int ordinal, int kv_head, cuda::Queue& queue) const;
  /// Where all of them are, and all norms.
  std::span<std::byte> memory() const;
  std::span<std::byte> norm_memory() const;

  /// Codes of queries [n, head_dim] f32: n x tables.
  void hash_queries(const float* q, int n, uint64_t* bits, uint16_t* codes) const;
  size_t query_bits_words() const { return words_; }
  /// Adds to a list the keys that collide with a query of these codes: a segment for each block,
  /// weighted by the keys' norms.
  /// ids      room for all tokens + 16; counters  counter_bytes()
  void add_collisions(const KeyQuery& query, int ordinal, const uint16_t* codes, uint8_t* counters,
                      int32_t* ids, KeyList& list) const;
  size_t counter_bytes() const { return static_cast<size_t>(index_.capacity()) + 64; }

  int tables() const { return spec_.tables; }
  std::span<const float> log_u() const { return log_u_; }
  /// Share of `n` keys at random angles that collide, times the factor that real keys show.
  double expected_share() const;
  /// Bytes of the tables of `n` tokens that one query is expected to read.
  double expected_probe_bytes(int n) const;

 private:
  struct BuildTask;
  struct BuildScratch;
  int probe(int slot, int i, int ordinal, int kv_head, const uint16_t* codes, uint8_t* counters,
            int32_t* ids) const;
  const float* norms(int slot, int i, int ordinal, int kv_head) const;
  double probe_bytes(int n_tokens) const;
  size_t cells() const { return grid_.cells(index_.n_blocks()); }
  size_t block_bytes() const { return hash_block_bytes(spec_, index_.capacity()); }
  size_t scratch_bytes() const;
  HashBlock block(int block, int ordinal, int kv_head, int n_tokens) const;
  void copy_block(int from, int to);
  void build(const BuildTask& task, std::byte* scratch);

  recipe::Lsh spec_;
  Geometry geometry_;
  const TokenIndex& index_;
  HeadGrid grid_;
  size_t words_;  // of a query's sign bits
  Projections projections_;
  std::vector<float> log_u_;
  char* tables_ = nullptr;
  float* norms_ = nullptr;
  std::byte* scratch_ = nullptr;  // [threads]
};

}  // namespace tandem::kv
