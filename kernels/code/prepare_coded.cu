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
constexpr int kBins = 512;  // of the sample's scores

struct PrepareShared : PreparedQueries<kQuad> {
  uint32_t least[kQuad], most[kQuad];  // orders of scores
  int bins[kQuad][kBins];
};

/// Asks for what take_sample reads, while queries are made.
__device__ void fetch_sample(const ChooseCodedParams& p, const CodedList& list) {
  constexpr int kLine = 128;
  const KeySample sample(list.n);
  const int lines = static_cast<int>(code_group_bytes(p.codes.dims) / kLine);
  for (int i = static_cast<int>(threadIdx.x); i < sample.tiles * lines; i += kPrepareThreads)
    cuda::prefetch(list.group(p, sample.key(i / lines)) + i % lines * kLine);
}

/// Floors that `rank` or some more of the sampled scores reach: edges of even bins between the
/// extremes. The queries' get them.
__device__ void find_floors(PrepareShared& s, int n, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kQuad) s.least[thread] = ~0u, s.most[thread] = 0;
  for (int i = thread; i < kQuad * kBins; i += kPrepareThreads) s.bins[i / kBins][i % kBins] = 0;
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
#pragma unroll
  for (int h = 0; h < kQuad; ++h) {
    const float low = score_of(s.least[h]), width = (score_of(s.most[h]) - low) / kBins;
#pragma unroll
    for (int e = 0; e < kEach && width > 0; ++e)
      atomicAdd(&s.bins[h][min(static_cast<int>((x[h][e] - low) / width), kBins - 1)], 1);
  }
  __syncthreads();
  const int h = warp_of();
  if (h >= n) return;
  // A lane has some bins, the first lane the highest.
  constexpr int kOwn = kBins / cuda::kWarp;
  const int first = kBins - 1 - lane_of() * kOwn;
  int own = 0;
  for (int i = 0; i < kOwn; ++i) own += s.bins[h][first - i];
  int reach = own;
  for (int step = 1; step < cuda::kWarp; step *= 2) {
    const int lower = __shfl_up_sync(cuda::kAllLanes, reach, step);
    if (lane_of() >= step) reach += lower;
  }
  const float low = score_of(s.least[h]), width = (score_of(s.most[h]) - low) / kBins;
  // Where all scores are equal no bin has any, and the floor is none.
  if (reach < rank || reach - own >= rank) return;
  int bin = first;
  for (int over = reach - own; over + s.bins[h][bin] < rank; --bin) over += s.bins[h][bin];
  // A little below the edge, for what dividing rounds.
  s.queries[h].floor = low + (static_cast<float>(bin) - 0.01f) * width;
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
  if (list.n >= kLeastSampled) fetch_sample(p, list);
  if (warp_of() < quad.n) make_query<T>(p, list, warp_of(), s);
  __syncthreads();
  if (list.n >= kLeastSampled) {
    take_sample(p, list, quad.n, s);
    __syncthreads();
    if (const int rank = floor_rank(p, list); rank < kSample / 2) find_floors(s, quad.n, rank);
    __syncthreads();
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
