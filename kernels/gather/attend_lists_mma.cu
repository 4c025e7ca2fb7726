// Rows of a list come into shared memory 16 at a time, a warp's by its own copies, and tensor
// cores take them for up to eight heads at once. Weights are products' operands as sums of two bf16
// numbers, in a head's row and in the row eight below, which costs no instruction.
#include "kernels/attention/rows_bf16.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/gather/list_state.cuh"

namespace tandem {
namespace {

using cuda::lane_of;
using cuda::warp_of;

constexpr int kMostHeads = 8;

/// Rows of up to kWidth_ elements.
template <int kWidth_>
struct MmaShape {
  static constexpr int kWidth = kWidth_, kThreads = kWidth > 128 ? 64 : 128;
  static constexpr int kWarps = kThreads / cuda::kWarp;
  static constexpr int kTile = 16;   // rows that a warp takes at a time
  static constexpr int kStages = 2;  // tiles of a warp that are asked for or in use
  static constexpr int kSteps = kWidth / 16;
  static constexpr uint32_t kRowBytes = kWidth * sizeof(__nv_bfloat16);
  static constexpr uint32_t kTileBytes = kTile * kRowBytes;
  static constexpr uint32_t kStageBytes = 2 * kTileBytes;  // keys, then values
  static constexpr uint32_t kBytes = kWarps * kStages * kStageBytes;
  // States of all warps, in place of what they copied.
  static_assert(kWarps * kMostHeads * (kWidth + 2) * sizeof(float) <= kBytes);
};

/// Asks for rows [first, first + 16) of n, zeros after them and beyond d.
template <class S, class RowAt>
__device__ void copy_tile(uint32_t to, int first, int n, int d, const RowAt& row_at) {
  constexpr unsigned kPieces = S::kWidth / 8, kRows = cuda::kWarp / kPieces;
  const unsigned lane = threadIdx.x % cuda::kWarp, piece = lane % kPieces;
#pragma unroll
  for (unsigned i = 0; i < S::kTile; i += kRows) {
    const unsigned row = i + lane / kPieces;
    const int at = first + static_cast<int>(row);
    row_at(to + portable::place<S>(row, piece), min(at, n - 1), piece * 8,
           at < n && static_cast<int>(piece) * 8 < d);
  }
}

/// Calls use(tile, address) for the warp's tiles among `tiles`, whose rows copy(tile, address) has
/// asked for before.
template <class S, class Copy, class Use>
__device__ void each_tile(uint32_t memory, int tiles, const Copy& copy, const Use& use) {
  const uint32_t own = memory + static_cast<uint32_t>(warp_of()) * S::kStages * S::kStageBytes;
  int asked = warp_of();
  for (int stage = 0; stage < S::kStages; ++stage, asked += S::kWarps) {
    if (asked < tiles) copy(asked, own + stage * S::kStageBytes);
    cuda::copies_commit();
  }
  uint32_t stage = 0;
#pragma unroll 1
  for (int tile = warp_of(); tile < tiles; tile += S::kWarps, asked += S::kWarps) {
    cuda::copies_wait<S::kStages - 1>();
    __syncwarp();
    use(tile, own + stage * S::kStageBytes);
    __syncwarp();
    if (asked < tiles) copy(asked, own + stage * S::kStageBytes);
    cuda::copies_commit();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
}

/// The softmax state of head lane / 4 over a warp's keys, in units of log2; l of the lane's keys
/// alone. Of o the lane has columns 8 j + lane % 4 * 2 and the next, in two parts.
template <class S>
struct HeadState {
  float m = -INFINITY, l = 0, o[2 * S::kSteps][4] = {};

  /// The lane's scores of a tile become weights.
  __device__ void weigh(float (&x)[4]) {
    float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    most = fmaxf(most, __shfl_xor_sync(cuda::kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(cuda::kAllLanes, most, 2));
    if (__any_sync(cuda::kAllLanes, most > m)) {
      const float grown = fmaxf(m, most), shrink = grown > m ? exp2f(m - grown) : 1.0f;
      m = grown;
      l *= shrink;
#pragma unroll
      for (auto& column : o)
#pragma unroll
        for (float& part : column) part *= shrink;
    }
    const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll
    for (float& score : x) score = exp2f(score - base);
  }
  /// Adds a tile's values by weights of rows lane % 4 * 2, the next, and those eight below.
  __device__ void add(const float (&weight)[4], uint32_t values) {
    l += weight[0] + weight[1] + (weight[2] + weight[3]);
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = weight[2 * i], y = weight[2 * i + 1];
      const uint32_t high = cuda::pack_bf16(x, y);
      a[2 * i] = high;
      a[2 * i + 1] =
          cuda::pack_bf16(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
    }
    const uint32_t at = values + portable::lane_place<S>(false);
#pragma unroll
    for (int k = 0; k < S::kSteps; ++k) {
      uint32_t b[4];
      cuda::load_tiles_transposed(b, portable::columns_at<S>(at, k));
      cuda::mma_bf16(o[2 * k], a, b[0], b[1]);
      cuda::mma_bf16(o[2 * k + 1], a, b[2], b[3]);
    }
  }
  /// Writes the joined states of the block's warps, of n heads from `head` on; memory: theirs.
  __device__ void write(const AttendListsParams& p, int part, int row, int head, int n,
                        bool has_sign, unsigned char* memory) {
    float* const m_of = reinterpret_cast<float*>(memory);
    float* const l_of = m_of + S::kWarps * kMostHeads;
    float* const o_of = l_of + S::kWarps * kMostHeads;
    l += __shfl_xor_sync(cuda::kAllLanes, l, 1);
    l += __shfl_xor_sync(cuda::kAllLanes, l, 2);
    const int h = lane_of() / 4, at = warp_of() * kMostHeads + h;
    __syncthreads();
    if (h < n) {
      m_of[at] = m, l_of[at] = l;
#pragma unroll
      for (int j = 0; j < 2 * S::kSteps; ++j) {
        const int c = j * 8 + lane_of() % 4 * 2;
        if (c >= p.d) continue;
        o_of[at * S::kWidth + c] = o[j][0] + o[j][2];
        o_of[at * S::kWidth + c + 1] = o[j][1] + o[j][3];
      }
    }
    __syncthreads();
    for (int i = 0; i < n; ++i)
      write_joined(p, part, row, head + i, has_sign,
                   {.m = m_of + i,
                    .l = l_of + i,
                    .o = o_of + i * S::kWidth,
                    .n = S::kWarps,
                    .stride = kMostHeads,
                    .o_stride = kMostHeads * S::kWidth});
    __syncthreads();
  }
};

/// The queries of up to eight heads as an operand, zeros for others.
template <class S>
struct HeadQueries {
  uint32_t words[S::kSteps][2];

  __device__ HeadQueries(const AttendListsParams& p, int row, int head, int n) {
    const int h = lane_of() / 4;
    const auto* q = static_cast<const __nv_bfloat16*>(p.q) +
                    (int64_t{row} * p.n_heads + head + min(h, n - 1)) * p.d;
#pragma unroll
    for (int i = 0; i < 2 * S::kSteps; ++i) {
      const int c = i * 8 + lane_of() % 4 * 2;
      words[i / 2][i % 2] = h < n && c < p.d ? *reinterpret_cast<const uint32_t*>(q + c) : 0;
    }
  }
  /// The products with a tile's keys lane % 4 * 2, the next, and those eight below.
  __device__ void times(uint32_t keys, float (&dot)[4]) const {
    float of_pair[2][4] = {};
    const uint32_t at = keys + portable::lane_place<S>(true);
#pragma unroll
    for (int k = 0; k < S::kSteps; ++k) {
      uint32_t b[4];
      cuda::load_tiles(b, portable::columns_at<S>(at, k));
      const uint32_t a[4] = {words[k][0], 0, words[k][1], 0};
      cuda::mma_bf16(of_pair[0], a, b[0], b[1]);
      cuda::mma_bf16(of_pair[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) dot[i] = of_pair[i / 2][i % 2];
  }
};
/// Which key of a tile a lane's number i belongs to.
__device__ int key_of(int i) { return i / 2 * 8 + lane_of() % 4 * 2 + i % 2; }

/// The tails of n heads of a KV head from `head` on, the first of them number `number` of the call.
template <class S>
__device__ void attend_tails(const AttendListsParams& p, const ListOf& list, int64_t number, int n,
                             uint32_t memory, HeadState<S>& state) {
  const TailRuns runs(p, list);
  const int h = min(lane_of() / 4, n - 1);
  const float* masses = p.tails.masses + (number + h) * p.tails.mass_stride;
  state.m = p.tails.origin[number + h] * kLog2E;
  each_tile<S>(
      memory, (runs.n + S::kTile - 1) / S::kTile,
      [&](int tile, uint32_t to) {
        copy_tile<S>(to, tile * S::kTile, runs.n, p.d,
                     [&](uint32_t at, int run, unsigned column, bool wanted) {
                       cuda::copy_async<16>(at, runs.mean(run) + column, wanted);
                     });
      },
      [&](int tile, uint32_t at) {
        float mass[4];
        for (int i = 0; i < 4; ++i) {
          const int run = tile * S::kTile + key_of(i);
          mass[i] = run < runs.n ? masses[run] : 0.0f;
        }
        state.add(mass, at);
      });
}

/// Block (x, y): part x of the keys of list y, of which none has more than `split`; after the parts
/// come tails, those of a KV head's heads together.
template <class S>
__global__ void __launch_bounds__(S::kThreads)
    attend_lists(const AttendListsParams p, int parts, int split) {
  extern __shared__ __align__(128) unsigned char stages[];
  const uint32_t memory = cuda::shared_address(stages);
  cuda::start_after_previous();
  const int64_t number = blockIdx.y;
  const int part = static_cast<int>(blockIdx.x);
  const ListOf list(p, p.rows.begin * (p.n_heads / p.lists.heads) + static_cast<int>(number));
  if (part == parts) {
    const int group = p.n_heads / p.n_kv_heads;
    if (list.head % group != 0) return;
    for (int first = 0; first < group; first += kMostHeads) {
      const int n = min(group - first, kMostHeads);
      HeadState<S> state;
      if (list.exists()) attend_tails<S>(p, list, number * p.lists.heads + first, n, memory, state);
      state.write(p, parts, list.row, list.head + first, n, p.tails.corrected, stages);
    }
    return;
  }
  const ListShare share(list.exists() ? p.lists.count[number] : 0, part, parts, split);
  // Of each key its row, the bias of its score and its norm.
  int* const rows = reinterpret_cast<int*>(stages + S::kBytes);
  float* const bias = reinterpret_cast<float*>(rows + split);
  float* const norms = bias + split;
  ListWeights weights(p.lists, number, share.begin);
  const int32_t* ids = p.lists.ids + number * p.lists.stride + share.begin;
  for (int i = static_cast<int>(threadIdx.x); i < share.n; i += S::kThreads) {
    rows[i] = list.pool_row(p, ids[i]);
    if (weights.bias != nullptr) bias[i] = weights.bias[i];
    if (weights.norms != nullptr) norms[i] = weights.norms[i];
  }
  if (weights.bias != nullptr) weights.bias = bias;
  if (weights.norms != nullptr) weights.norms = norms;
  const auto* k_pool = static_cast<const __nv_bfloat16*>(p.k_pool);
  const auto* v_pool = static_cast<const __nv_bfloat16*>(p.v_pool);
  const float scale = p.scale * kLog2E;
  const int tiles = (max(share.n, 0) + S::kTile - 1) / S::kTile;
#pragma unroll 1
  for (int first = 0; first < p.lists.heads; first += kMostHeads) {
    const int n = min(p.lists.heads - first, kMostHeads);
    const HeadQueries<S> q(p, list.row, list.head + first, n);
    HeadState<S> state;
    __syncthreads();
    each_tile<S>(
        memory, tiles,
        [&](int tile, uint32_t to) {
          copy_tile<S>(to, tile * S::kTile, share.n, p.d,
                       [&](uint32_t at, int key, unsigned column, bool wanted) {
                         const int64_t from = int64_t{rows[key]} * p.d + column;
                         cuda::copy_async<16>(at, k_pool + from, wanted);
                         cuda::copy_async<16>(at + S::kTileBytes, v_pool + from, wanted);
                       });
        },
        [&](int tile, uint32_t at) {
          float x[4];
          q.times(at, x);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = tile * S::kTile + key_of(i);
            x[i] = key < share.n
                       ? fmaf(weights.at(p.lists.weights, key, x[i]), kLog2E, x[i] * scale)
                       : -INFINITY;
          }
          state.weigh(x);
          state.add(x, at + S::kTileBytes);
        });
    state.write(p, part, list.row, list.head + first, n, false, stages);
  }
}

template <class S>
size_t shared_bytes(int split) {
  return S::kBytes + 3 * sizeof(float) * static_cast<size_t>(split);
}

template <class F>
auto with_mma_shape(int d, const F& f) {
  return d <= 64 ? f(MmaShape<64>{}) : d <= 128 ? f(MmaShape<128>{}) : f(MmaShape<256>{});
}

}  // namespace

bool attend_lists_mma_takes(const AttendListsParams& p) {
  if (p.dtype != DType::bf16 || p.d > 256 || p.d % 8 != 0) return false;
  return with_mma_shape(p.d, [&](auto shape) {
    return shared_bytes<decltype(shape)>(attend_lists_split(p.lists.most)) <=
           static_cast<size_t>(cuda::gpu().block_shared_bytes);
  });
}

void attend_lists_mma(const AttendListsParams& p, int parts, int split, Stream stream) {
  with_mma_shape(p.d, [&](auto shape) {
    using S = decltype(shape);
    const size_t bytes = shared_bytes<S>(split);
    const auto kernel = attend_lists<S>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
    const int tails = p.tails.masses != nullptr ? 1 : 0;
    cuda::launch(kernel, dim3(static_cast<unsigned>(parts + tails), lists_of(p)), S::kThreads,
                 bytes, 1, stream, p, parts, split);
  });
}

}  // namespace tandem
