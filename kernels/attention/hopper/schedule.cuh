#pragma once
// Which tile of queries a block works on next, and which tiles of keys that tile meets.
#include "kernels/attention/visibility.h"
#include "kernels/cuda/reduce.cuh"

namespace tandem::hopper {

/// Sequences of one launch: their tile counts are kept in shared memory.
inline constexpr int kMaxSeqs = 1024;

/// How queries are packed into tiles. A tile holds `pack` neighbouring heads of one KV group for
/// kQueries / pack rows, query = row * pack + head: fewer rows a tile, and so fewer masked keys.
struct Packing {
  int shift;        // pack = 1 << shift
  int head_blocks;  // Hq / pack
  int section;      // head blocks that are worked on side by side, so that their keys stay in L2
};

/// A tile of queries: rows [row, row + kQueries / pack) of a sequence, cut off at its n_rows.
struct Tile {
  int seq, row, head_block;
};

/// Fills before[s] = tiles of rows of the sequences before s, s <= n_seqs. Called by all threads.
__device__ inline void count_tiles(const AttentionParams& p, int rows_a_tile, int* before) {
  for (int s = threadIdx.x; s < p.n_seqs; s += blockDim.x)
    before[s + 1] = (p.row_begin[s + 1] - p.row_begin[s] + rows_a_tile - 1) / rows_a_tile;
  if (threadIdx.x == 0) before[0] = 0;
  __syncthreads();
  if (threadIdx.x >= cuda::kWarp) return;
  int sum = 0;
  for (int s = threadIdx.x; s < (p.n_seqs + 31) / 32 * 32; s += cuda::kWarp) {
    int n = s < p.n_seqs ? before[s + 1] : 0;
    for (int step = 1; step < cuda::kWarp; step *= 2) {
      const int left = __shfl_up_sync(cuda::kAllLanes, n, step);
      if (static_cast<int>(threadIdx.x) >= step) n += left;
    }
    if (s < p.n_seqs) before[s + 1] = sum + n;
    sum += __shfl_sync(cuda::kAllLanes, n, cuda::kWarp - 1);
  }
}

/// The tiles of this block, one after another. All tiles stand in one row: a sequence's sections of
/// head blocks one after another, of each section the tiles of rows from the long ones (last rows)
/// to the short, or back in every other section so that length never jumps; the last section ends
/// with the short ones. Blocks take from that row in rounds, forwards and backwards in turn, which
/// gives each nearly the same work where neighbours are nearly equal.
class TileWalk {
 public:
  __device__ TileWalk(const Packing& pack, const int* before, int n_seqs, int rows_a_tile)
      : pack_(pack), before_(before), n_seqs_(n_seqs), rows_a_tile_(rows_a_tile) {}

  __device__ bool next(Tile& tile) {
    const int blocks = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
    const int at = round_ * blocks + (round_ % 2 == 0 ? own : blocks - 1 - own);
    ++round_;
    if (at >= before_[n_seqs_] * pack_.head_blocks) return false;
    while (at >= before_[seq_ + 1] * pack_.head_blocks) ++seq_;
    const int n = before_[seq_ + 1] - before_[seq_];  // tiles of rows
    int left = at - before_[seq_] * pack_.head_blocks;
    const int section = left / (n * pack_.section);
    left -= section * n * pack_.section;
    const int first = section * pack_.section;
    const int width = min(pack_.section, pack_.head_blocks - first);
    const int rank = left / width;
    const int sections = (pack_.head_blocks + pack_.section - 1) / pack_.section;
    const bool long_first = (sections - 1 - section) % 2 == 0;
    tile = {seq_, (long_first ? n - 1 - rank : rank) * rows_a_tile_, first + left % width};
    return true;
  }

 private:
  const Packing pack_;
  const int* before_;
  const int n_seqs_, rows_a_tile_;
  int round_ = 0, seq_ = 0;
};

/// Tiles of kKeys keys that some row of a tile may see, from the last to the first: those of the
/// window, then those of the sinks before it.
template <int kKeys>
struct KeyTiles {
  int count, last, in_window, last_sink;

  __device__ KeyTiles(const AttentionParams& p, const Sequence& s, int row, int rows) {
    const int key_lo = max(s.key_lo, 0);
    const int x_first = s.base + row, x_last = s.base + min(row + rows, s.n_rows) - 1;
    const int end = min(p.key_hi, x_last + 1);
    const int begin = p.window > 0 ? max(key_lo, x_first - p.window + 1) : key_lo;
    const int first = begin / kKeys;
    last = (end - 1) / kKeys;
    in_window = begin < end ? last - first + 1 : 0;
    const int sinks_end = p.window > 0 ? min(p.sinks, end) : 0;
    const int first_sink = key_lo / kKeys;
    last_sink = (sinks_end - 1) / kKeys;
    if (in_window > 0) last_sink = min(last_sink, first - 1);
    const int sink_tiles = key_lo < sinks_end ? max(0, last_sink - first_sink + 1) : 0;
    count = in_window + sink_tiles;
  }
  __device__ int operator[](int i) const {
    return i < in_window ? last - i : last_sink - (i - in_window);
  }
};

}  // namespace tandem::hopper
