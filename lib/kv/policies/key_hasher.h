#pragma once
#include <string>

#include "kv/policies/centered_keys.h"
#include "kv/policies/token_index.h"
#include "ops/selection.h"

namespace tandem::kv {

/// How a GPU hashes keys: projections, the centers of sequences, and codes on their way into the
/// tables of LshTables' layout. From the same keys it makes the centers of KeyCenters, but where
/// their sums in f64 round otherwise (kernels/lsh/lsh_cuda.h), and from the same centers the norms
/// and the tables of the CPU, bit for bit, but that the ids of a bucket are in any order.
class KeyHasher {
 public:
  /// capacity  tokens of a block
  /// appends   to blocks that have tokens, too
  KeyHasher(const recipe::Lsh& spec, const Bounds& bounds, HeadGrid grid, int capacity,
            bool appends, Device device);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  /// Brings what does not change.
  void run_on(const Exec&);

  /// A sequence's keys of a layer, in the GPU's memory.
  struct Keys {
    const void* pool;
    const int32_t* pages;
  };
  /// The mean of tokens [begin, end) becomes a slot's center.
  void set_center(int slot, int ordinal, const Keys& keys, int begin, int end);
  void copy_center(int from, int to);
  /// Where tables and norms of a block are: those of KV head h at h times the strides.
  struct Place {
    HashBlocks tables;
    float* norms;
    int64_t norm_stride;
  };
  /// Hashes a piece's tokens into a block, under some KV heads.
  void add(int slot, int ordinal, const Keys& keys, const TokenIndex::Piece& piece, Range heads,
           const Place& to);

  /// Of a slot and its KV heads, [n_kv_heads, head_dim]; slots lie center_stride() apart.
  float* centers(int slot, int ordinal) const;
  int64_t center_stride() const { return static_cast<int64_t>(center_floats(1)); }
  HashRule rule() const;
  /// Tables and norms of KV heads that begin at these addresses, side by side.
  Place place(uint16_t* tables, float* norms) const;
  /// Of the tables of a block and KV head.
  size_t block_elements() const;

 private:
  size_t center_floats(int n_slots) const;
  size_t columns() const;
  int append_tokens() const;

  recipe::Lsh spec_;
  Geometry geometry_;
  int max_seqs_;
  HeadGrid grid_;
  int capacity_;
  bool appends_;
  Device device_;
  Projections projections_;
  Exec exec_;
  uint16_t* codes_ = nullptr;  // of keys that are appended: [KV heads, tables, append_tokens]
  float *centers_ = nullptr, *w_ = nullptr, *columns_ = nullptr;
  double* sums_ = nullptr;  // of a center's keys
  ProjectionPart* parts_ = nullptr;
  float longest_ = 0;  // projection
};

}  // namespace tandem::kv
