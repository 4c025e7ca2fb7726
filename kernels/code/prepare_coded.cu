// Whole numbers of queries, and from a sample of the keys the floors that candidates reach.
#include "kernels/code/choose_steps.h"
#include "kernels/code/prepare_query.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

using PrepareShared = PreparedQueries<kQuad>;

/// Asks for what take_sample reads, while queries are made.
__device__ void fetch_sample(const ChooseCodedParams& p, const CodedList& list) {
  constexpr int kLine = 128;
  const KeySample sample(list.n);
  const int lines = static_cast<int>(code_group_bytes(p.codes.dims) / kLine);
  for (int i = static_cast<int>(threadIdx.x); i < sample.tiles * lines; i += kPrepareThreads)
    cuda::prefetch(list.group(p, sample.key(i / lines)) + i % lines * kLine);
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
  const int m = list.candidates(p), thread = static_cast<int>(threadIdx.x);
  if (m < list.n) fetch_sample(p, list);
  if (warp_of() < quad.n) make_query<T>(p, list, warp_of(), s);
  __syncthreads();
  if (m < list.n) {
    take_sample(p, list, quad.n, s);
    __syncthreads();
    const KeySample sample(list.n);
    s.sampled.template find<kPrepareThreads>(quad.n, sample.size(), sample.rank(m, list.n));
    if (thread < quad.n) s.queries[thread].floor = s.sampled.score(thread);
  }
  if (thread < quad.n) p.scratch.queries[list.local + thread] = s.queries[thread];
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
