#include "kv/policies/signatures.h"

#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "base/parallel.h"

namespace tandem::kv {

Signatures::Signatures(int bits, uint64_t seed, const Geometry& geometry, const TokenIndex& index,
                       HeadGrid grid)
    : bits_(bits),
      seed_(seed),
      geometry_(geometry),
      index_(index),
      grid_(grid),
      projections_(geometry.head_dim, bits),
      similarity_(similarity_curve(bits)) {}

size_t Signatures::cell_words() const {
  return static_cast<size_t>(index_.capacity()) * static_cast<size_t>(words());
}

void Signatures::plan(MemoryPlan& plan, const std::string& prefix) const {
  const size_t cells = grid_.cells(index_.n_blocks());
  plan.add(prefix + ".signatures", cells * cell_words() * sizeof(uint32_t));
  plan.add(prefix + ".norms", cells * static_cast<size_t>(index_.capacity()) * sizeof(bf16));
  projections_.plan(plan, prefix);
}

void Signatures::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse == 0) return;
  signatures_ = static_cast<uint32_t*>(arena.take(prefix + ".signatures"));
  norms_ = static_cast<bf16*>(arena.take(prefix + ".norms"));
  projections_.allocate(arena, prefix, seed_);
  projections_.orthogonalize();
}

void Signatures::index_tokens(int slot, std::span<const TokenIndex::Piece> pieces,
                              std::span<const int> layers, const KeyCenters& centers,
                              const PagedStore& store) {
  const int heads = geometry_.n_kv_heads;
  const auto capacity = static_cast<size_t>(index_.capacity());
  for (const TokenIndex::Piece& piece : pieces) {
    if (piece.copy_of >= 0) {
      const size_t from = grid_.cells(piece.copy_of), to = grid_.cells(piece.block),
                   n = grid_.cells(1);
      std::memcpy(signatures_ + to * cell_words(), signatures_ + from * cell_words(),
                  n * cell_words() * sizeof(uint32_t));
      std::memcpy(norms_ + to * capacity, norms_ + from * capacity, n * capacity * sizeof(bf16));
    }
    parallel_for(grid_.n_sparse * heads, [&](int task) {
      const int ordinal = task / heads, head = task % heads;
      const KeyRows keys(store.k(layers[static_cast<size_t>(ordinal)]), store.pages(slot).data(),
                         head);
      const size_t at = grid_.cell(piece.block, ordinal, head);
      sign(piece, keys, {centers.at(slot, ordinal, head), static_cast<size_t>(geometry_.head_dim)},
           signatures_ + at * cell_words(), norms_ + at * capacity);
    });
  }
}

void Signatures::sign(const TokenIndex::Piece& piece, const KeyRows& keys,
                      std::span<const float> center, uint32_t* signatures, bf16* norms) const {
  constexpr int kRows = 64;
  std::vector<float> rows(kRows * center.size()), row_norms(kRows);
  std::vector<uint64_t> bits(kRows * bits_words());
  for (int begin = 0; begin < piece.n; begin += kRows) {
    const int n = std::min(kRows, piece.n - begin);
    read_centered(keys, piece.token + begin, n, center, rows.data(), row_norms.data());
    for (int i = 0; i < n; ++i)
      norms[piece.offset + begin + i] = to_bf16(row_norms[static_cast<size_t>(i)]);
    projections_.signs(rows.data(), n, {0, bits_}, bits.data());
    signature_pack({.signatures = signatures,
                    .bits = bits.data(),
                    .bit_words = static_cast<int64_t>(bits_words()),
                    .words = words(),
                    .first = piece.offset + begin},
                   {0, n});
  }
}

void Signatures::sign_queries(const float* q, int n, uint64_t* bits, uint32_t* out) const {
  projections_.signs(q, n, {0, bits_}, bits);
  for (int i = 0; i < n; ++i)
    std::memcpy(out + i * words(), bits + static_cast<size_t>(i) * bits_words(),
                static_cast<size_t>(words()) * sizeof(uint32_t));
}

void Signatures::scan(int slot, int ordinal, int kv_head, const uint32_t* queries, int n_queries,
                      float* scores, int64_t score_stride) const {
  const std::vector<int>& blocks = index_.blocks(slot);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t at = grid_.cell(blocks[i], ordinal, kv_head);
    const int n = index_.block_tokens(slot, static_cast<int>(i));
    ops::signature_scan({.scores = scores + static_cast<int64_t>(i) * index_.capacity(),
                         .score_stride = score_stride,
                         .signatures = signatures_ + at * cell_words(),
                         .norms = norms_ + at * static_cast<size_t>(index_.capacity()),
                         .queries = queries,
                         .words = words(),
                         .n_queries = n_queries,
                         .n_keys = n,
                         .similarity = similarity_},
                        {0, n});
  }
}

}  // namespace tandem::kv
