// The best of the scores that a scan kept: the candidates by signs, refined, and the best of these.
// Where too few reached the floor, which costs time alone, the list's keys are scanned once more.
#include <math.h>

#include <algorithm>

#include "kernels/code/choose_steps.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/mass_budget.cuh"
#include "kernels/code/refine_coded.cuh"
#include "kernels/code/write_chosen.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace coded {
namespace {

constexpr int kMostThreads = 1024;  // of a multiprocessor: 64 registers each

/// The regions of one list once more, every score of which is kept; by the whole block.
template <int kThreads>
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const ListRegions& to) {
  const LaneQueries lane(p.scratch.queries + list.local, 1);
  for (int begin = warp_of() * kRegionKeys; begin < list.n;
       begin += (kThreads / cuda::kWarp) * kRegionKeys) {
    const int n = min(list.n - begin, kRegionKeys);
    // One query: the lanes of the first two columns have it as their first.
    for (int key = 0; key < n; key += kTile) {
      const float score = score_tile(list.group(p, begin + key), key % kCodeKeys / kTile,
                                     p.codes.dims, p.scratch.q + list.local * p.codes.dims, 1, lane)
                              .x;
      const int own = key + key_of_lane();
      if (query_of_lane() != 0 || own >= n) continue;
      to.scores[begin + own] = score;
      to.keys[begin + own] = static_cast<uint16_t>(own);
    }
    if (lane_of() == 0) to.counts[begin / kRegionKeys] = n;
    if (to.masses != nullptr && lane_of() * kMeanKeys < n)
      to.masses[begin / kMeanKeys + lane_of()] = 0;
  }
}

/// The scores of a list's regions one after the other, by the whole block, and their extremes in s.
/// before: how many scores there are before each region; the scores go to `own` if they are no more
/// than `room`.
template <int kThreads>
__device__ KeptScores<kThreads> gather_kept(SelectShared& s, const CodedList& list,
                                            const ListRegions& from, int* before, uint32_t* own,
                                            int room) {
  const int regions = (list.n + kRegionKeys - 1) / kRegionKeys, thread = threadIdx.x;
  const int each = (regions + kThreads - 1) / kThreads;
  const int begin = min(thread * each, regions), end = min(begin + each, regions);
  int count = 0, all;
  for (int r = begin; r < end; ++r) count += from.counts[r];
  int sum = cuda::sum_before<kThreads>(count, all);
  for (int r = begin; r < end; ++r) {
    before[r] = sum;
    sum += from.counts[r];
  }
  __syncthreads();
  KeptScores<kThreads> to{from.kept, from.number, all};
  if (all <= room) to.scores = reinterpret_cast<float*>(own), to.numbers = own + room;
  Extremes extremes;
  constexpr int kWarps = kThreads / cuda::kWarp;
  constexpr int kAhead = 4;  // regions that a warp reads at once
#pragma unroll 1
  for (int first = warp_of(); first < regions; first += kAhead * kWarps) {
    int n[kAhead], at[kAhead];
    float score[kAhead];
    uint16_t key[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int r = first + a * kWarps;
      at[a] = r < regions ? before[r] : 0;
      n[a] = r < regions ? (r + 1 < regions ? before[r + 1] : all) - at[a] : 0;
    }
    for (int i = lane_of(); i < max(max(n[0], n[1]), max(n[2], n[3])); i += cuda::kWarp) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int from_at = (first + a * kWarps) * kRegionKeys + i;
        if (i < n[a]) score[a] = from.scores[from_at], key[a] = from.keys[from_at];
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (i >= n[a]) continue;
        to.scores[at[a] + i] = score[a];
        to.numbers[at[a] + i] = static_cast<uint32_t>((first + a * kWarps) * kRegionKeys + key[a]);
        extremes.take(order_of(score[a]));
      }
    }
  }
  extremes.join(s);
  return to;
}

/// Words of shared memory that a bit a key, which regions' numbers precede, and a mass a run take.
int words_of(const ChooseCodedParams& p) {
  return (p.max_keys + 31) / 32 + (p.max_keys + kMeanKeys - 1) / kMeanKeys;
}

/// Block (head, row); kWidth lower bits, kBudgeted: with a budget by mass or scores that are left.
/// Shared memory: `words` of them, and `room` kept scores and their numbers.
template <int kWidth, int kThreads, bool kBudgeted>
__global__ void __launch_bounds__(kThreads, kMostThreads / kThreads)
    choose(const ChooseCodedParams p, int words, int room) {
  extern __shared__ uint32_t bits[];
  __shared__ SelectShared s;
  __shared__ __align__(16) uint32_t q[kMostDims / 4];
  __shared__ int n_places;
  cuda::start_after_previous();
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  const int64_t number = list.local;
  const int n = list.n, thread = threadIdx.x;
  int wanted = n == 0 ? 0 : list.wanted(p);
  int32_t* const ids = p.ids + number * p.stride;
  if (thread == 0) {
    n_places = 0;
    p.count[number] = n == 0 ? 0 : p.begin + wanted;
    if (p.origin != nullptr) p.origin[number] = -INFINITY;
  }
  if (n == 0) return;
  const ListRegions to(p, list, 0);
  for (int i = thread; i < p.begin; i += kThreads) ids[i] = i;
  const int n_runs = (n + kMeanKeys - 1) / kMeanKeys;
  if (wanted == n) {
    for (int i = thread; i < n; i += kThreads) ids[p.begin + i] = p.begin + i;
    for (int r = thread; r < n_runs && to.masses != nullptr; r += kThreads) to.masses[r] = 0;
    return;
  }
  DeviceCodeQuery query = p.scratch.queries[list.local];
  for (int w = thread; w < p.codes.dims / 4; w += kThreads)
    q[w] = reinterpret_cast<const uint32_t*>(p.scratch.q + list.local * p.codes.dims)[w];
  KeptScores<kThreads> kept =
      gather_kept<kThreads>(s, list, to, reinterpret_cast<int*>(bits), bits + words, room);
  const int candidates = list.candidates(p);
  if (kept.n < candidates) {
    keep_all<kThreads>(p, list, to);
    query.floor = -INFINITY;
    __syncthreads();
    kept = gather_kept<kThreads>(s, list, to, reinterpret_cast<int*>(bits), bits + words, room);
  }

  Pick pick = find_threshold(s, kept, candidates, [](uint32_t order, uint32_t) { return order; });
  // Where in `kept` the candidates are: room that the regions' scores have left.
  auto* const places = reinterpret_cast<uint32_t*>(to.scores);
  kept.each([&](int i, float score, uint32_t key) {
    if (!pick.takes(order_of(score), key)) return;
    kept.numbers[i] = key | kCandidate;
    places[atomicAdd(&n_places, 1)] = static_cast<uint32_t>(i);
    if constexpr (kWidth > 0) cuda::prefetch(list.low(p, static_cast<int>(key)));
  });
  __syncthreads();
  Extremes extremes;
#pragma unroll 2
  for (int c = thread; c < candidates; c += kThreads) {
    const uint32_t at = places[c];
    float score = kept.scores[at];
    if constexpr (kWidth > 0) {
      score = refine<kWidth>(p, list, query, q, static_cast<int>(kept.numbers[at] & ~kCandidate),
                             score);
      kept.scores[at] = score;
    }
    extremes.take(order_of(score));
  }
  extremes.join(s);
  if (kBudgeted && p.mass > 0) {
    wanted = keys_of_mass(p, list, kept, to.masses, query.floor, score_of(s.most), wanted);
    if (thread == 0) p.count[number] = p.begin + wanted;
  }
  pick = find_threshold(s, kept, wanted, [](uint32_t order, uint32_t key) {
    return (key & kCandidate) != 0 ? order : 0u;
  });

  const float threshold = score_of(pick.least);
  if (kBudgeted && p.tail_scores != nullptr) {
    float* const all = p.tail_scores + number * p.scratch.key_stride;
    float mass = 0;
    kept.each([&](int, float score, uint32_t marked) {
      if ((marked & kCandidate) == 0) return;
      const bool chosen = pick.takes(order_of(score), marked);
      if (chosen) mass += exp2f((score - threshold) * kLog2E);
      all[marked & ~kCandidate] = chosen ? -INFINITY : score;
    });
    mass = cuda::block_sum<kThreads>(mass);
    if (thread == 0) p.threshold[number] = threshold;
    if (thread == 0 && p.exact_mass != nullptr) p.exact_mass[number] = mass;
  }
  uint32_t* const masses = bits + (n + 31) / 32;
  for (int i = thread; i < (n + 31) / 32 + n_runs; i += kThreads) bits[i] = 0;
  __syncthreads();
  kept.each([&](int, float score, uint32_t marked) {
    const uint32_t key = marked & ~kCandidate;
    if ((marked & kCandidate) != 0 && pick.takes(order_of(score), marked))
      atomicOr(&bits[key / 32], 1u << key % 32);
    else if (to.masses != nullptr)
      atomicAdd(&masses[key / kMeanKeys],
                mass_number(exp2f(fminf(score - threshold, 0.0f) * kLog2E)));
  });
  __syncthreads();
  write_ids<kThreads>(bits, n, p.begin, ids + p.begin);
  // Keys below the floor are not cut at the threshold: they pass it where the floor does.
  const float of_floor =
      query.floor == -INFINITY ? 0.0f : exp2f((query.floor - threshold) * kLog2E);
  for (int r = thread; r < n_runs && to.masses != nullptr; r += kThreads)
    to.masses[r] = (to.masses[r] > 0 ? to.masses[r] * of_floor : 0.0f) +
                   static_cast<float>(masses[r]) * kMassUnit;
  if (thread == 0 && p.origin != nullptr) p.origin[number] = threshold + query.center;
}

template <int kWidth, int kThreads, bool kBudgeted>
void launch_choose(const ChooseCodedParams& p, Stream stream) {
  // Of a multiprocessor's shared memory its share; kept scores beyond it stay in global memory.
  constexpr int kBlocks = kMostThreads / kThreads, kReserved = 1024, kWord = sizeof(uint32_t);
  const int own = static_cast<int>(sizeof(SelectShared)) + 4096;
  const int share =
      std::min(cuda::gpu().shared_bytes / kBlocks - kReserved, cuda::gpu().block_shared_bytes);
  const int words = words_of(p);
  const int room = std::clamp(((share - own) / kWord - words) / 2, 0, p.max_keys);
  const size_t bytes = sizeof(uint32_t) * static_cast<size_t>(words + 2 * room);
  const auto kernel = choose<kWidth, kThreads, kBudgeted>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_heads), static_cast<unsigned>(p.n_rows)),
               kThreads, bytes, 1, stream, p, words, room);
}

/// Two blocks share a multiprocessor where there are more lists than these: while one waits, the
/// other works.
template <int kWidth, bool kBudgeted>
void launch_choose(const ChooseCodedParams& p, Stream stream) {
  if (p.n_heads * p.n_rows > cuda::gpu().multiprocessors)
    launch_choose<kWidth, kMostThreads / 2, kBudgeted>(p, stream);
  else
    launch_choose<kWidth, kMostThreads, kBudgeted>(p, stream);
}
template <int kWidth>
void launch_choose(const ChooseCodedParams& p, Stream stream) {
  if (p.mass > 0 || p.tail_scores != nullptr)
    launch_choose<kWidth, true>(p, stream);
  else
    launch_choose<kWidth, false>(p, stream);
}

}  // namespace

void choose_best(const ChooseCodedParams& p, Stream stream) {
  if (p.codes.bits == 1) return launch_choose<0>(p, stream);
  p.codes.bits == 2 ? launch_choose<1>(p, stream) : launch_choose<2>(p, stream);
}

}  // namespace coded

void choose_coded_cuda(const ChooseCodedParams& p, Stream stream) {
  if (p.n_rows == 0 || p.max_keys <= 0) return;
  (p.shared ? coded::prepare_shared : coded::prepare_queries)(p, stream);
  (p.shared ? coded::scan_shared : coded::scan_signs)(p, stream);
  if (p.tail_scores != nullptr) coded::leave_scores(p, stream);
  (p.shared ? coded::choose_shared : coded::choose_best)(p, stream);
}

}  // namespace tandem
