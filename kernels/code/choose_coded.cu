// Three kernels. `prepare` makes whole numbers of queries, and from a sample of the keys a floor
// that some more keys reach than are candidates. `scan` reads all signs and keeps the scores that
// reach it. `choose` finds the candidates among these, refines them, and lists the best. A floor
// that too few keys reach costs time alone: `choose` then scans once more, without one.
#include <math.h>

#include "kernels/code/code_numbers.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/rotate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

using namespace coded;

constexpr int kMostDims = 256;

/// The heads of one KV head that a warp's tiles serve.
struct Quad {
  int first, n;
  __device__ Quad(const ChooseCodedParams& p, int number) {
    const int group = p.n_heads / p.n_kv_heads, quads = (group + kQuad - 1) / kQuad;
    first = number / quads * group + number % quads * kQuad;
    n = min(kQuad, group - number % quads * kQuad);
  }
};

constexpr int kPrepareThreads = 1024, kPrepareWarps = kPrepareThreads / cuda::kWarp;
constexpr int kSampleTiles = 128, kSample = kSampleTiles * kTile;  // keys
constexpr int kEach = kSample / kPrepareThreads;
constexpr int kRounds = 9;                  // of bisection
constexpr int kLeastSampled = 8 * kSample;  // below, every score is kept

struct PrepareShared {
  float rows[kQuad][kMostDims];
  int8_t q[kQuad * kMostDims];
  DeviceCodeQuery queries[kQuad];
  float sample[kQuad][kSample];
  uint32_t least[kQuad], most[kQuad];  // orders of scores
  int reach[kRounds][kQuad];
};

/// A warp makes the whole numbers of query i of the quad.
template <class T>
__device__ void make_query(const ChooseCodedParams& p, const CodedList& list, int i,
                           PrepareShared& s) {
  const DeviceCodes& codes = p.codes;
  const int d = codes.d, dims = codes.dims, lane = lane_of();
  const T* q = static_cast<const T*>(p.q) + (int64_t{list.row} * p.n_heads + list.head + i) * d;
  const float* frame =
      codes.frames + list.slot * codes.frame_slot_stride + list.kv_head * codes.frame_head_stride;
  float* const row = s.rows[i];
  float share = 0, center = 0;
  for (int c = lane; c < d; c += cuda::kWarp) {
    row[c] = cuda::to_float(q[c]);
    share = fmaf(row[c], frame[d + c], share);
    center = fmaf(row[c], frame[c], center);
  }
  share = cuda::warp_sum(share);
  center = cuda::warp_sum(center);
  for (int c = lane; c < dims; c += cuda::kWarp)
    row[c] = c < d ? row[c] - share * frame[d + c] : 0.0f;
  __syncwarp();
  rotate_row(row, codes.signs, dims, lane);
  float step = 0;
  for (int c = lane; c < dims; c += cuda::kWarp) {
    const float x = fabsf(row[c]);
    step = fmaxf(step, fmaxf(x / kMostQuery, cuda::warp_sum(x) / kMostQuerySum));
  }
  step = cuda::warp_max(step);
  int total = 0;
  for (int c = lane; c < dims; c += cuda::kWarp) {
    const int x = step > 0 ? static_cast<int>(rintf(row[c] / step)) : 0;
    s.q[i * dims + c] = static_cast<int8_t>(x);
    p.scratch.q[(list.local + i) * dims + c] = static_cast<int8_t>(x);
    total += x;
  }
  total = __reduce_add_sync(cuda::kAllLanes, total);
  if (lane != 0) return;
  const float weight = 1.0f / sqrtf(static_cast<float>(d));
  const CodeGains gains =
      code_gains(step, share, weight, {frame[2 * d], frame[2 * d + 1]}, codes.bits);
  s.queries[i] = {.sign_gain = gains.sign,
                  .gain = gains.all,
                  .axis_gain = gains.axis,
                  .total = static_cast<float>(total),
                  .center = center * weight,
                  .floor = -INFINITY};
}

/// Scores of kSample keys, tile by tile at even distances, for all queries.
__device__ void take_sample(const ChooseCodedParams& p, const CodedList& list, int n,
                            PrepareShared& s) {
  const LaneQueries lane(s.queries, n);
  const int tiles = list.n / kTile;
#pragma unroll 4
  for (int i = warp_of(); i < kSampleTiles; i += kPrepareWarps) {
    const int tile = static_cast<int>(int64_t{i} * tiles / kSampleTiles), key = tile * kTile;
    const float2 score =
        score_tile(list.group(p, key), key % kCodeKeys / kTile, p.codes.dims, s.q, n, lane);
    s.sample[query_of_lane()][i * kTile + key_of_lane()] = score.x;
    s.sample[query_of_lane() + 1][i * kTile + key_of_lane()] = score.y;
  }
}

/// Floors that about `rank` of the sampled scores reach, by bisection between the extremes; the
/// queries' get them.
__device__ void find_floors(PrepareShared& s, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kQuad) s.least[thread] = ~0u, s.most[thread] = 0;
  if (thread < kRounds * kQuad) s.reach[thread / kQuad][thread % kQuad] = 0;
  __syncthreads();
  float x[kQuad][kEach];
#pragma unroll
  for (int h = 0; h < kQuad; ++h) {
    uint32_t least = ~0u, most = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      x[h][e] = s.sample[h][e * kPrepareThreads + thread];
      least = min(least, order_of(x[h][e]));
      most = max(most, order_of(x[h][e]));
    }
    least = __reduce_min_sync(cuda::kAllLanes, least);
    most = __reduce_max_sync(cuda::kAllLanes, most);
    if (lane_of() == 0) atomicMin(&s.least[h], least), atomicMax(&s.most[h], most);
  }
  __syncthreads();
  float low[kQuad], high[kQuad];  // as many reach `low` as are wanted
#pragma unroll
  for (int h = 0; h < kQuad; ++h) low[h] = score_of(s.least[h]), high[h] = score_of(s.most[h]);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int h = 0; h < kQuad; ++h) {
      const float middle = low[h] + (high[h] - low[h]) / 2;
      int reach = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) reach += x[h][e] >= middle ? 1 : 0;
      reach = __reduce_add_sync(cuda::kAllLanes, reach);
      if (lane_of() == 0) atomicAdd(&s.reach[round][h], reach);
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kQuad; ++h) {
      const float middle = low[h] + (high[h] - low[h]) / 2;
      (s.reach[round][h] >= rank ? low[h] : high[h]) = middle;
    }
  }
#pragma unroll
  for (int h = 0; h < kQuad; ++h)
    if (thread == h) s.queries[h].floor = low[h];
  __syncthreads();
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
  if (warp_of() < quad.n) make_query<T>(p, list, warp_of(), s);
  __syncthreads();
  if (list.n >= kLeastSampled) {
    take_sample(p, list, quad.n, s);
    __syncthreads();
    // The sample holds `expected` of the candidates, give or take more than chance would where good
    // keys lie side by side.
    const float expected =
        static_cast<float>(list.candidates(p)) / static_cast<float>(list.n) * kSample;
    const int rank = static_cast<int>(1.25f * expected + 4 * sqrtf(expected)) + 4;
    if (rank < kSample / 2) find_floors(s, rank);
  }
  if (threadIdx.x < quad.n) p.scratch.queries[list.local + threadIdx.x] = s.queries[threadIdx.x];
}

constexpr int kScanThreads = 128, kScanWarps = kScanThreads / cuda::kWarp;
constexpr int kScanBlocks = 4;  // of a multiprocessor

/// Block (regions, quad, row): a region a warp.
template <int kSteps>
__global__ void __launch_bounds__(kScanThreads, kScanBlocks) scan(const ChooseCodedParams p) {
  cuda::start_after_previous();
  const Quad quad(p, static_cast<int>(blockIdx.y));
  const CodedList list(p, static_cast<int>(blockIdx.z), quad.first);
  const int region = static_cast<int>(blockIdx.x) * kScanWarps + warp_of();
  const int begin = region * kRegionKeys, n = min(list.n - begin, kRegionKeys);
  if (n <= 0) return;
  const uint8_t* group = list.group(p, begin);
  GroupWords<kSteps> words;
  words.load(group);
  const DeviceCodeQuery* queries = p.scratch.queries + list.local;
  const LaneQueries lane(queries, quad.n);
  uint32_t q[kSteps][2];
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      q[j][i] = query_word(p.scratch.q + list.local * p.codes.dims, p.codes.dims, quad.n,
                           j * 8 + i * 4 + lane_of() % 4);
  RegionWriter writer;
  for (int i = 0; i < 2; ++i) {
    const int at = query_of_lane() + i;
    const ListRegions to(p, list, at);
    writer.scores[i] = to.scores + begin;
    writer.keys[i] = to.keys + begin;
    writer.floor[i] = at < quad.n ? queries[at].floor : INFINITY;
  }
#pragma unroll 1
  for (int first = 0; first < n; first += kCodeKeys) {
    const GroupWords<kSteps> now = words;
    group += code_group_bytes(p.codes.dims);
    if (first + kCodeKeys < n) words.load(group);
    now.score(q, lane, [&](int tile, float2 scores) {
      writer.take(tile, first + tile * kTile + key_of_lane() < n, scores);
    });
    writer.end_group(first);
    const bool ends_run = (first + kCodeKeys) % kMeanKeys == 0 || first + kCodeKeys >= n;
    if (p.masses == nullptr || !ends_run) continue;
    for (int i = 0; i < 2; ++i) {
      const float mass = writer.end_run(i);
      if (lane_of() < 2 && query_of_lane() + i < quad.n)
        ListRegions(p, list, query_of_lane() + i).masses[(begin + first) / kMeanKeys] = mass;
    }
  }
  for (int i = 0; i < 2; ++i)
    if (lane_of() < 2 && query_of_lane() + i < quad.n)
      ListRegions(p, list, query_of_lane() + i).counts[region] = writer.n[i];
}

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

template <int kSteps>
void launch_scan(const ChooseCodedParams& p, unsigned quads, Stream stream) {
  cuda::launch(scan<kSteps>,
               dim3(cuda::blocks_for(p.max_keys, kRegionKeys * kScanWarps), quads,
                    static_cast<unsigned>(p.n_rows)),
               kScanThreads, stream, p);
}

}  // namespace

void choose_coded_cuda(const ChooseCodedParams& p, Stream stream) {
  if (p.n_rows == 0 || p.max_keys <= 0) return;
  const int group = p.n_heads / p.n_kv_heads;
  const auto quads = static_cast<unsigned>(p.n_kv_heads * ((group + kQuad - 1) / kQuad));
  const auto rows = static_cast<unsigned>(p.n_rows);
  cuda::with_act(p.dtype, [&](auto* type) {
    const auto kernel = prepare<std::remove_pointer_t<decltype(type)>>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(PrepareShared));
    cuda::launch(kernel, dim3(quads, rows), kPrepareThreads, sizeof(PrepareShared), 1, stream, p);
  });
  switch (p.codes.dims / kCodeDims) {
    case 1:
      launch_scan<1>(p, quads, stream);
      break;
    case 2:
      launch_scan<2>(p, quads, stream);
      break;
    case 3:
      launch_scan<3>(p, quads, stream);
      break;
    case 4:
      launch_scan<4>(p, quads, stream);
      break;
    case 5:
      launch_scan<5>(p, quads, stream);
      break;
    case 6:
      launch_scan<6>(p, quads, stream);
      break;
    case 7:
      launch_scan<7>(p, quads, stream);
      break;
    default:
      launch_scan<8>(p, quads, stream);
      break;
  }
  const size_t bytes =
      sizeof(uint32_t) *
      static_cast<size_t>((p.max_keys + 31) / 32 + (p.max_keys + kMeanKeys - 1) / kMeanKeys);
  (void)cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(choose, dim3(static_cast<unsigned>(p.n_heads), rows), kSelectThreads, bytes, 1,
               stream, p);
}

}  // namespace tandem
