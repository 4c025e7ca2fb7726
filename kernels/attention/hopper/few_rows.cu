// Attention of few rows in bf16 by Hopper's copy engine: one lane of the loading warp asks for
// units. Calls with lists of runs, whose keys lie apart, take the copies of lanes.
#include "kernels/attention/few_rows_copies.cuh"
#include "kernels/attention/hopper/few_rows_group.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tma.cuh"

namespace tandem::hopper {
namespace {

struct PoolMaps {
  CUtensorMap k, v;
};

/// kPaged: of calls with lists of pages.
template <class Shape, bool kPaged>
class EngineCopies {
 public:
  struct Source {
    PoolMaps pools[kPaged ? 2 : 1];  // then those of the lists
  };
  static constexpr int kWarps = 1;
  static constexpr unsigned kArrivals = 1;
  static constexpr bool kLists = kPaged, kRuns = false;

  __device__ static void prepare(const Source& source) {
    cuda::init_fence();
    for (const PoolMaps& maps : source.pools) {
      cuda::tma_prefetch_map(maps.k);
      cuda::tma_prefetch_map(maps.v);
    }
  }
  __device__ EngineCopies(const FewRowsCall& call, const Source& source)
      : source_(source),
        // Tiles of one KV head read the same pages: only with one tile are they read once.
        policy_(call.rule.max_tiles == 1 ? cuda::read_once_policy() : cuda::read_again_policy()) {}

  __device__ static bool working(int lane) { return lane == 0; }

  __device__ void start(cuda::Barrier& full, unsigned char* unit, int row, int, bool listed) const {
    const PoolMaps& from = source_.pools[kPaged && listed ? 1 : 0];
    full.arrive_expecting(2 * Shape::kUnitBytes);
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half) {
      cuda::tma_load(unit + half * Shape::kHalfBytes, from.k, full, half * 64, row, policy_);
      cuda::tma_load(unit + Shape::kUnitBytes + half * Shape::kHalfBytes, from.v, full, half * 64,
                     row, policy_);
    }
  }

 private:
  const Source& source_;
  uint64_t policy_;
};

template <class Shape>
PoolMaps maps_of(const void* k_pool, const void* v_pool) {
  // No call knows how many pages a pool has: the map is as tall as 32-bit coordinates allow, and
  // only pages of the table are read.
  constexpr int64_t kRows = int64_t{1} << 31;
  return {cuda::swizzled_map(k_pool, kRows, Shape::kDim, Shape::kKeys),
          cuda::swizzled_map(v_pool, kRows, Shape::kDim, Shape::kKeys)};
}

template <int kDim, bool kPaged, template <class> class Scores>
void launch(const FewRowsCall& call, cudaStream_t stream) {
  const auto with_shape = [&](auto* shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    const AttentionParams& p = call.params;
    typename EngineCopies<Shape, kPaged>::Source source{};
    source.pools[0] = maps_of<Shape>(p.k_pool, p.v_pool);
    if constexpr (kPaged) source.pools[1] = maps_of<Shape>(p.lists.k_pool, p.lists.v_pool);
    launch_few_rows_mma<Shape, EngineCopies<Shape, kPaged>, Scores<Shape>>(call, source, stream,
                                                                           true);
  };
  if constexpr (kDim == 256)
    with_shape(static_cast<GroupShape<kDim>*>(nullptr));  // tiles have 64 queries
  else
    with_mma_shape<kDim>(call.rule.tile_queries, with_shape);
}

/// Calls with lists leave no scores.
void mma(const FewRowsCall& call, cudaStream_t stream) {
  using mma_detail::NoScores, mma_detail::Scores;
  const KeyLists& lists = call.params.lists;
  with_head_dim(call.params.head_dim, [&](auto d) {
    constexpr int kDim = decltype(d)::value;
    const bool scored = call.scores.at != nullptr;
    // Units of 256 columns hold few keys, and the copy engine takes them in pieces of 2 KiB. Lanes
    // bring more bytes a second, unless products bound the time. One row, 32,768 keys on an H200:
    // 77.6 us by lanes, 83.1 by the engine.
    if constexpr (kDim == 256)
      if (call.rule.tile_queries < 64)
        return scored ? launch_async_copies<kDim, Scores>(call, stream, true)
                      : launch_async_copies<kDim, NoScores>(call, stream, true);
    if (lists.paged())
      launch<kDim, true, NoScores>(call, stream);
    else if (lists.ids != nullptr)
      launch_async_copies<kDim, NoScores>(call, stream, true);
    else if (scored)
      launch<kDim, false, Scores>(call, stream);
    else
      launch<kDim, false, NoScores>(call, stream);
  });
}

}  // namespace

void attention_few_rows_cuda(const AttentionParams& p, const AttentionLaunch& l, Stream stream) {
  attention_few_rows(p, l, stream, mma);
}

}  // namespace tandem::hopper
