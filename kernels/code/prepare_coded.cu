// Whole numbers of queries, and from a sample of the keys a floor that some more keys reach than
// are candidates.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/code_numbers.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/rotate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::coded {
namespace {

constexpr int kPrepareThreads = 1024, kPrepareWarps = kPrepareThreads / cuda::kWarp;
constexpr int kSampleTiles = 128, kSample = kSampleTiles * kTile;  // keys
constexpr int kEach = kSample / kPrepareThreads;
constexpr int kBins = 512;                  // of the sample's scores
constexpr int kLeastSampled = 8 * kSample;  // below, every score is kept

struct PrepareShared {
  float rows[kQuad][kMostDims];
  int8_t q[kQuad * kMostDims];
  DeviceCodeQuery queries[kQuad];
  float sample[kQuad][kSample];
  uint32_t least[kQuad], most[kQuad];  // orders of scores
  int bins[kQuad][kBins];
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

/// The first key of a tile of the sample.
__device__ int sampled_key(const CodedList& list, int i) {
  return static_cast<int>(int64_t{i} * (list.n / kTile) / kSampleTiles) * kTile;
}
/// Asks for what take_sample reads, while queries are made.
__device__ void fetch_sample(const ChooseCodedParams& p, const CodedList& list) {
  constexpr int kLine = 128;
  const int lines = static_cast<int>(code_group_bytes(p.codes.dims) / kLine);
  for (int i = static_cast<int>(threadIdx.x); i < kSampleTiles * lines; i += kPrepareThreads)
    cuda::prefetch(list.group(p, sampled_key(list, i / lines)) + i % lines * kLine);
}
/// Scores of kSample keys, tile by tile at even distances, for all queries.
__device__ void take_sample(const ChooseCodedParams& p, const CodedList& list, int n,
                            PrepareShared& s) {
  const LaneQueries lane(s.queries, n);
#pragma unroll 4
  for (int i = warp_of(); i < kSampleTiles; i += kPrepareWarps) {
    const int key = sampled_key(list, i);
    const float2 score =
        score_tile(list.group(p, key), key % kCodeKeys / kTile, p.codes.dims, s.q, n, lane);
    s.sample[query_of_lane()][i * kTile + key_of_lane()] = score.x;
    s.sample[query_of_lane() + 1][i * kTile + key_of_lane()] = score.y;
  }
}

/// Floors that `rank` or some more of the sampled scores reach: edges of even bins between the
/// extremes. The queries' get them.
__device__ void find_floors(PrepareShared& s, int n, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kQuad) s.least[thread] = ~0u, s.most[thread] = 0;
  for (int i = thread; i < kQuad * kBins; i += kPrepareThreads) s.bins[i / kBins][i % kBins] = 0;
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
#pragma unroll
  for (int h = 0; h < kQuad; ++h) {
    const float low = score_of(s.least[h]), width = (score_of(s.most[h]) - low) / kBins;
#pragma unroll
    for (int e = 0; e < kEach && width > 0; ++e)
      atomicAdd(&s.bins[h][min(static_cast<int>((x[h][e] - low) / width), kBins - 1)], 1);
  }
  __syncthreads();
  const int h = warp_of();
  if (h >= n) return;
  // A lane has some bins, the first lane the highest.
  constexpr int kOwn = kBins / cuda::kWarp;
  const int first = kBins - 1 - lane_of() * kOwn;
  int own = 0;
  for (int i = 0; i < kOwn; ++i) own += s.bins[h][first - i];
  int reach = own;
  for (int step = 1; step < cuda::kWarp; step *= 2) {
    const int lower = __shfl_up_sync(cuda::kAllLanes, reach, step);
    if (lane_of() >= step) reach += lower;
  }
  const float low = score_of(s.least[h]), width = (score_of(s.most[h]) - low) / kBins;
  // Where all scores are equal no bin has any, and the floor is none.
  if (reach < rank || reach - own >= rank) return;
  int bin = first;
  for (int over = reach - own; over + s.bins[h][bin] < rank; --bin) over += s.bins[h][bin];
  // A little below the edge, for what dividing rounds.
  s.queries[h].floor = low + (static_cast<float>(bin) - 0.01f) * width;
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
  if (list.n >= kLeastSampled) fetch_sample(p, list);
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
    if (rank < kSample / 2) find_floors(s, quad.n, rank);
    __syncthreads();
  }
  if (threadIdx.x < quad.n) p.scratch.queries[list.local + threadIdx.x] = s.queries[threadIdx.x];
}

}  // namespace

void prepare_queries(const ChooseCodedParams& p, Stream stream) {
  cuda::with_act(p.dtype, [&](auto* type) {
    const auto kernel = prepare<std::remove_pointer_t<decltype(type)>>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(PrepareShared));
    cuda::launch(kernel, dim3(static_cast<unsigned>(quads_of(p)), static_cast<unsigned>(p.n_rows)),
                 kPrepareThreads, sizeof(PrepareShared), 1, stream, p);
  });
}

}  // namespace tandem::coded
