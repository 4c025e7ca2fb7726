#pragma once
// Where the parts of the workspace of attention's backward pass on a GPU lie.
#include "kernels/attention/attention_backward_cuda.h"

namespace tandem {

/// A tile of rows of a sequence: `rank` tiles are shorter than it, in steps of the inner loop.
struct BackwardTile {
  int seq, rank;
};

/// Of a call: how many tiles there are, and how many pieces of work blocks have taken.
struct BackwardCounts {
  int tiles, taken;
};

/// The workspace of a call of n_rows rows.
struct BackwardWorkspace {
  float* lse;   // [Hq, n_rows] to base 2
  float* sums;  // [Hq, n_rows] dout . out
  BackwardCounts* counts;
  BackwardTile* tiles;  // the longest first
  size_t bytes;

  BackwardWorkspace(void* at, int n_rows, int n_heads) : bytes(0) {
    const auto take = [&](size_t size) {
      void* mine = static_cast<char*>(at) + bytes;
      bytes += (size + 255) / 256 * 256;
      return mine;
    };
    const size_t rows = static_cast<size_t>(n_rows), heads = static_cast<size_t>(n_heads);
    lse = static_cast<float*>(take(rows * heads * sizeof(float)));
    sums = static_cast<float*>(take(rows * heads * sizeof(float)));
    counts = static_cast<BackwardCounts*>(take(sizeof(BackwardCounts)));
    tiles = static_cast<BackwardTile*>(take(rows * sizeof(BackwardTile)));  // none is without rows
  }
};

}  // namespace tandem
