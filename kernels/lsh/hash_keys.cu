#include "base/page.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

constexpr int kMeanThreads = 1024;
constexpr int kMaxBits = 16, kTableGroup = 32, kMaxThreads = kTableGroup * kMaxBits;
constexpr int kKeys = 16;  // keys that a block hashes

template <class T>
__device__ const T* key_of(const void* k_pool, const int32_t* pages, int token, int n_kv_heads,
                           int kv_head, int d) {
  const int64_t row = (int64_t{pages[token / kPageTokens]} * n_kv_heads + kv_head) * kPageTokens +
                      token % kPageTokens;
  return static_cast<const T*>(k_pool) + row * d;
}

/// A block a KV head: strips of tokens side by side, a thread a channel.
template <class T>
__global__ void __launch_bounds__(kMeanThreads) mean_keys(const MeanKeysParams p) {
  __shared__ double sums[kMeanThreads];
  cuda::wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int strips = kMeanThreads / p.d, strip = thread / p.d, c = thread % p.d;
  double sum = 0;
  if (strip < strips)
    for (int t = p.tokens.begin + strip; t < p.tokens.end; t += strips)
      sum += cuda::to_float(key_of<T>(p.k_pool, p.pages, t, p.n_kv_heads, kv_head, p.d)[c]);
  sums[thread] = sum;
  __syncthreads();
  if (strip > 0) return;
  for (int s = 1; s < strips; ++s) sum += sums[s * p.d + c];
  p.mean[kv_head * p.d + c] = static_cast<float>(sum / (p.tokens.end - p.tokens.begin));
}

/// Signs under a group of tables, a thread a column, of kRows vectors x [d, kRows] in shared
/// memory: word w of vector i becomes words[i][w].
template <int kRows>
__device__ void sign_words(const HashRule& rule, int group, const float* x, int d,
                           uint32_t (*words)[kMaxBits + 1]) {
  const int thread = static_cast<int>(threadIdx.x);
  const float* w = rule.w + group * kTableGroup * rule.code_bits + thread;
  float sum[kRows] = {};
#pragma unroll 4
  for (int c = 0; c < d; ++c) {
    const float column = w[c * rule.w_stride];
#pragma unroll
    for (int i = 0; i < kRows; ++i) sum[i] = fmaf(x[c * kRows + i], column, sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const uint32_t word = __ballot_sync(cuda::kAllLanes, sum[i] > 0);
    if (thread % cuda::kWarp == 0) words[i][thread / cuda::kWarp] = word;
  }
}

/// The code of the i-th table of a group.
__device__ uint16_t code_at(const uint32_t* words, int i, int code_bits) {
  const int bit = i * code_bits, at = bit / 32;
  const uint64_t both = uint64_t{words[at + 1]} << 32 | words[at];
  return static_cast<uint16_t>(both >> bit % 32 & ((1u << code_bits) - 1));
}

/// Block (keys, KV head).
template <class T>
__global__ void __launch_bounds__(kMaxThreads) hash_keys(const HashKeysParams p) {
  extern __shared__ __align__(16) float x[];  // [d, kKeys]
  __shared__ uint32_t words[kKeys][kMaxBits + 1];
  cuda::wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kKeys;
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const int n = min(kKeys, p.n - first);
  const float* center = p.centers + kv_head * p.d;
  for (int e = thread; e < kKeys * p.d; e += n_threads) {
    const int i = e / p.d, c = e % p.d;
    const T* key =
        key_of<T>(p.k_pool, p.pages, p.token + first + min(i, n - 1), p.n_kv_heads, kv_head, p.d);
    x[c * kKeys + i] = cuda::to_float(key[c]) - center[c];
  }
  __syncthreads();
  for (int i = thread; i < n; i += n_threads) {
    float sum = 0;
    for (int c = 0; c < p.d; ++c) sum = fmaf(x[c * kKeys + i], x[c * kKeys + i], sum);
    p.norms[kv_head * p.norm_stride + first + i] = sqrtf(sum);
  }
  const HashRule& rule = p.rule;
  for (int group = 0; group * kTableGroup < rule.tables; ++group) {
    __syncthreads();
    sign_words<kKeys>(rule, group, x, p.d, words);
    __syncthreads();
    for (int e = thread; e < kTableGroup * kKeys; e += n_threads) {
      const int table = group * kTableGroup + e / kKeys, i = e % kKeys;
      if (table < rule.tables && i < n)
        p.codes[(int64_t{kv_head} * rule.tables + table) * p.n + first + i] =
            code_at(words[i], e / kKeys, rule.code_bits);
    }
  }
}

/// A block a list.
template <class T>
__global__ void __launch_bounds__(kMaxThreads) hash_queries(const HashQueriesParams p) {
  extern __shared__ __align__(16) float x[];  // [d]
  __shared__ uint32_t words[1][kMaxBits + 1];
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  const int head = static_cast<int>(list % p.n_heads), kv_head = head / (p.n_heads / p.n_kv_heads);
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const ChoosingRow row(p.choosing, static_cast<int>(list / p.n_heads));
  if (!row.exists()) return;
  const T* q = static_cast<const T*>(p.q) + (int64_t{row.number} * p.n_heads + head) * p.d;
  for (int c = thread; c < p.d; c += n_threads) x[c] = cuda::to_float(q[c]);
  __syncthreads();
  if (thread < cuda::kWarp) {
    const float* center = p.centers + row.slot * p.center_stride + kv_head * p.d;
    float norm = 0, dot = 0;
    for (int c = thread; c < p.d; c += cuda::kWarp) {
      norm = fmaf(x[c], x[c], norm);
      dot = fmaf(x[c], center[c], dot);
    }
    norm = cuda::warp_sum(norm);
    dot = cuda::warp_sum(dot);
    if (thread == 0) p.queries[2 * list] = sqrtf(norm), p.queries[2 * list + 1] = dot;
  }
  const HashRule& rule = p.rule;
  for (int group = 0; group * kTableGroup < rule.tables; ++group) {
    __syncthreads();
    sign_words<1>(rule, group, x, p.d, words);
    __syncthreads();
    const int table = group * kTableGroup + thread;
    if (thread < kTableGroup && table < rule.tables)
      p.codes[list * rule.tables + table] = code_at(words[0], thread, rule.code_bits);
  }
}

}  // namespace

void mean_keys_cuda(const MeanKeysParams& p, Stream stream) {
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(mean_keys<T>, dim3(static_cast<unsigned>(p.n_kv_heads)), kMeanThreads, stream, p);
  });
}

void hash_keys_cuda(const HashKeysParams& p, Stream stream) {
  if (p.n == 0) return;
  const dim3 grid(cuda::blocks_for(p.n, kKeys), static_cast<unsigned>(p.n_kv_heads));
  const size_t bytes = sizeof(float) * static_cast<size_t>(kKeys * p.d);
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    (void)cudaFuncSetAttribute(hash_keys<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
    cuda::launch(hash_keys<T>, grid, kTableGroup * p.rule.code_bits, bytes, 1, stream, p);
  });
}

void hash_queries_cuda(const HashQueriesParams& p, Stream stream) {
  const int lists = (p.choosing.rows.end - p.choosing.rows.begin) * p.n_heads;
  if (lists == 0) return;
  cuda::with_act(p.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(hash_queries<T>, dim3(static_cast<unsigned>(lists)),
                 kTableGroup * p.rule.code_bits, sizeof(float) * static_cast<size_t>(p.d), 1,
                 stream, p);
  });
}

}  // namespace tandem
