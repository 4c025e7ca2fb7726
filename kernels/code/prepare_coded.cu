// Whole numbers of queries, and from a sample of the keys a floor that some more keys reach than
// are candidates.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/prepare_query.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kEach = kSample / kPrepareThreads;
constexpr int kRounds = 9;  // of bisection

struct PrepareShared : PreparedQueries<kQuad> {
  uint32_t least[kQuad], most[kQuad];  // orders of scores
  int reach[kRounds][kQuad];
};

/// Floors that about `rank` of the sampled scores reach, by bisection between the extremes; the
/// queries' get them.
__device__ void find_floors(PrepareShared& s, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kQuad) s.least[thread] = ~0u, s.most[thread] = 0;
  if (thread < kRounds * kQuad) s.reach[thread / kQuad][thread % kQuad] = 0;
  __syncthreads();
  float x[kQuad][kEach];
#pragma unroll
  for (int h = 0; h < kQuad; ++h) {
    uint32_t least = ~0u, most = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      x[h][e] = s.sample[h][e * kPrepareThreads + thread];
      least = min(least, order_of(x[h][e]));
      most = max(most, order_of(x[h][e]));
    }
    least = __reduce_min_sync(cuda::kAllLanes, least);
    most = __reduce_max_sync(cuda::kAllLanes, most);
    if (lane_of() == 0) atomicMin(&s.least[h], least), atomicMax(&s.most[h], most);
  }
  __syncthreads();
  float low[kQuad], high[kQuad];  // as many reach `low` as are wanted
#pragma unroll
  for (int h = 0; h < kQuad; ++h) low[h] = score_of(s.least[h]), high[h] = score_of(s.most[h]);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int h = 0; h < kQuad; ++h) {
      const float middle = low[h] + (high[h] - low[h]) / 2;
      int reach = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) reach += x[h][e] >= middle ? 1 : 0;
      reach = __reduce_add_sync(cuda::kAllLanes, reach);
      if (lane_of() == 0) atomicAdd(&s.reach[round][h], reach);
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kQuad; ++h) {
      const float middle = low[h] + (high[h] - low[h]) / 2;
      (s.reach[round][h] >= rank ? low[h] : high[h]) = middle;
    }
  }
#pragma unroll
  for (int h = 0; h < kQuad; ++h)
    if (thread == h) s.queries[h].floor = low[h];
  __syncthreads();
}

/// Block (quad, row).
template <class T>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const ChooseCodedParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
  cuda::start_after_previous();
  const Quad quad(p, static_cast<int>(blockIdx.x));
  const CodedList list(p, static_cast<int>(blockIdx.y), quad.first);
  if (list.n == 0) return;
  if (warp_of() < quad.n) make_query<T>(p, list, warp_of(), s);
  __syncthreads();
  if (list.n >= kLeastSampled) {
    take_sample(p, list, quad.n, s);
    __syncthreads();
    const int rank = floor_rank(p, list);
    if (rank < kSample / 2) find_floors(s, rank);
  }
  if (threadIdx.x < quad.n) p.scratch.queries[list.local + threadIdx.x] = s.queries[threadIdx.x];
}

}  // namespace

void prepare_queries(const ChooseCodedParams& p, Stream stream) {
  cuda::with_act(p.dtype, [&](auto* type) {
    const auto kernel = prepare<std::remove_pointer_t<decltype(type)>>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(PrepareShared));
    cuda::launch(kernel, dim3(static_cast<unsigned>(quads_of(p)), static_cast<unsigned>(p.n_rows)),
                 kPrepareThreads, sizeof(PrepareShared), 1, stream, p);
  });
}

}  // namespace tandem::coded
