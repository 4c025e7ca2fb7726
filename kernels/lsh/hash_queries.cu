#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/lsh/code_at.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

constexpr int kMaxThreads = kTableGroup * kMaxHashBits;

/// Signs of x [d], in shared memory, under a group of tables, a thread a column.
__device__ void sign_words(const HashRule& rule, int group, const float* x, int d,
                           uint32_t* words) {
  const int thread = static_cast<int>(threadIdx.x);
  const float* w = rule.w + group * kTableGroup * rule.code_bits + thread;
  float sum = 0;
#pragma unroll 4
  for (int c = 0; c < d; ++c) sum = fmaf(x[c], w[c * rule.w_stride], sum);
  const uint32_t word = __ballot_sync(cuda::kAllLanes, sum > 0);
  if (thread % cuda::kWarp == 0) words[thread / cuda::kWarp] = word;
}

/// A block a list.
template <class T>
__global__ void __launch_bounds__(kMaxThreads) hash_queries(const HashQueriesParams p) {
  extern __shared__ __align__(16) float x[];  // [d]
  __shared__ uint32_t words[kMaxHashBits + 1];
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
    sign_words(rule, group, x, p.d, words);
    __syncthreads();
    const int table = group * kTableGroup + thread;
    if (thread < kTableGroup && table < rule.tables)
      p.codes[list * rule.tables + table] = code_at(words, thread, rule.code_bits);
  }
}

}  // namespace

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
