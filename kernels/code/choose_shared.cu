// The best by rank of the keys that a scan kept for heads that share a set, the candidates by
// signs: refined for every head, and selected.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/group_list.cuh"
#include "kernels/code/kept_regions.cuh"
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
  // Where kept keys are, here since a thread has no registers for it.
  const float* scores;        // by signs, where the scan left them
  float* kept[kMostSharing];  // by all bits, key after key
  const uint16_t* keys;
  __align__(16) uint32_t q[kMostSharing][kMostDims / 4];  // words of the whole numbers

  /// By the whole block, which waits for it.
  __device__ void load(const ChooseCodedParams& p, const CodedList& list, int n) {
    const int thread = static_cast<int>(threadIdx.x), words = p.codes.dims / 4;
    if (thread < n) {
      queries[thread] = p.scratch.queries[list.local + thread];
      references[thread] = p.scratch.references[list.local + thread];
      kept[thread] = p.scratch.kept + (list.local + thread) * p.scratch.key_stride;
      const GroupRegions regions(p, list);
      if (thread == 0) scores = regions.scores, keys = regions.keys;
    }
    const auto* from = reinterpret_cast<const uint32_t*>(p.scratch.q + list.local * p.codes.dims);
    for (int i = thread; i < n * words; i += kThreads) q[i / words][i % words] = from[i];
    __syncthreads();
  }
};

/// The kept keys refined for every head, key after key, and their ranks' orders, whose extremes s
/// gets; by the whole block.
template <int kWidth, class Kept>
__device__ void refine_kept(const ChooseCodedParams& p, const CodedList& list, const Group& group,
                            const KeptRegions& regions, const Kept& to, SelectShared& s) {
  struct Place {
    int at, key;
  };
  const int heads = p.n_heads / p.n_kv_heads;
  Extremes extremes;
  regions.each<kThreads>(
      [&](int place, int region) {
        return Place{place, region * kRegionKeys + group.keys[place]};
      },
      [&](int i, Place kept) {
        const float* const scores = group.scores + int64_t{kept.at} * shared_scores(heads);
        float rank = -INFINITY;
#pragma unroll 1
        for (int h = 0; h < heads; ++h) {
          float score = scores[h];
          if constexpr (kWidth > 0)
            score = refine<kWidth>(p, list, group.queries[h], group.q[h], kept.key, score);
          group.kept[h][i] = score;
          rank = fmaxf(rank, score - group.references[h]);
        }
        const uint32_t order = order_of(rank);
        extremes.take(order);
        to.orders[i] = order;
        to.keys[i] = static_cast<uint32_t>(kept.key);
      });
  extremes.join(s);
}

/// The regions once more, all scores of which are kept; by the whole block.
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const GroupRegions& to,
                         int n_heads) {
  for (int begin = warp_of() * kRegionKeys; begin < list.n; begin += kWarps * kRegionKeys) {
    const int n = min(list.n - begin, kRegionKeys);
    for (int first = 0; first < n_heads; first += kQuad) {
      const int in_quad = min(n_heads - first, kQuad), head = query_of_lane();
      const LaneQueries lane(p.scratch.queries + list.local + first, in_quad);
      const int8_t* q = p.scratch.q + (list.local + first) * p.codes.dims;
      float* const scores = to.scores + int64_t{begin} * to.width + first + head;
      for (int key = 0; key < n; key += kTile) {
        const float2 score = score_tile(list.group(p, begin + key), key % kCodeKeys / kTile,
                                        p.codes.dims, q, in_quad, lane);
        const int own = key + key_of_lane();
        if (own >= n) continue;
        scores[int64_t{own} * to.width] = score.x;
        scores[int64_t{own} * to.width + 1] = score.y;
        if (first + head == 0) to.keys[begin + own] = static_cast<uint16_t>(own);
      }
    }
    if (lane_of() == 0) to.counts[begin / kRegionKeys] = n;
  }
}

/// The best of the kept keys, written, and each head's masses; by the whole block. bits: room for a
/// bit a key and a mass a run.
template <int kWidth, bool kInShared>
__device__ __forceinline__ void choose_kept(const ChooseCodedParams& p, const CodedList& list,
                                            const Group& group, const KeptRegions& counted,
                                            const KeptScores<kThreads, kInShared>& kept,
                                            SelectShared& s, uint32_t* bits) {
  const int heads = p.n_heads / p.n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const int n = list.n, words = (n + 31) / 32, n_runs = (n + kMeanKeys - 1) / kMeanKeys;
  const GroupRegions regions(p, list);
  refine_kept<kWidth>(p, list, group, counted, kept, s);
  for (int i = thread; i < words; i += kThreads) bits[i] = 0;
  const Pick pick = find_best(s, kept, list.wanted(p));
  kept.each([&](int, uint32_t order, uint32_t key) {
    if (pick.takes(order, key)) atomicOr(&bits[key / 32], 1u << key % 32);
  });
  __syncthreads();
  write_ids<kThreads>(bits, n, p.begin, p.ids + list.local / heads * p.stride + p.begin);
  if (p.masses == nullptr) return;

  // Each head weighs the other keys by its own scores; those of candidates are cut at its
  // threshold.
  const float least = score_of(pick.least), floor = group.queries[0].floor;  // ranks
  uint32_t* const masses = bits + words;
  const float of_floor = floor == -INFINITY ? 0.0f : exp2f((floor - least) * kLog2E);
#pragma unroll 1
  for (int h = 0; h < heads; ++h) {
    const float threshold = group.references[h] + least;
    const float* const scores = group.kept[h];
    if (thread == 0) p.origin[list.local + h] = threshold + group.queries[h].center;
    for (int r = thread; r < n_runs; r += kThreads) masses[r] = 0;
    __syncthreads();
    kept.each([&](int i, uint32_t order, uint32_t key) {
      if (pick.takes(order, key)) return;
      const float over = fminf(scores[i] - threshold, 0.0f);
      atomicAdd(&masses[key / kMeanKeys], mass_number(exp2f(over * kLog2E)));
    });
    __syncthreads();
    float* const to = regions.masses + h * regions.mass_stride;
    for (int r = thread; r < n_runs; r += kThreads)
      to[r] = (to[r] > 0 && of_floor > 0 ? to[r] * of_floor : 0.0f) +
              static_cast<float>(masses[r]) * kMassUnit;
    __syncthreads();
  }
}

/// Block (KV head, row); kWidth lower bits. Shared memory: `words` of a bit a key, which regions'
/// numbers precede, and a mass a run; `room` kept orders and their keys.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) choose(const ChooseCodedParams p, int words, int room) {
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
  const GroupRegions to(p, list);
  if (wanted == n) {
    for (int i = thread; i < n; i += kThreads) ids[p.begin + i] = p.begin + i;
    for (int h = 0; h < heads && p.masses != nullptr; ++h)
      for (int r = thread; r * kMeanKeys < n; r += kThreads) to.masses[h * to.mass_stride + r] = 0;
    return;
  }
  group.load(p, list, heads);
  int* const before = reinterpret_cast<int*>(bits);
  KeptRegions counted = KeptRegions::count<kThreads>(n, to.counts, before);
  if (counted.n <= wanted) {
    keep_all(p, list, to, heads);
    if (thread == 0) group.queries[0].floor = -INFINITY;
    __syncthreads();
    counted = KeptRegions::count<kThreads>(n, to.counts, before);
  }
  const auto choose_from = [&](const auto& kept) {
    choose_kept<kWidth>(p, list, group, counted, kept, s, bits);
  };
  if (counted.n <= room)
    choose_from(KeptScores<kThreads, true>{bits + words, bits + words + room, counted.n});
  else
    choose_from(KeptScores<kThreads, false>{to.orders, to.numbers, counted.n});
}

}  // namespace

void choose_shared(const ChooseCodedParams& p, Stream stream) {
  constexpr int kStatic = sizeof(SelectShared) + sizeof(Group) + 1024;
  const KeptRoom room(p, cuda::gpu().block_shared_bytes - kStatic);
  const auto kernel = p.codes.bits == 1 ? choose<0> : p.codes.bits == 2 ? choose<1> : choose<2>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room.bytes());
  cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows)),
               kThreads, static_cast<size_t>(room.bytes()), 1, stream, p, room.words, room.keys);
}

}  // namespace tandem::coded
