// The best keys by rank of those that a scan kept for heads that share a set: the candidates by
// signs, refined for every head, and the best of these.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/group_list.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/refine_coded.cuh"
#include "kernels/code/write_chosen.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;

/// The heads of a set and their queries.
struct Group {
  DeviceCodeQuery queries[kMostSharing];
  float references[kMostSharing];
  uint32_t q[kMostSharing][kMostDims / 4];  // words of the whole numbers

  /// By the whole block, which waits for it.
  __device__ void load(const ChooseCodedParams& p, const CodedList& list, int n) {
    const int thread = static_cast<int>(threadIdx.x), words = p.codes.dims / 4;
    if (thread < n) {
      queries[thread] = p.scratch.queries[list.local + thread];
      references[thread] = p.scratch.references[list.local + thread];
    }
    const auto* from = reinterpret_cast<const uint32_t*>(p.scratch.q + list.local * p.codes.dims);
    for (int i = thread; i < n * words; i += kThreads) q[i / words][i % words] = from[i];
    __syncthreads();
  }
};

/// What the scan kept, key after key.
struct KeptKeys {
  const Group& group;
  GroupRegions regions;
  int n_heads, n = 0;

  /// By the whole block; s gets the ranks' extremes. before: room for the regions.
  __device__ void gather(SelectShared& s, const CodedList& list, int* before) {
    const int n_regions = (list.n + kRegionKeys - 1) / kRegionKeys;
    const int thread = static_cast<int>(threadIdx.x);
    const int each = (n_regions + kThreads - 1) / kThreads;
    const int begin = min(thread * each, n_regions), end = min(begin + each, n_regions);
    int own = 0;
    for (int r = begin; r < end; ++r) own += regions.counts[r];
    int sum = cuda::sum_before<kThreads>(own, n);
    for (int r = begin; r < end; ++r) {
      before[r] = sum;
      sum += regions.counts[r];
    }
    __syncthreads();
    Extremes extremes;
#pragma unroll 2
    for (int r = warp_of(); r < n_regions; r += kWarps)
      for (int i = lane_of(); i < regions.counts[r]; i += cuda::kWarp) {
        const int place = r * kRegionKeys + i, to = before[r] + i;
        const float of_key = rank([&](int h) { return score(h, static_cast<uint32_t>(place)); });
        regions.ranks[to] = of_key;
        extremes.take(order_of(of_key));
        regions.numbers[to] = static_cast<uint32_t>(r * kRegionKeys + regions.keys[place]);
        regions.places[to] = static_cast<uint32_t>(place);
      }
    extremes.join(s);
  }
  __device__ KeptScores<kThreads> ranks() const { return {regions.ranks, regions.numbers, n}; }
  __device__ float& score(int head, uint32_t place) const {
    return regions.scores[head * regions.stride + place];
  }
  /// The largest of f(head) - reference.
  template <class F>
  __device__ float rank(const F& f) const {
    float most = -INFINITY;
    for (int h = 0; h < n_heads; ++h) most = fmaxf(most, f(h) - group.references[h]);
    return most;
  }
};

/// The regions once more, all scores of which are kept; by the whole block.
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const GroupRegions& to,
                         int n_heads) {
  for (int begin = warp_of() * kRegionKeys; begin < list.n; begin += kWarps * kRegionKeys) {
    const int n = min(list.n - begin, kRegionKeys);
    for (int first = 0; first < n_heads; first += kQuad) {
      const int in_quad = min(n_heads - first, kQuad), head = query_of_lane();
      const LaneQueries lane(p.scratch.queries + list.local + first, in_quad);
      const int8_t* q = p.scratch.q + (list.local + first) * p.codes.dims;
      float* const scores = to.scores + (first + head) * to.stride + begin;
      for (int key = 0; key < n; key += kTile) {
        const float2 score = score_tile(list.group(p, begin + key), key % kCodeKeys / kTile,
                                        p.codes.dims, q, in_quad, lane);
        const int own = key + key_of_lane();
        if (own >= n) continue;
        if (head < in_quad) scores[own] = score.x;
        if (head + 1 < in_quad) scores[to.stride + own] = score.y;
        if (first + head == 0) to.keys[begin + own] = static_cast<uint16_t>(own);
      }
    }
    if (lane_of() == 0) to.counts[begin / kRegionKeys] = n;
  }
}

/// Block (KV head, row); kWidth lower bits. Shared memory: a bit a key, which regions' numbers
/// precede; a mass a run.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) choose(const ChooseCodedParams p) {
  extern __shared__ uint32_t bits[];
  __shared__ SelectShared s;
  __shared__ Group group;
  cuda::start_after_previous();
  const int heads = p.n_heads / p.n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * heads);
  const int64_t number = list.local / heads;
  const int n = list.n, wanted = n == 0 ? 0 : list.wanted(p);
  int32_t* const ids = p.ids + number * p.stride;
  if (thread == 0) p.count[number] = n == 0 ? 0 : p.begin + wanted;
  if (thread < heads && p.origin != nullptr) p.origin[list.local + thread] = -INFINITY;
  if (n == 0) return;
  for (int i = thread; i < p.begin; i += kThreads) ids[i] = i;
  const int n_runs = (n + kMeanKeys - 1) / kMeanKeys;
  const GroupRegions regions(p, list);
  if (wanted == n) {
    for (int i = thread; i < n; i += kThreads) ids[p.begin + i] = p.begin + i;
    for (int h = 0; h < heads && p.masses != nullptr; ++h)
      for (int r = thread; r < n_runs; r += kThreads)
        regions.masses[h * regions.mass_stride + r] = 0;
    return;
  }
  group.load(p, list, heads);
  KeptKeys kept{group, regions, heads};
  kept.gather(s, list, reinterpret_cast<int*>(bits));
  const int candidates = list.candidates(p);
  const bool floored = kept.n >= candidates && group.queries[0].floor > -INFINITY;
  if (kept.n < candidates) {
    keep_all(p, list, regions, heads);
    __syncthreads();
    kept.gather(s, list, reinterpret_cast<int*>(bits));
  }

  const KeptScores<kThreads> ranks = kept.ranks();
  Pick pick = find_threshold(s, ranks, candidates, [](uint32_t order, uint32_t) { return order; });
  ranks.each([&](int i, float rank, uint32_t key) {
    if (!pick.takes(order_of(rank), key)) return;
    ranks.numbers[i] = key | kCandidate;
    if constexpr (kWidth > 0) cuda::prefetch(list.low(p, static_cast<int>(key)));
  });
  Extremes extremes;
  ranks.each([&](int i, float rank, uint32_t marked) {
    if ((marked & kCandidate) == 0) return;
    if constexpr (kWidth > 0) {
      const uint32_t place = regions.places[i];
      ranks.scores[i] = rank = kept.rank([&](int h) {
        return kept.score(h, place) =
                   refine<kWidth>(p, list, group.queries[h], group.q[h],
                                  static_cast<int>(marked & ~kCandidate), kept.score(h, place));
      });
    }
    extremes.take(order_of(rank));
  });
  extremes.join(s);
  pick = find_threshold(s, ranks, wanted, [](uint32_t order, uint32_t key) {
    return (key & kCandidate) != 0 ? order : 0u;
  });

  const float least = score_of(pick.least);  // rank
  const int words = (n + 31) / 32;
  const auto chosen = [&](float rank, uint32_t marked) {
    return (marked & kCandidate) != 0 && pick.takes(order_of(rank), marked);
  };
  for (int i = thread; i < words; i += kThreads) bits[i] = 0;
  __syncthreads();
  ranks.each([&](int, float rank, uint32_t marked) {
    const uint32_t key = marked & ~kCandidate;
    if (chosen(rank, marked)) atomicOr(&bits[key / 32], 1u << key % 32);
  });
  __syncthreads();
  write_ids<kThreads>(bits, n, p.begin, ids + p.begin);
  if (p.masses == nullptr) return;

  // Each head weighs the other keys by its own scores; those of candidates are below its threshold.
  uint32_t* const masses = bits + words;
  const float of_floor = floored ? exp2f((group.queries[0].floor - least) * kLog2E) : 0.0f;
#pragma unroll 1
  for (int h = 0; h < heads; ++h) {
    const float threshold = group.references[h] + least;
    if (thread == 0) p.origin[list.local + h] = threshold + group.queries[h].center;
    for (int r = thread; r < n_runs; r += kThreads) masses[r] = 0;
    __syncthreads();
    ranks.each([&](int i, float rank, uint32_t marked) {
      if (chosen(rank, marked)) return;
      const float over = fminf(kept.score(h, regions.places[i]) - threshold, 0.0f);
      atomicAdd(&masses[(marked & ~kCandidate) / kMeanKeys], mass_number(exp2f(over * kLog2E)));
    });
    __syncthreads();
    float* const to = regions.masses + h * regions.mass_stride;
    for (int r = thread; r < n_runs; r += kThreads)
      to[r] = (to[r] > 0 && floored ? to[r] * of_floor : 0.0f) +
              static_cast<float>(masses[r]) * kMassUnit;
    __syncthreads();
  }
}

}  // namespace

void choose_shared(const ChooseCodedParams& p, Stream stream) {
  const size_t bytes =
      sizeof(uint32_t) *
      static_cast<size_t>((p.max_keys + 31) / 32 + (p.max_keys + kMeanKeys - 1) / kMeanKeys);
  const auto kernel = p.codes.bits == 1 ? choose<0> : p.codes.bits == 2 ? choose<1> : choose<2>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows)),
               kThreads, bytes, 1, stream, p);
}

}  // namespace tandem::coded
