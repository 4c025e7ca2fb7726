#pragma once
#include <span>
#include <string>
#include <vector>

#include "kv/policies/centered_keys.h"
#include "kv/policies/token_index.h"
#include "ops/selection.h"

namespace tandem::kv {

/// For every sparse layer and KV head, the sign bits of each indexed key's projections and the norm
/// of the centred key: bits / 8 + 2 bytes a key, from which all its scores can be estimated.
class Signatures {
 public:
  Signatures(int bits, uint64_t seed, const Geometry& geometry, const TokenIndex& index,
             HeadGrid grid);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  void index_tokens(int slot, std::span<const TokenIndex::Piece> pieces,
                    std::span<const int> layers, const KeyCenters& centers,
                    const PagedStore& store);

  int words() const { return bits_ / 32; }
  size_t bits_words() const { return static_cast<size_t>(bits_ + 63) / 64; }
  /// Signatures of queries [n, head_dim] f32: out [n, words]; `bits` is scratch [n, bits_words].
  void sign_queries(const float* q, int n, uint64_t* bits, uint32_t* out) const;
  /// Estimates of (q . centred key) / |q| for all indexed tokens of a slot, token index().begin() +
  /// i at [i] of each query's row.
  void scan(int slot, int ordinal, int kv_head, const uint32_t* queries, int n_queries,
            float* scores, int64_t score_stride) const;
  double bytes_a_key() const { return bits_ / 8.0 + sizeof(bf16); }

 private:
  size_t cell_words() const;
  void sign(const TokenIndex::Piece& piece, const KeyRows& keys, std::span<const float> center,
            uint32_t* signatures, bf16* norms) const;

  int bits_;
  uint64_t seed_;
  Geometry geometry_;
  const TokenIndex& index_;
  HeadGrid grid_;
  Projections projections_;
  SimilarityCurve similarity_;
  uint32_t* signatures_ = nullptr;
  bf16* norms_ = nullptr;
};

}  // namespace tandem::kv
