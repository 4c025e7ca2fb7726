#pragma once
// Attention of few rows in bf16 with head_dim 64, 128 or 256. One warp brings K and V into a ring
// in shared memory, in units of 16 KiB, by the copies of the body that includes this; the others
// multiply. A working warp takes 16 queries and every kParts-th unit: large enough to keep one warp
// busy without waiting on its own results, and warps meet only when a chunk ends.
#include <algorithm>
#include <type_traits>

#include "kernels/attention/few_rows_loader.cuh"
#include "kernels/attention/few_rows_scores.cuh"
#include "kernels/attention/few_rows_worker.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.cuh"

namespace tandem {

constexpr unsigned kRingAlign = 1024;

/// A block's shared memory holds the ring, then queries that lie there, then parts' o, then their m
/// and l.
struct MmaMemory {
  int stages;
  int columns, pitch;  // of the parts' o, that a block joins at a time
  int o_bytes, total_bytes;
};

/// As many stages as fit into a block's shared memory next to the rest, `more_bytes` of them for
/// scores. Parts' states are joined in slices where the whole would leave too few.
template <class Shape>
MmaMemory mma_memory(const SplitRule& rule, int more_bytes) {
  constexpr int kEnough = 4;  // stages, and more than that of any shape are in 99 KiB
  // Other data of a block: barriers, and the weights of a join.
  const int limit = cuda::gpu().block_shared_bytes - 6 * 1024 - static_cast<int>(kRingAlign) -
                    Shape::kQueryBytes - more_bytes;
  for (int columns = Shape::kDim;; columns /= 2) {
    MmaMemory m{};
    m.columns = columns;
    m.pitch = columns + 8;  // rows of a tile then fall into different banks
    const int states = rule.queries * Shape::kParts;
    m.o_bytes = states * m.pitch * static_cast<int>(sizeof(float));
    const int rest = m.o_bytes + states * static_cast<int>(sizeof(float2));
    m.stages = std::min((limit - rest) / (2 * Shape::kUnitBytes), Shape::kMaxStages);
    m.stages = m.stages / Shape::kParts * Shape::kParts;
    m.total_bytes =
        m.stages * 2 * Shape::kUnitBytes + Shape::kQueryBytes + rest + static_cast<int>(kRingAlign);
    if (m.stages >= kEnough || columns == kLeastColumns) return m;
  }
}

template <class Shape, class Copies>
constexpr int kMmaThreads = Shape::kWorkers + Copies::kWarps* cuda::kWarp;

/// One block: the chunk of its number, then any that are left. The grid is one block a
/// multiprocessor. Scores: what it leaves of keys (few_rows_scores.cuh).
template <class Shape, class Copies, class Scores>
__global__ void __launch_bounds__(kMmaThreads<Shape, Copies>, 1)
    few_rows_mma(const __grid_constant__ FewRowsCall call, const __grid_constant__ MmaMemory memory,
                 const __grid_constant__ typename Copies::Source source) {
  using mma_detail::RingPlace, mma_detail::Seen;
  extern __shared__ unsigned char unaligned[];
  __shared__ mma_detail::Mailbox<Shape> mail;
  __shared__ typename Scores::Shared shared_scores;
  const int lane = threadIdx.x % cuda::kWarp;
  // Uniform in a warp, and the compiler knows it.
  const int warp = __shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x) / cuda::kWarp, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < memory.stages; ++i) {
      mail.full[i].init(Copies::kArrivals);
      mail.empty[i].init(Shape::kQueryTiles);
    }
    for (int i = 0; i < mail.kItems; ++i) {
      mail.item_full[i].init(1);
      mail.item_empty[i].init(Shape::kWarps + Copies::kWarps - 1);
    }
    Copies::prepare(source);
    Scores::prepare(shared_scores);
  }
  __syncthreads();
  // The swizzle is a function of addresses: units begin at multiples of its period.
  unsigned char* const ring = unaligned + (-cuda::shared_address(unaligned) & (kRingAlign - 1));
  if (warp >= Shape::kWarps) {
    mma_detail::Loader<Shape, Copies> loader(call, mail, ring, memory.stages, Copies(call, source),
                                             warp - Shape::kWarps);
    warp == Shape::kWarps ? loader.lead() : loader.follow();
    return;
  }
  cuda::wait_for_previous();
  unsigned char* const queries = ring + memory.stages * 2 * Shape::kUnitBytes;
  mma_detail::Worker<Shape> worker(call.params, warp, queries);
  Scores scores(call, shared_scores, warp);
  const uint32_t first_unit = cuda::shared_address(ring);
  float* const o = reinterpret_cast<float*>(queries + Shape::kQueryBytes);
  const PartStates parts{
      o,
      reinterpret_cast<float2*>(reinterpret_cast<unsigned char*>(o) + memory.o_bytes),
      Shape::kParts,
      call.rule.queries,
      memory.columns,
      memory.pitch};
  // Units go round the warps without regard to chunks, states are kept by the unit's place in its
  // chunk: `part` is the place of this warp's next unit.
  int part = warp / Shape::kQueryTiles;
  RingPlace at{part};
  for (unsigned n = 0;; ++n) {
    mail.item_full[n % mail.kItems].wait(n / mail.kItems % 2);
    const mma_detail::Item& item = mail.items[n % mail.kItems];
    if (item.end) return;
    if (item.other_queries) {
      worker.load_queries(item.v, item.k, call.rule.group, item.k.tile * Shape::kQueries,
                          item.n_queries);
      scores.load(item.k, item.n_queries);
    }
    worker.begin();
    scores.begin(item.k);
    const int n_units = (item.k.end - item.k.begin) * Shape::kUnits;
    int next = part;
#pragma unroll 1
    for (; next < n_units; next += Shape::kParts) {
      const uint32_t k_unit = first_unit + at.stage * 2 * Shape::kUnitBytes;
      mail.full[at.stage].wait(at.parity);
      const int first = __shfl_sync(cuda::kAllLanes, mail.first[at.stage], 0);
      const uint32_t v_unit = k_unit + Shape::kUnitBytes;
      const auto take = [&](const auto& s) { scores.take(s, at.stage); };
      if (first >= 0)
        worker.template unit<Seen::by_rule>(k_unit, v_unit, item.v, first, take);
      else if (!Copies::kLists || first > mail.kFewListed)
        worker.template unit<Seen::all>(k_unit, v_unit, item.v, ~first, take);
      else if (first < mail.kFewListed)
        worker.template unit<Seen::few>(k_unit, v_unit, item.v, mail.kFewListed - first, take);
      scores.finish(at.stage, at.parity, first < 0 ? ~first : first, item.v.committed,
                    item.n_queries);
      __syncwarp();
      if (lane == 0) mail.empty[at.stage].arrive();
      at.next(memory.stages, Shape::kParts);
    }
    finish_chunk<Shape::kWorkers, Shape::kDim / cuda::kWarp>(
        call, item.v, item.k, item.n_queries, parts, static_cast<int>(threadIdx.x),
        [&](int first) { worker.put(parts, part, item.n_queries, first); });
    part = next - n_units;
    __syncwarp();
    if (lane == 0) mail.item_empty[n % mail.kItems].arrive();
  }
}

/// Puts the kernel on the stream; `programmatic` in code for Hopper alone, whose waits launch.cuh
/// describes.
template <class Shape, class Copies, class Scores>
void launch_few_rows_mma(const FewRowsCall& call, const typename Copies::Source& source,
                         cudaStream_t stream, bool programmatic) {
  const MmaMemory memory = mma_memory<Shape>(call.rule, Scores::kSharedBytes);
  const auto kernel = few_rows_mma<Shape, Copies, Scores>;
  const auto blocks = static_cast<unsigned>(cuda::gpu().multiprocessors);
  const auto bytes = static_cast<size_t>(memory.total_bytes);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory.total_bytes);
  if (programmatic)
    cuda::launch(kernel, blocks, kMmaThreads<Shape, Copies>, bytes, 1, Stream{stream}, call, memory,
                 source);
  else
    kernel<<<blocks, kMmaThreads<Shape, Copies>, bytes, stream>>>(call, memory, source);
}

/// Calls f with the head_dim of a call as a constant.
template <class F>
void with_head_dim(int head_dim, const F& f) {
  switch (head_dim) {
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    default:
      return f(std::integral_constant<int, 256>{});
  }
}

/// Calls f with a null pointer to the MmaShape of a call.
template <int kDim, class F>
void with_mma_shape(int tile_queries, const F& f) {
  switch (tile_queries) {
    case 16:
      return f(static_cast<MmaShape<kDim, 1>*>(nullptr));
    case 32:
      return f(static_cast<MmaShape<kDim, 2>*>(nullptr));
    default:
      return f(static_cast<MmaShape<kDim, 4>*>(nullptr));
  }
}

}  // namespace tandem
