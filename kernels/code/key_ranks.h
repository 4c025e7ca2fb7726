#pragma once
// By what keys are chosen, on every device the same: contract. Included by .cu.
//
// Candidates are the keys whose scores by signs reach a floor, by a sample of the keys the score
// that as many reach as are to be refined: no selection among all keys, and equal scores give equal
// candidates.
//
// Query heads that share a set of keys rank a key by how far its score lies above a head's
// reference, for the head where that is most. The reference is about the least score of the keys
// that the head would choose for itself, by the same sample, and the floor is one of ranks. The
// largest difference is exact.
#include "base/types.h"

namespace tandem {

/// Of n keys: tiles of neighbours at even distances, all of them where there are few.
struct KeySample {
  static constexpr int kTileKeys = 16, kMostTiles = 128, kMostKeys = kTileKeys * kMostTiles;
  int tiles_of_all, tiles;

  explicit constexpr KeySample(int n)
      : tiles_of_all(n / kTileKeys), tiles(tiles_of_all < kMostTiles ? tiles_of_all : kMostTiles) {}
  constexpr int size() const { return tiles * kTileKeys; }
  /// The first key of a tile: tile * tiles_of_all / tiles tiles before it.
  constexpr int key(int tile) const {
    if (tiles_of_all <= kMostTiles) return tile * kTileKeys;
    const int whole = tiles_of_all / kMostTiles, rest = tiles_of_all % kMostTiles;
    return (tile * whole + tile * rest / kMostTiles) * kTileKeys;
  }
  /// How many scores of the sample come before the one that about m < n of the n keys reach.
  constexpr int rank(int m, int n) const { return static_cast<int>(int64_t{size()} * m / n); }
};

/// The score of KeySample::rank, from the highest on: about m of the n keys reach it, m < n.
/// n >= KeySample::kTileKeys
float sampled_score(const float* scores, int n, int m);

struct GroupRanksParams {
  float* ranks;         // [n] out: max over heads of score - reference
  const float* scores;  // [n_heads, stride]
  int64_t stride;
  const float* references;  // [n_heads]
  int n_heads, n;
};
void group_ranks(const GroupRanksParams&);

}  // namespace tandem
