// Whole numbers of the queries whose heads share a set, their references, and a floor of ranks.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/prepare_query.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

struct PrepareShared : PreparedQueries<kMostSharing> {
  float references[kMostSharing];
};

/// Block (KV head, row).
template <class T>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const ChooseCodedParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
  cuda::start_after_previous();
  const int group = p.n_heads / p.n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * group);
  if (list.n == 0) return;
  if (warp_of() < group) make_query<T>(p, list, warp_of(), s);
  __syncthreads();
  if (const int wanted = list.wanted(p); wanted < list.n) {
    take_sample(p, list, group, s);
    __syncthreads();
    const KeySample sample(list.n);
    SampledScores<kMostSharing>& sampled = s.sampled;
    sampled.find<kPrepareThreads>(group, sample.size(), sample.rank(wanted, list.n));
    if (thread < group) s.references[thread] = sampled.score(thread);
    __syncthreads();
    if (const int m = list.candidates(p); m < list.n) {
      for (int i = thread; i < sample.size(); i += kPrepareThreads) {
        float most = -INFINITY;
        for (int h = 0; h < group; ++h) most = fmaxf(most, sampled.sample[h][i] - s.references[h]);
        sampled.sample[0][i] = most;
      }
      sampled.find<kPrepareThreads>(1, sample.size(), sample.rank(m, list.n));
      if (thread < group) s.queries[thread].floor = sampled.score(0);
    }
  }
  if (thread >= group) return;
  p.scratch.queries[list.local + thread] = s.queries[thread];
  p.scratch.references[list.local + thread] = s.references[thread];
}

}  // namespace

void prepare_shared(const ChooseCodedParams& p, Stream stream) {
  cuda::with_act(p.dtype, [&](auto* type) {
    const auto kernel = prepare<std::remove_pointer_t<decltype(type)>>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(PrepareShared));
    cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows)),
                 kPrepareThreads, sizeof(PrepareShared), 1, stream, p);
  });
}

}  // namespace tandem::coded
