// Codes of keys. Tensor cores sum the products of bf16 parts of keys and projections; signs that
// such a sum leaves open are found again from f32 products, added in the CPU's order.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/lsh/code_at.cuh"
#include "kernels/lsh/key_row.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

using cuda::lane_of;
using cuda::warp_of;

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
// Words of signs that a block holds of each key: those of whole groups of tables. One more, which
// code_at may read, leaves rows an odd distance apart, so that keys side by side are in all banks.
constexpr int kPassWords = 64, kWordStride = kPassWords + 1;
constexpr int kWordTiles = 4;  // of 8 columns, which make a word
constexpr int kDoubts = 1024;  // signs of a pass that are noted one by one

/// The bytes of a block's keys: f32 rows, and their upper and lower parts in bf16. Rows lie such a
/// distance apart that tiles of 8 rows are in all banks.
struct KeyTile {
  float* x;                      // [keys, x_stride]
  __nv_bfloat16 *upper, *lower;  // [keys, half_stride]
  int dims, x_stride, half_stride;

  __host__ __device__ KeyTile(unsigned char* base, int n_keys, int d)
      : dims(projection_dims(d)), x_stride(dims + 1), half_stride(dims + 8) {
    upper = reinterpret_cast<__nv_bfloat16*>(base);
    lower = upper + n_keys * half_stride;
    x = reinterpret_cast<float*>(lower + n_keys * half_stride);
  }
  __host__ static size_t bytes(int n_keys, int d) {
    const KeyTile t(nullptr, n_keys, d);
    return static_cast<size_t>(n_keys) * (4 * static_cast<size_t>(t.half_stride) +
                                          sizeof(float) * static_cast<size_t>(t.x_stride));
  }
};

/// Brings the keys from `first` on, relative to their center; zeros after the last one.
template <class T, int kKeys>
__device__ void load_keys(const HashKeysParams& p, const KeyTile& keys, int kv_head, int first) {
  constexpr int kBatch = 8;  // loads under way
  const int n = min(kKeys, p.n - first), n_elements = kKeys * keys.dims;
  const float* center = p.centers + kv_head * p.d;
  for (int begin = static_cast<int>(threadIdx.x); begin < n_elements; begin += kBatch * kThreads) {
    float x[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int e = begin + b * kThreads, i = e / keys.dims, c = e % keys.dims;
      x[b] = 0;
      if (i >= n || c >= p.d) continue;
      const T* key = key_row<T>(p.k_pool, p.pages, p.token + first + i, p.n_kv_heads, kv_head, p.d);
      x[b] = cuda::to_float(key[c]) - center[c];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int e = begin + b * kThreads, i = e / keys.dims, c = e % keys.dims;
      if (e >= n_elements) continue;
      const __nv_bfloat16 upper = __float2bfloat16_rn(x[b]);
      keys.x[i * keys.x_stride + c] = x[b];
      keys.upper[i * keys.half_stride + c] = upper;
      keys.lower[i * keys.half_stride + c] = __float2bfloat16_rn(x[b] - __bfloat162float(upper));
    }
  }
}

/// As kv::norm_of on the CPU, whose compiler contracts nothing there.
__device__ float norm_of(const float* x, int d) {
  float sum[8] = {};
  int c = 0;
  for (; c + 8 <= d; c += 8)
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(x[c + i], x[c + i]));
  for (; c < d; ++c) sum[0] = __fadd_rn(sum[0], __fmul_rn(x[c], x[c]));
  const float even = __fadd_rn(__fadd_rn(sum[0], sum[4]), __fadd_rn(sum[1], sum[5]));
  const float odd = __fadd_rn(__fadd_rn(sum[2], sum[6]), __fadd_rn(sum[3], sum[7]));
  return __fsqrt_rn(__fadd_rn(even, odd));
}

/// Sums of a key and a projection up to which the sign is in doubt; below 0: none is.
/// Of |x| |w|, at most: 3.02 2^-16 are left out, as the products of two lower parts and of what two
/// parts leave of a number; each of 3 dims / 16 steps on tensor cores cuts 17 numbers to 23 bits
/// after the first of the largest and rounds, which together is .43 dims 2^-20; and sums in order
/// are off by .07 dims 2^-20. Half as much again of the last two, and numbers too small for parts.
__device__ float doubt_of(const float* x, float norm, int d, int dims, float longest) {
  float most = 0;
  for (int c = 0; c < d; ++c) most = fmaxf(most, fabsf(x[c]));
  if (most == 0) return -1;
  return norm * longest * ((0.75f * static_cast<float>(dims) + 50) * 0x1p-20f) + 1e-30f;
}

/// Sums of 16 kTiles keys and the columns of a word.
template <int kTiles>
__device__ void project(float (&sum)[kTiles][kWordTiles][4], const KeyTile& keys,
                        const ProjectionPart* parts) {
  const int steps = keys.dims / 16;
  const int at = lane_of() % 16 * keys.half_stride + lane_of() / 16 * 8;
  auto upper_at = static_cast<uint32_t>(__cvta_generic_to_shared(keys.upper + at));
  auto lower_at = static_cast<uint32_t>(__cvta_generic_to_shared(keys.lower + at));
  const uint32_t tile_bytes = 16 * 2 * static_cast<uint32_t>(keys.half_stride);
  const auto* part = reinterpret_cast<const uint4*>(parts) + lane_of();
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int t = 0; t < kWordTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][t][i] = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, part += cuda::kWarp) {
    uint4 w[kWordTiles];
#pragma unroll
    for (int t = 0; t < kWordTiles; ++t) w[t] = __ldg(part + t * steps * cuda::kWarp);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      uint32_t upper[4], lower[4];
      const uint32_t offset =
          static_cast<uint32_t>(m) * tile_bytes + static_cast<uint32_t>(step) * 32;
      cuda::load_tiles(upper, upper_at + offset);
      cuda::load_tiles(lower, lower_at + offset);
#pragma unroll
      for (int t = 0; t < kWordTiles; ++t) cuda::mma_bf16(sum[m][t], lower, w[t].x, w[t].y);
#pragma unroll
      for (int t = 0; t < kWordTiles; ++t) cuda::mma_bf16(sum[m][t], upper, w[t].z, w[t].w);
#pragma unroll
      for (int t = 0; t < kWordTiles; ++t) cuda::mma_bf16(sum[m][t], upper, w[t].x, w[t].y);
    }
  }
}

/// The sign of one sum as the CPU has it.
__device__ bool sign_of(const KeyTile& keys, int i, const float* column) {
  const float* x = keys.x + i * keys.x_stride;
  const auto* w = reinterpret_cast<const float4*>(column);
  float sum = 0;
#pragma unroll 4
  for (int c = 0; c < keys.dims; c += 4) {
    const float4 four = __ldg(w + c / 4);
    sum = fmaf(x[c], four.x, sum);
    sum = fmaf(x[c + 1], four.y, sum);
    sum = fmaf(x[c + 2], four.z, sum);
    sum = fmaf(x[c + 3], four.w, sum);
  }
  return sum > 0;
}

/// Signs whose sums are too small, each as key << 16 | column of the pass; of more than have room
/// only how many.
struct Doubts {
  int n;
  uint32_t at[kDoubts];

  __device__ void add(int key, int column) {
    const int place = atomicAdd(&n, 1);
    if (place < kDoubts) at[place] = static_cast<uint32_t>(key << 16 | column);
  }
};

/// Block (keys, KV head): 16 kTiles keys.
template <class T, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) hash_keys(const HashKeysParams p) {
  constexpr int kKeys = 16 * kTiles;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ uint32_t words[kKeys * kWordStride];
  __shared__ float doubt[kKeys];
  __shared__ Doubts doubts;
  cuda::wait_for_previous();
  const KeyTile keys(memory, kKeys, p.d);
  const HashRule& rule = p.rule;
  const int head = static_cast<int>(blockIdx.y), kv_head = p.heads.begin + head;
  const int first = static_cast<int>(blockIdx.x) * kKeys;
  const int thread = static_cast<int>(threadIdx.x), n = min(kKeys, p.n - first);
  load_keys<T, kKeys>(p, keys, kv_head, first);
  if (thread == 0) doubts.n = 0;
  __syncthreads();
  if (thread < kKeys) {
    const float* x = keys.x + thread * keys.x_stride;
    const float norm = norm_of(x, p.d);
    if (thread < n) p.norms[kv_head * p.norm_stride + first + thread] = norm;
    doubt[thread] = doubt_of(x, norm, p.d, keys.dims, rule.longest);
  }
  __syncthreads();
  const int pass_tables = kPassWords / rule.code_bits * kTableGroup;
  for (int table = 0; table < rule.tables; table += pass_tables) {
    const int n_tables = min(pass_tables, rule.tables - table);
    const int first_column = table * rule.code_bits, n_columns = n_tables * rule.code_bits;
    const int n_words = (n_columns + 31) / 32;
    for (int w = warp_of(); w < n_words; w += kWarps) {
      float sum[kTiles][kWordTiles][4];
      project<kTiles>(sum, keys, rule.parts + projection_parts(p.d, first_column + 32 * w));
      const int row = lane_of() / 4, column = lane_of() % 4 * 2;
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 16 * m + 8 * half + row;
          const float bound = doubt[i];
          uint32_t signs = 0, unknown = 0;
#pragma unroll
          for (int t = 0; t < kWordTiles; ++t)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float x = sum[m][t][2 * half + j];
              signs |= (x > 0 ? 1u : 0u) << (8 * t + j);
              // A sum that is no number is in doubt, too.
              unknown |= (fabsf(x) > bound ? 0u : 1u) << (8 * t + j);
            }
          signs <<= column;
          signs |= __shfl_xor_sync(cuda::kAllLanes, signs, 1);
          signs |= __shfl_xor_sync(cuda::kAllLanes, signs, 2);
          if (lane_of() % 4 == 0) words[i * kWordStride + w] = signs;
          for (; unknown != 0; unknown &= unknown - 1) {
            const int at = 32 * w + column + __ffs(static_cast<int>(unknown)) - 1;
            if (at < n_columns) doubts.add(i, at);
          }
        }
      __syncwarp();  // before its next products
    }
    __syncthreads();
    const int n_doubts = doubts.n;
    const bool all = n_doubts > kDoubts;
    for (int e = thread; e < (all ? kKeys * n_columns : n_doubts); e += kThreads) {
      const int i = all ? e / n_columns : static_cast<int>(doubts.at[e] >> 16);
      const int column = all ? e % n_columns : static_cast<int>(doubts.at[e] & 0xffff);
      const bool sign = sign_of(keys, i, rule.columns + int64_t{first_column + column} * keys.dims);
      uint32_t* const word = words + i * kWordStride + column / 32;
      const uint32_t bit = 1u << column % 32;
      if (sign)
        atomicOr(word, bit);
      else
        atomicAnd(word, ~bit);
    }
    __syncthreads();
    if (thread == 0) doubts.n = 0;
    for (int e = thread; e < n_tables * kKeys; e += kThreads) {
      const int t = e / kKeys, i = e % kKeys;
      if (i < n)
        p.codes.at[head * p.codes.head_stride + (table + t) * p.codes.table_stride + first + i] =
            code_at(words + i * kWordStride, t, rule.code_bits);
    }
    __syncthreads();
  }
}

template <class T, int kTiles>
void launch(const HashKeysParams& p, Stream stream) {
  constexpr int kKeys = 16 * kTiles;
  const size_t bytes = KeyTile::bytes(kKeys, p.d);
  (void)cudaFuncSetAttribute(hash_keys<T, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(
      hash_keys<T, kTiles>,
      dim3(cuda::blocks_for(p.n, kKeys), static_cast<unsigned>(p.heads.end - p.heads.begin)),
      kThreads, bytes, 1, stream, p);
}

}  // namespace

void hash_keys_cuda(const HashKeysParams& p, Stream stream) {
  if (p.n == 0 || p.heads.begin == p.heads.end) return;
  // Fewer keys a block where more do not fit.
  constexpr int kTiles = 4;
  constexpr size_t kStatic = sizeof(float) * 16 * kTiles * (kWordStride + 1) + sizeof(Doubts);
  const bool fits = KeyTile::bytes(16 * kTiles, p.d) + kStatic <=
                    static_cast<size_t>(cuda::gpu().block_shared_bytes);
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (fits)
      launch<T, kTiles>(p, stream);
    else
      launch<T, 1>(p, stream);
  });
}

}  // namespace tandem
