// The best of the keys that a scan kept, the candidates by signs: refined, and selected. Where too
// few reached the floor, which costs time alone, the list's keys are scanned once more.
#include <math.h>

#include <algorithm>

#include "kernels/code/choose_steps.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/kept_regions.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/mass_budget.cuh"
#include "kernels/code/refine_coded.cuh"
#include "kernels/code/tail_masses.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace coded {
namespace {

constexpr int kMostThreads = 1024;  // of a multiprocessor: 64 registers each

/// What a block has in shared memory next to its list's bits and kept keys.
struct ChooseShared {
  SelectShared select;
  DeviceCodeQuery query;
  __align__(16) uint32_t q[kMostDims / 4];  // words of the whole numbers
};

/// All keys of a list, refined; by the whole block.
template <int kWidth, int kThreads>
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const ListRegions& to,
                         const ChooseShared& s) {
  const LaneQueries lane(p.scratch.queries + list.local, 1);
  clear_masses<kThreads>(p, list, 1);
  for (int begin = warp_of() * kRegionKeys; begin < list.n;
       begin += (kThreads / cuda::kWarp) * kRegionKeys) {
    const int n = min(list.n - begin, kRegionKeys);
    // One query: the lanes of the first two columns have it as their first.
    for (int key = 0; key < n; key += kTile) {
      float score = score_tile(list.group(p, begin + key), key % kCodeKeys / kTile, p.codes.dims,
                               p.scratch.q + list.local * p.codes.dims, 1, lane)
                        .x;
      const int own = begin + key + key_of_lane();
      if (query_of_lane() != 0 || own >= list.n) continue;
      if constexpr (kWidth > 0) score = refine<kWidth>(p, list, s.query, s.q, own, score);
      to.scanned[own] = {score, static_cast<uint32_t>(own)};
    }
    if (lane_of() == 0) to.counts[begin / kRegionKeys] = n;
  }
}

/// The best of the kept keys, written; by the whole block. kBudgeted: with a budget by mass or
/// scores that are left.
template <int kThreads, bool kBudgeted, bool kInShared>
__device__ __forceinline__ void choose_kept(const ChooseCodedParams& p, const CodedList& list,
                                            const KeptRegions& regions,
                                            const KeptScores<kThreads, kInShared>& kept,
                                            ChooseShared& s, uint32_t* bits) {
  const int n = list.n, thread = static_cast<int>(threadIdx.x);
  const int words = (n + 31) / 32;
  regions.gather(s.select, ListRegions(p, list.local).scanned, kept);
  int wanted = list.wanted(p);
  if (kBudgeted && p.mass > 0) {
    wanted = keys_of_mass(p, list, kept, s.query.floor, score_of(s.select.most), wanted);
    if (thread == 0) p.count[list.local] = p.begin + wanted;
  }
  const TailMasses<kThreads> masses(p, list, bits + words, regions.n);
  for (int i = thread; i < words + masses.size(); i += kThreads) bits[i] = 0;
  const Pick pick = find_best(s.select, kept, wanted);

  const float threshold = score_of(pick.least);
  float* const left = kBudgeted && p.tail_scores != nullptr
                          ? p.tail_scores + list.local * p.scratch.key_stride
                          : nullptr;
  const bool has_masses = p.masses != nullptr;
  float exact = 0;
  kept.each([&](int, uint32_t order, uint32_t key) {
    const bool chosen = pick.takes(order, key);
    const float score = score_of(order);
    if (chosen)
      atomicOr(&bits[key / 32], 1u << key % 32);
    else if (has_masses)
      masses.add(0, static_cast<int>(key), exp2f(fminf(score - threshold, 0.0f) * kLog2E));
    if (left == nullptr) return;
    if (chosen) exact += exp2f((score - threshold) * kLog2E);
    left[key] = chosen ? -INFINITY : score;
  });
  __syncthreads();
  write_ids<kThreads>(bits, n, p.begin, p.ids + list.local * p.stride + p.begin);
  // Keys below the floor are not cut at the threshold: they pass it where the floor does.
  const float of_floor =
      s.query.floor == -INFINITY ? 0.0f : exp2f((s.query.floor - threshold) * kLog2E);
  if (has_masses) masses.write(1, of_floor, reinterpret_cast<float*>(s.select.bins));
  if (thread == 0 && p.origin != nullptr) p.origin[list.local] = threshold + s.query.center;
  if (left == nullptr) return;
  exact = cuda::block_sum<kThreads>(exact);
  if (thread == 0) p.threshold[list.local] = threshold;
  if (thread == 0 && p.exact_mass != nullptr) p.exact_mass[list.local] = exact;
}

/// Block (head, row); kWidth lower bits. Shared memory: KeptRoom's.
template <int kWidth, int kThreads, bool kBudgeted>
__global__ void __launch_bounds__(kThreads, kMostThreads / kThreads)
    choose(const ChooseCodedParams p, int words, int room) {
  extern __shared__ uint32_t bits[];
  __shared__ ChooseShared s;
  cuda::start_after_previous();
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  const int64_t number = list.local;
  const int n = list.n, thread = static_cast<int>(threadIdx.x);
  const int wanted = n == 0 ? 0 : list.wanted(p);
  int32_t* const ids = p.ids + number * p.stride;
  if (thread == 0) {
    p.count[number] = n == 0 ? 0 : p.begin + wanted;
    if (p.origin != nullptr) p.origin[number] = -INFINITY;
  }
  if (n == 0) return;
  const ListRegions to(p, number);
  for (int i = thread; i < p.begin; i += kThreads) ids[i] = i;
  if (wanted == n) {
    for (int i = thread; i < n; i += kThreads) ids[p.begin + i] = p.begin + i;
    return clear_masses<kThreads>(p, list, 1);
  }
  if (thread == 0) s.query = p.scratch.queries[number];
  for (int w = thread; w < p.codes.dims / 4; w += kThreads)
    s.q[w] = reinterpret_cast<const uint32_t*>(p.scratch.q + number * p.codes.dims)[w];
  int* const before = reinterpret_cast<int*>(bits);
  KeptRegions regions = KeptRegions::count<kThreads>(n, to.counts, before);
  if (regions.n <= wanted) {
    keep_all<kWidth, kThreads>(p, list, to, s);
    __syncthreads();
    if (thread == 0) s.query.floor = -INFINITY;
    regions = KeptRegions::count<kThreads>(n, to.counts, before);
  }
  const auto choose_from = [&](const auto& kept) {
    choose_kept<kThreads, kBudgeted>(p, list, regions, kept, s, bits + regions.regions + 1);
  };
  if (regions.n <= room)
    choose_from(KeptScores<kThreads, true>{bits + words, bits + words + room, regions.n});
  else
    choose_from(KeptScores<kThreads, false>{to.orders, to.keys, regions.n});
}

template <int kWidth, int kThreads, bool kBudgeted>
void launch_choose(const ChooseCodedParams& p, Stream stream) {
  // Of a multiprocessor's shared memory its share; kept keys beyond it stay in global memory.
  constexpr int kBlocks = kMostThreads / kThreads, kReserved = 1024;
  constexpr int kStatic = sizeof(ChooseShared) + 8192;  // and that of the block's sums and budgets
  const int share =
      std::min(cuda::gpu().shared_bytes / kBlocks - kReserved, cuda::gpu().block_shared_bytes);
  const KeptRoom room(p, share - kStatic, 1);
  const auto kernel = choose<kWidth, kThreads, kBudgeted>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room.bytes());
  cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_heads), static_cast<unsigned>(p.n_rows)),
               kThreads, static_cast<size_t>(room.bytes()), 1, stream, p, room.words, room.keys);
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
  (p.shared ? coded::refine_shared : coded::refine_kept)(p, stream);
  (p.shared ? coded::choose_shared : coded::choose_best)(p, stream);
}

}  // namespace tandem
