// The best by rank of the candidates that heads share, and each head's masses of the others.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/group.cuh"
#include "kernels/code/kept_regions.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/tail_masses.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;

/// All keys of a set, refined for every head; by the whole block.
template <int kWidth>
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const ListRegions& to,
                         const Group& group) {
  const int width = shared_scores(group.heads);
  float* const scores = scores_of(p, list.set(p), group.heads);
  for (int begin = warp_of() * kRegionKeys; begin < list.n; begin += kWarps * kRegionKeys) {
    const int end = min(begin + kRegionKeys, list.n);
    for (int first = 0; first < group.heads; first += kQuad) {
      const int in_quad = min(group.heads - first, kQuad);
      const LaneQueries lane(p.scratch.queries + list.local + first, in_quad);
      const int8_t* q = p.scratch.q + (list.local + first) * p.codes.dims;
      for (int key = begin; key < end; key += kTile) {
        const float2 score =
            score_tile(list.group(p, key), key % kCodeKeys / kTile, p.codes.dims, q, in_quad, lane);
        const int own = key + key_of_lane();
        if (own < end)
          reinterpret_cast<float2*>(scores + int64_t{own} * width + first)[lane_of() % 2] = score;
      }
    }
    __syncwarp();
    for (int key = begin + lane_of(); key < end; key += cuda::kWarp)
      to.scanned[key] = {group.refined_rank<kWidth>(p, list, key, scores + int64_t{key} * width),
                         static_cast<uint32_t>(key)};
    if (lane_of() == 0) to.counts[begin / kRegionKeys] = end - begin;
  }
}

/// The best of the kept keys, written, and each head's masses; by the whole block. bits: room for a
/// bit a key, and a mass a run and head.
template <bool kInShared>
__device__ __forceinline__ void choose_kept(const ChooseCodedParams& p, const CodedList& list,
                                            const Group& group, const KeptRegions& regions,
                                            const KeptScores<kThreads, kInShared>& kept,
                                            SelectShared& s, uint32_t* bits) {
  const int heads = group.heads, thread = static_cast<int>(threadIdx.x);
  const int n = list.n, words = (n + 31) / 32;
  const KeptKey* const scanned = ListRegions(p, list.set(p)).scanned;
  regions.gather(s, scanned, kept);
  const TailMasses<kThreads> masses(p, list, bits + words, regions.n);
  for (int i = thread; i < words + heads * masses.size(); i += kThreads) bits[i] = 0;
  const Pick pick = find_best(s, kept, list.wanted(p));
  kept.each([&](int, uint32_t order, uint32_t key) {
    if (pick.takes(order, key)) atomicOr(&bits[key / 32], 1u << key % 32);
  });
  __syncthreads();
  write_ids<kThreads>(bits, n, p.begin, p.ids + list.set(p) * p.stride + p.begin);
  if (thread < heads && p.origin != nullptr)
    p.origin[list.local + thread] =
        group.references[thread] + score_of(pick.least) + group.queries[thread].center;
  if (p.masses == nullptr) return;

  // Each head weighs the other keys by its own scores; those of candidates are cut at its
  // threshold.
  const float least = score_of(pick.least), floor = group.queries[0].floor;  // ranks
  const float* const scores = scores_of(p, list.set(p), heads);
  struct Placed {
    KeptKey kept;
    int place;
  };
  regions.each<kThreads>(
      [&](int place) {
        return Placed{scanned[place], place};
      },
      [&](int, const Placed& at) {
        if (pick.takes(order_of(at.kept.score), at.kept.key)) return;
        for (int h = 0; h < heads; ++h) {
          const float score = scores[int64_t{at.place} * shared_scores(heads) + h];
          const float over = fminf(score - (group.references[h] + least), 0.0f);
          masses.add(h, static_cast<int>(at.kept.key), exp2f(over * kLog2E));
        }
      });
  const float of_floor = floor == -INFINITY ? 0.0f : exp2f((floor - least) * kLog2E);
  masses.write(heads, of_floor, reinterpret_cast<float*>(s.bins));
}

/// Block (KV head, row); kWidth lower bits. Shared memory: KeptRoom's.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) choose(const ChooseCodedParams p, int words, int room) {
  extern __shared__ uint32_t bits[];
  __shared__ SelectShared s;
  __shared__ Group group;
  cuda::start_after_previous();
  const int heads = p.n_heads / p.n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * heads);
  const int64_t number = list.set(p);
  const int n = list.n, wanted = n == 0 ? 0 : list.wanted(p);
  int32_t* const ids = p.ids + number * p.stride;
  if (thread == 0) p.count[number] = n == 0 ? 0 : p.begin + wanted;
  if (thread < heads && p.origin != nullptr) p.origin[list.local + thread] = -INFINITY;
  if (n == 0) return;
  for (int i = thread; i < p.begin; i += kThreads) ids[i] = i;
  if (wanted == n) {
    for (int i = thread; i < n; i += kThreads) ids[p.begin + i] = p.begin + i;
    return clear_masses<kThreads>(p, list, heads);
  }
  group.load(p, list, heads);
  const ListRegions to(p, number);
  int* const before = reinterpret_cast<int*>(bits);
  KeptRegions regions = KeptRegions::count<kThreads>(n, to.counts, before);
  if (regions.n <= wanted) {
    keep_all<kWidth>(p, list, to, group);
    __syncthreads();
    if (thread == 0) group.queries[0].floor = -INFINITY;
    regions = KeptRegions::count<kThreads>(n, to.counts, before);
  }
  const auto choose_from = [&](const auto& kept) {
    choose_kept(p, list, group, regions, kept, s, bits + regions.regions + 1);
  };
  if (regions.n <= room)
    choose_from(KeptScores<kThreads, true>{bits + words, bits + words + room, regions.n});
  else
    choose_from(KeptScores<kThreads, false>{to.orders, to.keys, regions.n});
}

}  // namespace

void choose_shared(const ChooseCodedParams& p, Stream stream) {
  constexpr int kStatic = sizeof(SelectShared) + sizeof(Group) + 1024;
  const KeptRoom room(p, cuda::gpu().block_shared_bytes - kStatic, p.n_heads / p.n_kv_heads);
  const auto kernel = p.codes.bits == 1 ? choose<0> : p.codes.bits == 2 ? choose<1> : choose<2>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room.bytes());
  cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows)),
               kThreads, static_cast<size_t>(room.bytes()), 1, stream, p, room.words, room.keys);
}

}  // namespace tandem::coded
