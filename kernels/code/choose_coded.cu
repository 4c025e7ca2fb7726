// Three kernels. `prepare` makes whole numbers of queries, and from a sample of the keys a floor
// that some more keys reach than are candidates. `scan` reads all signs and keeps the scores that
// reach it. `choose` finds the candidates among these, refines them, and lists the best. A floor
// that too few keys reach costs time alone: `choose` then scans once more, without one.
#include <math.h>

#include "kernels/code/code_numbers.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/rotate.cuh"
#include "kernels/code/run_select.cuh"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

using namespace coded;

constexpr float kLog2E = 1.44269504f;
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

constexpr int kPrepareThreads = 256, kPrepareWarps = kPrepareThreads / cuda::kWarp;
constexpr int kSampleTiles = 256, kSample = kSampleTiles * kTile;  // keys
constexpr int kEach = kSample / kPrepareThreads;
constexpr int kLeastSampled = 4 * kSample;  // below, every score is kept

struct PrepareShared {
  float rows[kQuad][kMostDims];
  int8_t q[kQuad * kMostDims];
  DeviceCodeQuery queries[kQuad];
  float sample[kQuad][kSample];
  float least[kQuad], most[kQuad];
  int reach[kQuad];
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
    p.scratch.q[int64_t{list.local + i} * dims + c] = static_cast<int8_t>(x);
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
#pragma unroll 2
  for (int i = warp_of(); i < kSampleTiles; i += kPrepareWarps) {
    const int tile = static_cast<int>(int64_t{i} * tiles / kSampleTiles), key = tile * kTile;
    const float2 score = score_tile(list.group(p, key), key % p.codes.capacity % kCodeKeys / kTile,
                                    p.codes.dims, s.q, n, lane);
    s.sample[query_of_lane()][i * kTile + key_of_lane()] = score.x;
    s.sample[query_of_lane() + 1][i * kTile + key_of_lane()] = score.y;
  }
}

/// Floors that about `rank` of the sampled scores reach, by bisection between the extremes.
__device__ void find_floors(PrepareShared& s, int rank) {
  constexpr int kRounds = 12;
  float x[kQuad][kEach];
#pragma unroll
  for (int h = 0; h < kQuad; ++h) {
    float least = INFINITY, most = -INFINITY;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      x[h][e] = s.sample[h][e * kPrepareThreads + static_cast<int>(threadIdx.x)];
      least = fminf(least, x[h][e]);
      most = fmaxf(most, x[h][e]);
    }
    __shared__ float ends[2][kQuad][kPrepareWarps];
    most = cuda::warp_max(most);
    least = -cuda::warp_max(-least);
    if (lane_of() == 0) ends[0][h][warp_of()] = least, ends[1][h][warp_of()] = most;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 0; w < kPrepareWarps; ++w) {
        least = fminf(least, ends[0][h][w]);
        most = fmaxf(most, ends[1][h][w]);
      }
      s.least[h] = least, s.most[h] = most;
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    if (threadIdx.x < kQuad) s.reach[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kQuad; ++h) {
      const float middle = s.least[h] + (s.most[h] - s.least[h]) / 2;
      int reach = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) reach += x[h][e] >= middle ? 1 : 0;
      reach = __reduce_add_sync(cuda::kAllLanes, reach);
      if (lane_of() == 0) atomicAdd(&s.reach[h], reach);
    }
    __syncthreads();
    if (threadIdx.x < kQuad) {
      const int h = static_cast<int>(threadIdx.x);
      const float middle = s.least[h] + (s.most[h] - s.least[h]) / 2;
      (s.reach[h] >= rank ? s.least[h] : s.most[h]) = middle;
    }
    __syncthreads();
  }
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
    if (rank < kSample / 2) {
      find_floors(s, rank);
      if (threadIdx.x < quad.n) s.queries[threadIdx.x].floor = s.least[threadIdx.x];
      __syncthreads();
    }
  }
  if (threadIdx.x < quad.n) p.scratch.queries[list.local + threadIdx.x] = s.queries[threadIdx.x];
}

constexpr int kScanThreads = 128, kScanWarps = kScanThreads / cuda::kWarp;
constexpr int kRunsAWarp = 2;

/// Where the runs of a list's scores, keys, counts and masses are.
struct ListRuns {
  float* scores;
  uint16_t* keys;
  int32_t* counts;
  float* masses;

  __device__ ListRuns(const ChooseCodedParams& p, const CodedList& list, int i)
      : scores(p.scratch.scores + (list.local + i) * p.scratch.key_stride),
        keys(p.scratch.keys + (list.local + i) * p.scratch.key_stride),
        counts(p.scratch.counts + (list.local + i) * p.scratch.run_stride),
        masses(p.masses == nullptr ? nullptr : p.masses + (list.number(p) + i) * p.mass_stride) {}
};

/// Block (runs, quad, row): kRunsAWarp runs a warp.
template <int kSteps>
__global__ void __launch_bounds__(kScanThreads) scan(const ChooseCodedParams p) {
  cuda::start_after_previous();
  const Quad quad(p, static_cast<int>(blockIdx.y));
  const CodedList list(p, static_cast<int>(blockIdx.z), quad.first);
  const int first_run = (static_cast<int>(blockIdx.x) * kScanWarps + warp_of()) * kRunsAWarp;
  if (first_run * kMeanKeys >= list.n) return;
  const DeviceCodeQuery* queries = p.scratch.queries + list.local;
  const LaneQueries lane(queries, quad.n);
  uint32_t q[kSteps][2];
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      q[j][i] = query_word(p.scratch.q + int64_t{list.local} * p.codes.dims, p.codes.dims, quad.n,
                           j * 8 + i * 4 + lane_of() % 4);
  float floor[2];
  for (int i = 0; i < 2; ++i)
    floor[i] = query_of_lane() + i < quad.n ? queries[query_of_lane() + i].floor : INFINITY;
#pragma unroll 1
  for (int run = first_run; run < first_run + kRunsAWarp && run * kMeanKeys < list.n; ++run) {
    RunWriter writer;
    for (int i = 0; i < 2; ++i) {
      const ListRuns to(p, list, query_of_lane() + i);
      writer.scores[i] = to.scores + run * kMeanKeys;
      writer.keys[i] = to.keys + run * kMeanKeys;
      writer.floor[i] = floor[i];
    }
#pragma unroll 1
    for (int first = 0; first < kMeanKeys && run * kMeanKeys + first < list.n; first += kCodeKeys)
      score_group<kSteps>(list.group(p, run * kMeanKeys + first), q, lane,
                          [&](int tile, float x, float y) {
                            const int key = first + tile * kTile + key_of_lane();
                            writer.take(key, run * kMeanKeys + key < list.n, x, y);
                          });
    for (int i = 0; i < 2; ++i) {
      const float mass = writer.sum(i);
      if (lane_of() >= 2 || query_of_lane() + i >= quad.n) continue;
      const ListRuns to(p, list, query_of_lane() + i);
      to.counts[run] = writer.n[i];
      if (to.masses != nullptr) to.masses[run] = mass;
    }
  }
}

/// The runs of one list once more, every score of which is kept; by the whole block.
__device__ void keep_all(const ChooseCodedParams& p, const CodedList& list, const ListRuns& to) {
  const LaneQueries lane(p.scratch.queries + list.local, 1);
  for (int run = warp_of(); run * kMeanKeys < list.n; run += kSelectWarps) {
    RunWriter writer;
    for (int i = 0; i < 2; ++i) {
      writer.scores[i] = to.scores + run * kMeanKeys;
      writer.keys[i] = to.keys + run * kMeanKeys;
      writer.floor[i] = i == 0 ? -INFINITY : INFINITY;
    }
    for (int first = 0; first < kMeanKeys && run * kMeanKeys + first < list.n; first += kTile) {
      const int at = run * kMeanKeys + first, key = first + key_of_lane();
      const float2 score =
          score_tile(list.group(p, at), at % p.codes.capacity % kCodeKeys / kTile, p.codes.dims,
                     p.scratch.q + int64_t{list.local} * p.codes.dims, 1, lane);
      writer.take(key, query_of_lane() == 0 && run * kMeanKeys + key < list.n, score.x, score.y);
    }
    if (lane_of() != 0) continue;
    to.counts[run] = writer.n[0];
    if (to.masses != nullptr) to.masses[run] = 0;
  }
}

/// A candidate's score by all bits, from that by signs; q: words of the whole numbers.
__device__ float refine(const ChooseCodedParams& p, const CodedList& list,
                        const DeviceCodeQuery& query, const uint32_t* q, int key, float old) {
  const int bits = p.codes.bits, width = bits - 1, fields = 8 / width, dims = p.codes.dims;
  const auto* low = reinterpret_cast<const uint32_t*>(list.low(p, key));
  const uint32_t mask = width == 1 ? 0x01010101u : 0x03030303u;
  int lows = 0;
#pragma unroll 4
  for (int w = 0; w < dims / 32 * width; ++w) {
    const uint32_t word = low[w];
    for (int f = 0; f < fields; ++f)
      lows = __dp4a(static_cast<int>(word >> f * width & mask), static_cast<int>(q[w * fields + f]),
                    lows);
  }
  const uint8_t* scales =
      list.group(p, key) + 16 * dims + device_scale_place(key % p.codes.capacity % kCodeKeys);
  const float scale = code_scale(scales[0]),
              by_axis =
                  query.axis_gain * static_cast<float>(static_cast<int8_t>(scales[kCodeKeys])),
              by_signs = query.sign_gain * scale;
  // As code_refine.inl: the sum by signs is a whole number, so rounding gives it back.
  const float signs = fabsf(by_signs) > 0 ? rintf((old - by_axis) / by_signs) : 0.0f;
  const float less = static_cast<float>((1 << width) - 1) * query.total;
  const float sum =
      fmaf(signs, static_cast<float>(1 << width), fmaf(static_cast<float>(lows), 2.0f, -less));
  return sum * query.gain * scale + by_axis;
}

/// Block (head, row).
__global__ void __launch_bounds__(kSelectThreads) choose(const ChooseCodedParams p) {
  extern __shared__ int2 before[];  // of every run: chosen keys above and at the threshold
  __shared__ RunSelect s;
  __shared__ __align__(16) uint32_t q[kMostDims / 4];
  cuda::start_after_previous();
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  const int64_t number = list.number(p);
  const int n = list.n, wanted = n == 0 ? 0 : list.wanted(p), thread = threadIdx.x;
  int32_t* const ids = p.ids + number * p.stride;
  if (thread == 0) {
    p.count[number] = n == 0 ? 0 : p.begin + wanted;
    if (p.origin != nullptr) p.origin[number] = -INFINITY;
  }
  if (n == 0) return;
  const ListRuns runs(p, list, 0);
  const int n_runs = (n + kMeanKeys - 1) / kMeanKeys;
  for (int i = thread; i < p.begin; i += kSelectThreads) ids[i] = i;
  if (wanted == n) {
    for (int i = thread; i < n; i += kSelectThreads) ids[p.begin + i] = p.begin + i;
    for (int r = thread; r < n_runs && runs.masses != nullptr; r += kSelectThreads)
      runs.masses[r] = 0;
    return;
  }
  DeviceCodeQuery query = p.scratch.queries[list.local];
  for (int w = thread; w < p.codes.dims / 4; w += kSelectThreads)
    q[w] = reinterpret_cast<const uint32_t*>(p.scratch.q + int64_t{list.local} * p.codes.dims)[w];
  int kept = 0;
  for (int r = thread; r < n_runs; r += kSelectThreads) kept += runs.counts[r];
  kept = block_count(s, kept);
  const int candidates = list.candidates(p);
  if (kept < candidates) {
    keep_all(p, list, runs);
    query.floor = -INFINITY;
    __syncthreads();
  }
  constexpr uint16_t kCandidate = 0x100;
  const auto any = [&](int64_t at) { return order_of(runs.scores[at]); };
  // 0 is the order of no number: what is no candidate.
  const auto candidate = [&](int64_t at) {
    return (runs.keys[at] & kCandidate) != 0 ? order_of(runs.scores[at]) : 0u;
  };
  RunPick pick = find_threshold(s, before, runs.counts, n_runs, candidates, any);
  for_picked(before, runs.counts, n_runs, pick, any, [&](int64_t at, int, bool picked) {
    if (!picked) return;
    const int key = static_cast<int>(at / kMeanKeys) * kMeanKeys + runs.keys[at];
    if (p.codes.bits > 1) runs.scores[at] = refine(p, list, query, q, key, runs.scores[at]);
    runs.keys[at] |= kCandidate;
  });
  __syncthreads();
  pick = find_threshold(s, before, runs.counts, n_runs, wanted, candidate);
  const float threshold = score_of(pick.least);
  // What lies below the floor counts no more than the threshold, either.
  const float of_floor =
      query.floor == -INFINITY ? 0.0f : exp2f(fminf(query.floor - threshold, 0.0f) * kLog2E);
  for (int r = warp_of(); r < n_runs; r += kSelectWarps) {
    float mass = 0;
    pick_run(before, runs.counts, r, pick, candidate, [&](int64_t at, int place, bool picked) {
      if (picked)
        ids[p.begin + place] = p.begin + r * kMeanKeys + (runs.keys[at] & (kCandidate - 1));
      else
        mass += exp2f(fminf(runs.scores[at] - threshold, 0.0f) * kLog2E);
    });
    mass = cuda::warp_sum(mass);
    if (lane_of() == 0 && runs.masses != nullptr) runs.masses[r] = runs.masses[r] * of_floor + mass;
  }
  if (thread == 0 && p.origin != nullptr) p.origin[number] = threshold + query.center;
}

template <int kSteps>
void launch_scan(const ChooseCodedParams& p, unsigned quads, Stream stream) {
  const int blocks_keys = kMeanKeys * kScanWarps * kRunsAWarp;
  cuda::launch(
      scan<kSteps>,
      dim3(cuda::blocks_for(p.max_keys, blocks_keys), quads, static_cast<unsigned>(p.n_rows)),
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
  const size_t bytes = static_cast<size_t>((p.max_keys + kMeanKeys - 1) / kMeanKeys) * sizeof(int2);
  (void)cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(choose, dim3(static_cast<unsigned>(p.n_heads), rows), kSelectThreads, bytes, 1,
               stream, p);
}

}  // namespace tandem
