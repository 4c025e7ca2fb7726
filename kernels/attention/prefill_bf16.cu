// Prefill in bf16 on the portable matrix instruction: any even d, trees, groups of any size. 64
// queries a block, 16 a warp, a page of keys at a time.
#include "kernels/attention/prefill_portable.cuh"
#include "kernels/cuda/mma_bf16.cuh"

namespace tandem::portable {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * cuda::kWarp, kQueries = 16 * kWarps;

/// kWidth: d rounded up to what is compiled; columns from d on are zeros. Rows are 16 bytes longer,
/// so that eight rows' 16 bytes of one column lie in different banks.
template <int kWidth>
struct Memory {
  static constexpr int kPitch = kWidth + 8;
  __nv_bfloat16 q[kQueries][kPitch], keys[kPageTokens][kPitch], values[kPageTokens][kPitch];
  uint64_t seen[kQueries];
};

/// Copies row `row` of d values (null: zeros) with zeros up to kWidth behind them, lane after lane.
/// d is even, so 4 bytes may be read at a time.
template <int kWidth>
__device__ void copy_row(__nv_bfloat16* to, const __nv_bfloat16* row, int d) {
  const auto* words = reinterpret_cast<const uint32_t*>(row);
  for (int i = threadIdx.x % cuda::kWarp; i < kWidth / 2; i += cuda::kWarp)
    reinterpret_cast<uint32_t*>(to)[i] = row != nullptr && i < d / 2 ? words[i] : 0;
}

/// One warp's 16 queries: the running softmax and the sums. Lane 4 g + t has rows g and g + 8.
template <int kWidth>
struct WarpState {
  float o[kWidth / 8][4] = {};
  float max[2] = {-INFINITY, -INFINITY};  // of scores in units of log 2
  float sum[2] = {};                      // this lane's share

  __device__ void page(const Memory<kWidth>& m, int steps, float scale) {
    const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
    const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
    float s[kPageTokens / 8][4] = {};
    const auto tile_row = [&](const __nv_bfloat16(&rows)[kPageTokens][Memory<kWidth>::kPitch],
                              int row, int column) {
      return static_cast<uint32_t>(__cvta_generic_to_shared(&rows[row][column]));
    };
    for (int k = 0; k < steps; ++k) {
      uint32_t a[4];
      cuda::load_tiles(a, tile_row(m.q, 16 * warp + lane % 16, 16 * k + lane / 16 * 8));
#pragma unroll
      for (int j = 0; j < kPageTokens / 16; ++j) {
        uint32_t b[4];
        cuda::load_tiles(
            b, tile_row(m.keys, 16 * j + lane / 16 * 8 + lane % 8, 16 * k + lane / 8 % 2 * 8));
        cuda::mma_bf16(s[2 * j], a, b[0], b[1]);
        cuda::mma_bf16(s[2 * j + 1], a, b[2], b[3]);
      }
    }
    float rescale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint64_t seen = m.seen[16 * warp + lane / 4 + 8 * h] >> (lane % 4 * 2);
      float top = max[h];
#pragma unroll
      for (int j = 0; j < kPageTokens / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[j][2 * h + e];
          x = (seen >> (8 * j + e)) & 1 ? x * scale : -INFINITY;
          top = fmaxf(top, x);
        }
      top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, 2));
      const float from = top == -INFINITY ? 0.0f : top;  // nothing seen so far: all weights are 0
      rescale[h] = cuda::exp2_fast(max[h] - from);
      max[h] = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < kPageTokens / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          part += s[j][2 * h + e] = cuda::exp2_fast(s[j][2 * h + e] - from);
      sum[h] = sum[h] * rescale[h] + part;
    }
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] *= rescale[e / 2];
#pragma unroll
    for (int k = 0; k < kPageTokens / 16; ++k) {
      const uint32_t a[4] = {cuda::pack_bf16(s[2 * k][0], s[2 * k][1]),
                             cuda::pack_bf16(s[2 * k][2], s[2 * k][3]),
                             cuda::pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]),
                             cuda::pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int j = 0; j < kWidth / 16; ++j) {
        if (j >= steps) break;
        uint32_t b[4];
        cuda::load_tiles_transposed(b,
                                    tile_row(m.values, 16 * k + lane % 16, 16 * j + lane / 16 * 8));
        cuda::mma_bf16(o[2 * j], a, b[0], b[1]);
        cuda::mma_bf16(o[2 * j + 1], a, b[2], b[3]);
      }
    }
  }

  template <class Out>
  __device__ void store(const AttentionParams& p, const QueryTile& tile) {
    const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(cuda::kAllLanes, sum[h], 1);
      sum[h] += __shfl_xor_sync(cuda::kAllLanes, sum[h], 2);
      const int query = static_cast<int>(threadIdx.x) / cuda::kWarp * 16 + lane / 4 + 8 * h;
      if (query >= tile.n) continue;
      const int64_t at = tile.vector_at(p, query);
      Out* out = static_cast<Out*>(p.out) + at * p.head_dim;
      const float by = sum[h] > 0 ? 1.0f / sum[h] : 0.0f;
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (const int column = 8 * j + 2 * (lane % 4) + e; column < p.head_dim)
            out[column] = static_cast<Out>(o[j][2 * h + e] * by);
      constexpr float kLn2 = 0.6931471805599453f;
      if (p.lse != nullptr && lane % 4 == 0)
        p.lse[at] = sum[h] > 0 ? (max[h] + log2f(sum[h])) * kLn2 : -INFINITY;
    }
  }
};

template <int kWidth, class Out>
__global__ void __launch_bounds__(kThreads) prefill_bf16_kernel(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& m = *reinterpret_cast<Memory<kWidth>*>(memory);
  const QueryTile tile(p, kQueries);
  if (tile.empty()) return;
  const int d = p.head_dim, warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  for (int i = warp; i < kQueries; i += kWarps)
    copy_row<kWidth>(
        m.q[i],
        i < tile.n ? static_cast<const __nv_bfloat16*>(p.q) + tile.vector_at(p, i) * d : nullptr,
        d);
  WarpState<kWidth> state;
  constexpr float kLog2E = 1.4426950408889634f;
  for (int page = 0; page < tile.n_pages(); ++page) {
    __syncthreads();
    if (!tile.look(p, page, kQueries, m.seen)) continue;
    const auto* keys = static_cast<const __nv_bfloat16*>(p.k_pool) + tile.page_at(p, page);
    const auto* values = static_cast<const __nv_bfloat16*>(p.v_pool) + tile.page_at(p, page);
    const int written = tile.written(page);
    for (int i = warp; i < kPageTokens; i += kWarps) {
      copy_row<kWidth>(m.keys[i], i < written ? keys + i * d : nullptr, d);
      copy_row<kWidth>(m.values[i], i < written ? values + i * d : nullptr, d);
    }
    __syncthreads();
    state.page(m, (d + 15) / 16, p.scale * kLog2E);
  }
  state.template store<Out>(p, tile);
}

template <int kWidth>
void launch(const AttentionParams& p, const AttentionRows& rows, cudaStream_t stream) {
  const auto kernel = p.out_dtype == DType::bf16 ? prefill_bf16_kernel<kWidth, __nv_bfloat16>
                                                 : prefill_bf16_kernel<kWidth, float>;
  constexpr int kBytes = sizeof(Memory<kWidth>);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<grid_of(p, rows, kQueries), kThreads, kBytes, stream>>>(p);
}

}  // namespace

void prefill_bf16(const AttentionParams& p, const AttentionRows& rows, cudaStream_t stream) {
  if (p.head_dim <= 64)
    launch<64>(p, rows, stream);
  else if (p.head_dim <= 128)
    launch<128>(p, rows, stream);
  else
    launch<256>(p, rows, stream);
}

}  // namespace tandem::portable
