// Reads the signs of all keys, and keeps the scores that reach a floor.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/cluster_sums.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

/// Keeps the scores of a warp's region that reach the floors of the lane's two queries. Adds up
/// exponentials of the others, relative to the floors, by cluster or by run.
template <bool kClusters>
struct RegionWriter {
  KeptKey* kept[2];
  float floor[2];
  ClusterSums<kQuad>* sums;
  GroupClusters clusters;       // of the group in hand
  int n[2] = {};                // kept so far
  float mass[2] = {};           // a run's
  float score[kGroupTiles][2];  // of the group in hand
  unsigned below[2] = {};       // a bit a tile, the last one lowest: whether it is below the floor

  /// kAll: all keys exist.
  template <bool kAll>
  __device__ void take(int tile, bool exists, float2 of_tile) {
    score[tile][0] = of_tile.x;
    score[tile][1] = of_tile.y;
    const int cluster = kClusters ? clusters.of_tile(tile) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float over = kAll || exists ? score[tile][i] - floor[i] : -INFINITY;
      below[i] = __funnelshift_l(__float_as_uint(over), below[i], 1);
      if constexpr (kClusters) {
        if (over < 0) sums->add(query_of_lane() + i, cluster, over);
      } else {
        const float weight = cuda::exp2_fast(over * kLog2E);
        mass[i] += over < 0 ? weight : 0.0f;
      }
    }
  }
  /// Writes what the tiles of a group left; its keys begin at `first`.
  __device__ void end_group(int first) {
    const int own = (kGroupTiles - __popc(below[0])) | (kGroupTiles - __popc(below[1])) << 16;
    int sum = own;  // of the lanes with these queries up to this one
#pragma unroll
    for (int step = 2; step < cuda::kWarp; step *= 2) {
      const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
      if (lane_of() >= step) sum += lower;
    }
    const int all = __shfl_sync(cuda::kAllLanes, sum, cuda::kWarp - 2 + lane_of() % 2);
    const int key = first + key_of_lane();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int at = n[i] + ((sum - own) >> (16 * i) & 0xffff);
#pragma unroll
      for (int tile = 0; tile < kGroupTiles; ++tile) {
        const bool reaches = (below[i] >> (kGroupTiles - 1 - tile) & 1) == 0;
        store_if(reaches, kept[i] + at, __float_as_uint(score[tile][i]),
                 static_cast<uint32_t>(key + tile * kTile));
        at += reaches ? 1 : 0;
      }
      n[i] += all >> (16 * i) & 0xffff;
      below[i] = 0;
    }
  }
  /// The mass since the last call, in all lanes of query i.
  __device__ float end_run(int i) {
    float x = mass[i];
#pragma unroll
    for (int step = 2; step < cuda::kWarp; step *= 2)
      x += __shfl_xor_sync(cuda::kAllLanes, x, step);
    mass[i] = 0;
    return x;
  }
};

constexpr int kScanWarps = kScanKeys / kRegionKeys, kScanThreads = kScanWarps * cuda::kWarp;

/// Region `region`, by a warp.
template <int kSteps, bool kClusters>
__device__ __forceinline__ void scan_region(const ChooseCodedParams& p, const CodedList& list,
                                            const Quad& quad, int region,
                                            ClusterSums<kQuad>* sums) {
  const int begin = region * kRegionKeys, n = min(list.n - begin, kRegionKeys);
  if (n <= 0) return;
  const uint8_t* group = list.group(p, begin);
  const int bytes = static_cast<int>(code_group_bytes(p.codes.dims)), line = lane_of() * 128;
  if (line < bytes) cuda::prefetch(group + line);
  const DeviceCodeQuery* queries = p.scratch.queries + list.local;
  const LaneQueries lane(queries, quad.n);
  uint32_t q[kSteps][2];
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      q[j][i] = query_word(p.scratch.q + list.local * p.codes.dims, p.codes.dims, quad.n,
                           j * 8 + i * 4 + lane_of() % 4);
  RegionWriter<kClusters> writer;
  writer.sums = sums;
  for (int i = 0; i < 2; ++i) {
    const int at = query_of_lane() + i;
    writer.kept[i] = ListRegions(p, list.local + at).scanned + begin;
    writer.floor[i] = at < quad.n ? queries[at].floor : INFINITY;
  }
#pragma unroll 1
  for (int first = 0; first < n; first += kCodeKeys, group += bytes) {
    GroupWords<kSteps> words;
    words.load(group);
    if constexpr (kClusters) writer.clusters.load(p, list, begin + first);
    if (first + kCodeKeys < n && line < bytes) cuda::prefetch(group + bytes + line);
    if (first + kCodeKeys <= n)
      words.score(q, lane,
                  [&](int tile, float2 scores) { writer.template take<true>(tile, true, scores); });
    else
      words.score(q, lane, [&](int tile, float2 scores) {
        writer.template take<false>(tile, first + tile * kTile + key_of_lane() < n, scores);
      });
    writer.end_group(begin + first);
    const bool ends_run = (first + kCodeKeys) % kMeanKeys == 0 || first + kCodeKeys >= n;
    for (int i = 0; i < 2 && !kClusters && p.masses != nullptr && ends_run; ++i) {
      const float mass = writer.end_run(i);
      if (lane_of() < 2 && query_of_lane() + i < quad.n)
        masses_of(p, list.local + query_of_lane() + i)[(begin + first) / kMeanKeys] = mass;
    }
  }
  for (int i = 0; i < 2; ++i)
    if (lane_of() < 2 && query_of_lane() + i < quad.n)
      ListRegions(p, list.local + query_of_lane() + i).counts[region] = writer.n[i];
}

/// Block (regions, quad, row): a region a warp.
template <int kSteps, bool kClusters>
__global__ void __launch_bounds__(kScanThreads, kSteps <= 4 ? 5 : 3)
    scan(const ChooseCodedParams p) {
  cuda::start_after_previous();
  const Quad quad(p, static_cast<int>(blockIdx.y));
  const CodedList list(p, static_cast<int>(blockIdx.z), quad.first);
  const int block = static_cast<int>(blockIdx.x);
  if (block * kScanKeys >= list.n) return;
  ClusterSums<kQuad>* sums = nullptr;
  if constexpr (kClusters) {
    __shared__ ClusterSums<kQuad> shared;
    sums = &shared;
    sums->clear();
  }
  scan_region<kSteps, kClusters>(p, list, quad, block * kScanWarps + warp_of(), sums);
  if constexpr (kClusters) sums->write(p, list.local, quad.n, block);
}

template <int kSteps>
void launch_scan(const ChooseCodedParams& p, Stream stream) {
  cuda::launch(p.clusters.ids != nullptr ? scan<kSteps, true> : scan<kSteps, false>,
               dim3(cuda::blocks_for(p.max_keys, kScanKeys), static_cast<unsigned>(quads_of(p)),
                    static_cast<unsigned>(p.n_rows)),
               kScanThreads, stream, p);
}

}  // namespace

void scan_signs(const ChooseCodedParams& p, Stream stream) {
  with_steps<1>(p.codes.dims / kCodeDims, [&](auto steps) { launch_scan<steps()>(p, stream); });
}

}  // namespace tandem::coded
