#pragma once
// The order in which query heads that share a set of keys take them: contract. Included by .cu.
//
// A key ranks by how far its score lies above a head's reference, for the head where that is most.
// The reference is about the least score of the keys that the head would choose for itself: the
// one of that rank in a sample. It and the largest difference are exact, so that equal scores give
// the same order on every device.
#include "base/types.h"

namespace tandem {

/// Of n keys: tiles of neighbours at even distances, all of them where there are few.
struct KeySample {
  static constexpr int kTileKeys = 16, kMostTiles = 128;
  int tiles_of_all, tiles;

  explicit constexpr KeySample(int n)
      : tiles_of_all(n / kTileKeys), tiles(tiles_of_all < kMostTiles ? tiles_of_all : kMostTiles) {}
  constexpr int size() const { return tiles * kTileKeys; }
  /// The first key of a tile.
  constexpr int key(int tile) const {
    return static_cast<int>(int64_t{tile} * tiles_of_all / tiles) * kTileKeys;
  }
  /// How many scores of the sample exceed a head's reference, of `chosen` < n keys.
  constexpr int rank(int chosen, int n) const {
    return static_cast<int>(int64_t{size()} * chosen / n);
  }
};

/// The reference of a head that would choose `chosen` of n keys by these scores. n >= 16
float group_reference(const float* scores, int n, int chosen);

struct GroupRanksParams {
  float* ranks;         // [n] out: max over heads of score - reference
  const float* scores;  // [n_heads, stride]
  int64_t stride;
  const float* references;  // [n_heads]
  int n_heads, n;
};
void group_ranks(const GroupRanksParams&);

}  // namespace tandem
