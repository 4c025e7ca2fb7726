// The best of the scores that a scan kept: the candidates by signs, refined, and the best of these.
// Where too few reached the floor, which costs time alone, the list's keys are scanned once more.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace coded {
namespace {

/// The regions of one list once more, every score of which is kept; by the whole block.
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const ListRegions& to) {
  const LaneQueries lane(p.scratch.queries + list.local, 1);
  for (int begin = warp_of() * kRegionKeys; begin < list.n; begin += kSelectWarps * kRegionKeys) {
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

/// A word of a key's lower bits times the whole numbers from q on.
__device__ int low_sum(uint32_t word, const uint32_t* q, int width, int sum) {
  const uint32_t mask = width == 1 ? 0x01010101u : 0x03030303u;
#pragma unroll
  for (int f = 0; f < 8; ++f)
    if (f * width < 8)
      sum = __dp4a(static_cast<int>(word >> f * width & mask), static_cast<int>(q[f]), sum);
  return sum;
}

/// A candidate's score by all bits, from that by signs; q: words of the whole numbers. Keys lie
/// anywhere: few and wide accesses.
__device__ float refine(const ChooseCodedParams& p, const CodedList& list,
                        const DeviceCodeQuery& query, const uint32_t* q, int key, float old) {
  const int width = p.codes.bits - 1, fields = 8 / width, dims = p.codes.dims;
  const int words = dims / 32 * width;
  const uint8_t* low = list.low(p, key);
  const uint32_t pair = *reinterpret_cast<const uint16_t*>(list.group(p, key) + 16 * dims +
                                                           device_scale_place(key % kCodeKeys));
  int lows = 0;
  if (words % 4 == 0) {
#pragma unroll 2
    for (int w = 0; w < words; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(low)[w / 4];
      lows = low_sum(four.x, q + w * fields, width, lows);
      lows = low_sum(four.y, q + (w + 1) * fields, width, lows);
      lows = low_sum(four.z, q + (w + 2) * fields, width, lows);
      lows = low_sum(four.w, q + (w + 3) * fields, width, lows);
    }
  } else {
    for (int w = 0; w < words; ++w)
      lows = low_sum(reinterpret_cast<const uint32_t*>(low)[w], q + w * fields, width, lows);
  }
  const float scale = scale_of(pair), by_axis = query.axis_gain * share_of(pair),
              by_signs = query.sign_gain * scale;
  // As code_refine.inl: the sum by signs is a whole number, so rounding gives it back.
  const float signs = fabsf(by_signs) > 0 ? rintf((old - by_axis) / by_signs) : 0.0f;
  const float less = static_cast<float>((1 << width) - 1) * query.total;
  const float sum =
      fmaf(signs, static_cast<float>(1 << width), fmaf(static_cast<float>(lows), 2.0f, -less));
  return sum * query.gain * scale + by_axis;
}

/// The scores of a list's regions one after the other, by the whole block. before: room for the
/// regions.
__device__ KeptScores gather_kept(const CodedList& list, const ListRegions& from, int* before) {
  const int regions = (list.n + kRegionKeys - 1) / kRegionKeys, thread = threadIdx.x;
  const int each = (regions + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(thread * each, regions), end = min(begin + each, regions);
  int own = 0, all;
  for (int r = begin; r < end; ++r) own += from.counts[r];
  int sum = cuda::sum_before<kSelectThreads>(own, all);
  for (int r = begin; r < end; ++r) {
    before[r] = sum;
    sum += from.counts[r];
  }
  __syncthreads();
#pragma unroll 2
  for (int r = warp_of(); r < regions; r += kSelectWarps)
    for (int i = lane_of(); i < from.counts[r]; i += cuda::kWarp) {
      const int at = r * kRegionKeys + i;
      from.kept[before[r] + i] = from.scores[at];
      from.number[before[r] + i] = static_cast<uint32_t>(r * kRegionKeys + from.keys[at]);
    }
  __syncthreads();
  return {from.kept, from.number, all};
}

/// Writes the tokens of set bits, one for each of n keys, in their order.
__device__ void write_ids(const uint32_t* bits, int n, int first, int32_t* ids) {
  const int words = (n + 31) / 32, thread = threadIdx.x;
  const int each = (words + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(thread * each, words), end = min(begin + each, words);
  int own = 0, all;
  for (int w = begin; w < end; ++w) own += __popc(bits[w]);
  int32_t* to = ids + cuda::sum_before<kSelectThreads>(own, all);
  for (int w = begin; w < end; ++w)
    for (uint32_t word = bits[w]; word != 0; word &= word - 1)
      *to++ = first + w * 32 + __ffs(static_cast<int>(word)) - 1;
}

/// Weights of up to 1 as whole numbers, whose sums do not depend on their order: of a run they stay
/// below 2^32.
constexpr float kMassUnit = 1.0f / (1 << 23);

/// Block (head, row). Shared memory: a bit a key, which regions' numbers precede; a mass a run.
__global__ void __launch_bounds__(kSelectThreads) choose(const ChooseCodedParams p) {
  extern __shared__ uint32_t bits[];
  __shared__ SelectShared s;
  __shared__ __align__(16) uint32_t q[kMostDims / 4];
  cuda::start_after_previous();
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  const int64_t number = list.local;
  const int n = list.n, wanted = n == 0 ? 0 : list.wanted(p), thread = threadIdx.x;
  int32_t* const ids = p.ids + number * p.stride;
  if (thread == 0) {
    p.count[number] = n == 0 ? 0 : p.begin + wanted;
    if (p.origin != nullptr) p.origin[number] = -INFINITY;
  }
  if (n == 0) return;
  const ListRegions to(p, list, 0);
  for (int i = thread; i < p.begin; i += kSelectThreads) ids[i] = i;
  const int n_runs = (n + kMeanKeys - 1) / kMeanKeys;
  if (wanted == n) {
    for (int i = thread; i < n; i += kSelectThreads) ids[p.begin + i] = p.begin + i;
    for (int r = thread; r < n_runs && to.masses != nullptr; r += kSelectThreads) to.masses[r] = 0;
    return;
  }
  DeviceCodeQuery query = p.scratch.queries[list.local];
  for (int w = thread; w < p.codes.dims / 4; w += kSelectThreads)
    q[w] = reinterpret_cast<const uint32_t*>(p.scratch.q + list.local * p.codes.dims)[w];
  KeptScores kept = gather_kept(list, to, reinterpret_cast<int*>(bits));
  const int candidates = list.candidates(p);
  if (kept.n < candidates) {
    keep_all(p, list, to);
    query.floor = -INFINITY;
    __syncthreads();
    kept = gather_kept(list, to, reinterpret_cast<int*>(bits));
  }

  constexpr uint32_t kCandidate = 1u << 31;  // in a kept score's number
  Pick pick = find_threshold(s, kept, candidates, [](uint32_t order, uint32_t) { return order; });
  kept.each([&](int i, float score, uint32_t key) {
    if (!pick.takes(order_of(score), key)) return;
    kept.numbers[i] = key | kCandidate;
    if (p.codes.bits > 1) cuda::prefetch(list.low(p, static_cast<int>(key)));
  });
  if (p.codes.bits > 1)
    kept.each([&](int i, float score, uint32_t key) {
      if ((key & kCandidate) != 0)
        kept.scores[i] = refine(p, list, query, q, static_cast<int>(key & ~kCandidate), score);
    });
  pick = find_threshold(s, kept, wanted, [](uint32_t order, uint32_t key) {
    return (key & kCandidate) != 0 ? order : 0u;
  });

  const float threshold = score_of(pick.least);
  const int words = (n + 31) / 32;
  uint32_t* const masses = bits + words;
  for (int i = thread; i < words + n_runs; i += kSelectThreads) bits[i] = 0;
  __syncthreads();
  kept.each([&](int, float score, uint32_t marked) {
    const uint32_t key = marked & ~kCandidate;
    if ((marked & kCandidate) != 0 && pick.takes(order_of(score), marked))
      atomicOr(&bits[key / 32], 1u << key % 32);
    else if (to.masses != nullptr)
      atomicAdd(&masses[key / kMeanKeys],
                static_cast<uint32_t>(exp2f(fminf(score - threshold, 0.0f) * kLog2E) / kMassUnit));
  });
  __syncthreads();
  write_ids(bits, n, p.begin, ids + p.begin);
  // Keys below the floor are not cut at the threshold: they pass it where the floor does.
  const float of_floor =
      query.floor == -INFINITY ? 0.0f : exp2f((query.floor - threshold) * kLog2E);
  for (int r = thread; r < n_runs && to.masses != nullptr; r += kSelectThreads)
    to.masses[r] = to.masses[r] * of_floor + static_cast<float>(masses[r]) * kMassUnit;
  if (thread == 0 && p.origin != nullptr) p.origin[number] = threshold + query.center;
}

}  // namespace

void choose_best(const ChooseCodedParams& p, Stream stream) {
  const size_t bytes =
      sizeof(uint32_t) *
      static_cast<size_t>((p.max_keys + 31) / 32 + (p.max_keys + kMeanKeys - 1) / kMeanKeys);
  (void)cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(choose, dim3(static_cast<unsigned>(p.n_heads), static_cast<unsigned>(p.n_rows)),
               kSelectThreads, bytes, 1, stream, p);
}

}  // namespace coded

void choose_coded_cuda(const ChooseCodedParams& p, Stream stream) {
  if (p.n_rows == 0 || p.max_keys <= 0) return;
  (p.shared ? coded::prepare_shared : coded::prepare_queries)(p, stream);
  (p.shared ? coded::scan_shared : coded::scan_signs)(p, stream);
  (p.shared ? coded::choose_shared : coded::choose_best)(p, stream);
}

}  // namespace tandem
