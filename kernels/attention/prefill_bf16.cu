// Prefill in bf16 on the portable matrix instruction: any even d, trees, groups of any size. The
// scheme is FlashAttention-2's (Dao 2023): a block has a tile of queries in shared memory and meets
// one page of keys after another, whose copies run ahead.
#include "base/log2.h"
#include "kernels/attention/prefill_portable.cuh"
#include "kernels/attention/rows_bf16.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::portable {
namespace {

constexpr int kKeyTiles = kPageTokens / 8;  // of a page, as the matrix instruction takes keys

/// kWidth: d rounded up to what is compiled; columns from d on are zeros. A warp has kRowTiles
/// tiles of 16 queries: two, whose every load of keys serves twice as many products, as far as sums
/// of kWidth columns leave registers. kUnits: units of a page's keys or values in shared memory.
template <int kWidth_, int kRowTiles_, int kWarps_, int kUnits_, int kBlocks_>
struct Shape {
  static constexpr int kWidth = kWidth_, kRowTiles = kRowTiles_, kUnits = kUnits_;
  static constexpr int kThreads = kWarps_ * cuda::kWarp, kBlocks = kBlocks_;
  static constexpr int kWarpQueries = 16 * kRowTiles, kQueries = kWarps_ * kWarpQueries;
  static constexpr int kRowBytes = 2 * kWidth, kUnitBytes = kPageTokens * kRowBytes;
  static constexpr int kTileBytes = kQueries * kRowBytes + kUnits * kUnitBytes;
};

/// Starts copying a page of whole rows of kWidth elements.
template <class S>
__device__ void copy_whole_page(uint32_t to, const __nv_bfloat16* from) {
  constexpr unsigned kPieces = S::kRowBytes / 16, kRows = S::kThreads / kPieces;
  const unsigned row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  from += threadIdx.x * 8;
#pragma unroll
  for (unsigned i = 0; i < kPageTokens; i += kRows)
    cuda::copy_async<16>(to + place<S>(row + i, piece), from + i * S::kWidth);
}

/// What all threads of a block know, in shared memory: registers are short.
template <class S>
struct BlockView {
  static constexpr int kWarps = S::kThreads / cuda::kWarp;
  QueryTile tile;
  VisiblePages keys;
  WholePages whole[kWarps];                // to the warps' rows
  uint64_t seen[kWarps][S::kWarpQueries];  // keys of a page, where not all
  bool aligned;                            // rows of q and of the pools, to 16 bytes
  bool full;                               // that, and d is kWidth

  /// Where in the pools the i-th page lies; -1 where there is none. The second condition follows
  /// from the first; without it ptxas spills on sm_80, 86, 89 and 100.
  __device__ int page(int i) const {
    const int page = keys[i];
    return i < keys.count && page * kPageTokens < tile.s.end ? __ldg(tile.s.pages + page) : -1;
  }
};

/// Starts copying the keys or values of the i-th page, which lies at `page`; after the last one
/// there is nothing to copy.
template <class S>
__device__ void copy_page(const AttentionParams& p, const BlockView<S>& b, const void* pool, int i,
                          int page, uint32_t to) {
  if (i < b.keys.count) {
    const int64_t at =
        (static_cast<int64_t>(page) * p.n_kv_heads + b.tile.kv_head) * kPageTokens * p.head_dim;
    const auto* from = static_cast<const __nv_bfloat16*>(pool) + at;
    const int written = page < 0 ? 0 : b.tile.written(b.keys[i]);
    if (b.full && written == kPageTokens)
      copy_whole_page<S>(to, from);
    else
      copy_any_rows<S, kPageTokens>(to, p.head_dim, b.aligned, [&](int row) {
        return row < written ? from + static_cast<int64_t>(row) * p.head_dim : nullptr;
      });
  }
  cuda::copies_commit();  // though empty: groups are counted
}

/// One warp's queries: the running softmax and the sums. Lane 4 g + t has rows g and g + 8 of a
/// tile.
template <class S>
struct WarpState {
  float o[S::kRowTiles][S::kWidth / 8][4] = {};
  float max[S::kRowTiles][2];       // of raw scores
  float sum[S::kRowTiles][2] = {};  // this lane's share

  __device__ WarpState() {
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t) max[t][0] = max[t][1] = -INFINITY;
  }

  /// s = Q K^T. Both places are lanes'.
  __device__ static void scores(float (&s)[S::kRowTiles][kKeyTiles][4], uint32_t queries,
                                uint32_t keys) {
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][j][e] = 0;
    constexpr int kUnroll = S::kRowTiles > 2 ? 2 : S::kWidth / 16;  // all of them spill on sm_120
#pragma unroll kUnroll
    for (int k = 0; k < S::kWidth / 16; ++k) {
      uint32_t a[S::kRowTiles][4];
#pragma unroll
      for (int t = 0; t < S::kRowTiles; ++t)
        cuda::load_tiles(a[t], columns_at<S>(queries, k) + t * 16 * S::kRowBytes);
#pragma unroll
      for (int j = 0; j < kKeyTiles; j += 2) {
        uint32_t b[4];
        cuda::load_tiles(b, columns_at<S>(keys, k) + j * 8 * S::kRowBytes);
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
          cuda::mma_bf16(s[t][j], a[t], b[0], b[1]);
          cuda::mma_bf16(s[t][j + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  /// Scores of keys that a query does not see become -inf.
  __device__ static void hide(float (&s)[S::kRowTiles][kKeyTiles][4],
                              const uint64_t (&seen)[S::kWarpQueries]) {
    const unsigned lane = threadIdx.x % cuda::kWarp;
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint64_t row = seen[16 * t + 8 * h + lane / 4] >> (lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (((row >> (j * 8 + e)) & 1) == 0) s[t][j][2 * h + e] = -INFINITY;
      }
  }

  /// Scores become weights, of which the largest is 1: rounding it to bf16 costs nothing. Most
  /// pages raise no maximum, and the sums stay as they are. A query that has seen no key yet keeps
  /// max = -inf and gets zeros, so that pages of which it sees nothing leave no trace in its bits.
  __device__ void weigh(float (&s)[S::kRowTiles][kKeyTiles][4], float to_log2) {
    float by[S::kRowTiles][2];
    bool grown = false;
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = fmaxf(s[t][0][2 * h], s[t][0][2 * h + 1]);
#pragma unroll
        for (int j = 1; j < kKeyTiles; ++j)
          top = fmaxf(top, fmaxf(s[t][j][2 * h], s[t][j][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, 1));
        top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, 2));
        const float before = max[t][h];
        grown |= top > before;
        max[t][h] = fmaxf(before, top);
        const float from = max[t][h] == -INFINITY ? 0.0f : max[t][h];
        by[t][h] = cuda::exp2_fast((before - from) * to_log2);  // 1 to the bit where it stays
        const float shift = -from * to_log2;
        float part = 0;
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[t][j][2 * h + e];
            x = cuda::exp2_fast(fmaf(x, to_log2, shift));
            part += x;
          }
        sum[t][h] = fmaf(sum[t][h], by[t][h], part);
      }
    if (!__any_sync(cuda::kAllLanes, grown)) return;
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
      for (int j = 0; j < S::kWidth / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[t][j][e] *= by[t][e / 2];
  }

  /// o += P V.
  __device__ void add_values(const float (&s)[S::kRowTiles][kKeyTiles][4], uint32_t values) {
#pragma unroll
    for (int k = 0; k < kKeyTiles / 2; ++k) {
      uint32_t a[S::kRowTiles][4];
#pragma unroll
      for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a[t][i] =
              cuda::pack_bf16(s[t][2 * k + i / 2][i % 2 * 2], s[t][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int j = 0; j < S::kWidth / 8; j += 2) {
        uint32_t b[4];
        cuda::load_tiles_transposed(b, columns_at<S>(values, j / 2) + k * 16 * S::kRowBytes);
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
          cuda::mma_bf16(o[t][j], a[t], b[0], b[1]);
          cuda::mma_bf16(o[t][j + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  /// Writes the results of the warp's queries, the tile's from `first` on.
  template <class Out>
  __device__ void store(const AttentionParams& p, const QueryTile& tile, int first) {
    const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float all = sum[t][h];
        all += __shfl_xor_sync(cuda::kAllLanes, all, 1);
        all += __shfl_xor_sync(cuda::kAllLanes, all, 2);
        const int query = first + 16 * t + 8 * h + lane / 4;
        if (query >= tile.n) continue;
        const int64_t at = tile.vector_at(p, query);
        Out* out = static_cast<Out*>(p.out) + at * p.head_dim;
        const float by = all > 0 ? 1.0f / all : 0.0f;
#pragma unroll
        for (int j = 0; j < S::kWidth / 8; ++j) {
          const int column = 8 * j + 2 * (lane % 4);
          if (column >= p.head_dim) continue;
          const cuda::Vector<Out, 2> pair = {cuda::from_float<Out>(o[t][j][2 * h] * by),
                                             cuda::from_float<Out>(o[t][j][2 * h + 1] * by)};
          *reinterpret_cast<cuda::Vector<Out, 2>*>(out + column) = pair;
        }
        if (p.lse != nullptr && lane % 4 == 0)
          p.lse[at] = all > 0 ? fmaf(max[t][h], p.scale, log2f(all) * kLn2) : -INFINITY;
      }
  }
};

/// Fills block.seen for the queries of this warp.
template <class S>
__device__ void look(const AttentionParams& p, BlockView<S>& block, int page, int warp) {
  for (int query = threadIdx.x % cuda::kWarp; query < S::kWarpQueries; query += cuda::kWarp) {
    const int row = block.tile.row(min(warp * S::kWarpQueries + query, block.tile.n - 1));
    block.seen[warp][query] = visible_slots(p, block.tile.s, row, page * kPageTokens);
  }
  __syncwarp();
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    prefill_bf16_kernel(const __grid_constant__ AttentionParams p, const TileOrder order,
                        const bool aligned) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& block = *reinterpret_cast<BlockView<S>*>(memory + S::kTileBytes);
  const int warp = __shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x) / cuda::kWarp, 0);
  const int first = warp * S::kWarpQueries;
  {
    const QueryTile tile(p, order, S::kQueries);
    if (tile.empty()) return;
    const int last = min(first + S::kWarpQueries, tile.n) - 1;
    block.whole[warp] = WholePages(p, tile.s, tile.row(min(first, last)), tile.row(last));
    if (threadIdx.x == 0) {
      block.tile = tile;
      block.keys = VisiblePages(p, tile.s, tile.row_first, tile.row_last);
      block.aligned = aligned;
      block.full = aligned && p.head_dim == S::kWidth;
    }
  }
  __syncthreads();
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint32_t units = shared + S::kQueries * S::kRowBytes;
  copy_any_rows<S, S::kQueries>(shared, p.head_dim, aligned, [&](int i) {
    return i < block.tile.n
               ? static_cast<const __nv_bfloat16*>(p.q) + block.tile.vector_at(p, i) * p.head_dim
               : nullptr;
  });
  // Of units in turn keys 0, values 0, keys 1, ... the next kUnits - 1 are under way.
  uint32_t k_unit = units, v_unit = units + S::kUnitBytes, next_unit = units + 2 * S::kUnitBytes;
  int next = block.page(0);
  copy_page(p, block, p.k_pool, 0, next, k_unit);
  if constexpr (S::kUnits == 3) {
    copy_page(p, block, p.v_pool, 0, next, v_unit);
    next = block.page(1);
  }
  const uint32_t k_lane = lane_place<S>(true), v_lane = lane_place<S>(false);
  const uint32_t queries = shared + first * S::kRowBytes + v_lane;
  WarpState<S> state;
#pragma unroll 1
  for (int i = 0; i < block.keys.count; ++i) {
    cuda::copies_wait<S::kUnits - 2>();
    __syncthreads();
    if constexpr (S::kUnits == 3)
      copy_page(p, block, p.k_pool, i + 1, next, next_unit);
    else
      copy_page(p, block, p.v_pool, i, next, v_unit);
    const bool whole = block.whole[warp].hold(block.keys[i]);
    if (!whole) look(p, block, block.keys[i], warp);
    float s[S::kRowTiles][kKeyTiles][4];
    state.scores(s, queries, k_unit + k_lane);
    if (!whole) state.hide(s, block.seen[warp]);
    cuda::copies_wait<S::kUnits - 2>();
    __syncthreads();
    if constexpr (S::kUnits == 3) {
      copy_page(p, block, p.v_pool, i + 1, next, k_unit);
      next = block.page(i + 2);
    } else {
      next = block.page(i + 1);
      copy_page(p, block, p.k_pool, i + 1, next, k_unit);
    }
    state.weigh(s, p.scale * kLog2E);
    state.add_values(s, v_unit + v_lane);
    if constexpr (S::kUnits == 3) {
      const uint32_t used = v_unit;
      v_unit = k_unit;
      k_unit = next_unit;
      next_unit = used;
    }
  }
  if (p.out_dtype == DType::bf16)
    state.template store<__nv_bfloat16>(p, block.tile, first);
  else
    state.template store<float>(p, block.tile, first);
}

template <class S>
void launch(const AttentionParams& p, const AttentionRows& rows, cudaStream_t stream) {
  const auto at_16 = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  const bool aligned = p.head_dim % 8 == 0 && at_16(p.q) && at_16(p.k_pool) && at_16(p.v_pool);
  const TileOrder order = tile_order(p, rows, S::kQueries);
  const auto kernel = prefill_bf16_kernel<S>;
  constexpr int kBytes = S::kTileBytes + sizeof(BlockView<S>);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<grid_of(p, order), S::kThreads, kBytes, stream>>>(p, order, aligned);
}

}  // namespace

void prefill_bf16(const AttentionParams& p, const AttentionRows& rows, cudaStream_t stream) {
  if (p.head_dim <= 64)
    launch<Shape<64, 3, 4, 3, 2>>(p, rows, stream);
  else if (p.head_dim <= 128)
    launch<Shape<128, 2, 4, 3, 2>>(p, rows, stream);
  else
    launch<Shape<256, 1, 4, 2, 1>>(p, rows, stream);
}

}  // namespace tandem::portable
