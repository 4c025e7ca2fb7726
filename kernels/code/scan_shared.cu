// Reads the signs of all keys for heads that share a set, and keeps the scores of all of them where
// the key's rank reaches a floor.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/cluster_sums.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kWarps = kScanKeys / kRegionKeys, kThreads = kWarps * cuda::kWarp;

/// Keeps what a warp's tiles say of a region: a lane has the scores of two queries of each quad,
/// and its neighbour those of the other two, under the same keys.
template <int kQuads, bool kClusters>
struct GroupWriter {
  float2* scores;  // of the lane's queries of the first quad; those of the next follow two on, and
                   // those of the next kept key after all quads'
  KeptKey* kept;
  float reference[kQuads][2], floor;
  ClusterSums<kQuads * kQuad>* sums;
  GroupClusters clusters;             // of the group in hand
  int n = 0;                          // kept so far
  float mass[kQuads][2] = {};         // a run's
  float2 score[kQuads][kGroupTiles];  // of the group in hand
  float rank[kGroupTiles];            // of the keys, when all quads have been taken
  unsigned below = 0;  // a bit a tile, the last one lowest: whether its key is below the floor

  /// Tiles of the quads in turn. kAll: all keys exist.
  template <bool kAll>
  __device__ void take(int quad, int tile, bool exists, float2 of_tile) {
    score[quad][tile] = of_tile;
    const float most = fmaxf(of_tile.x - reference[quad][0], of_tile.y - reference[quad][1]);
    rank[tile] = quad == 0 ? most : fmaxf(rank[tile], most);
    if (quad + 1 < kQuads) return;
    rank[tile] = fmaxf(rank[tile], __shfl_xor_sync(cuda::kAllLanes, rank[tile], 1));
    const float over = kAll || exists ? rank[tile] - floor : -INFINITY;
    below = __funnelshift_l(__float_as_uint(over), below, 1);
    const int cluster = kClusters ? clusters.of_tile(tile) : 0;
    const bool weighs = (kAll || exists) && over < 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = i == 0 ? score[q][tile].x : score[q][tile].y;
        const float log = x - reference[q][i] - floor;
        if constexpr (kClusters) {
          if (weighs) sums->add(q * kQuad + query_of_lane() + i, cluster, log);
        } else {
          const float weight = cuda::exp2_fast(log * kLog2E);
          mass[q][i] += weighs ? weight : 0.0f;
        }
      }
  }
  /// Writes what the tiles of a group left; its keys begin at `first`.
  __device__ void end_group(int first) {
    const int own = kGroupTiles - __popc(below);
    int sum = own;  // of the lanes with these queries up to this one
#pragma unroll
    for (int step = 2; step < cuda::kWarp; step *= 2) {
      const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
      if (lane_of() >= step) sum += lower;
    }
    int at = n + sum - own;
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      const bool reaches = (below >> (kGroupTiles - 1 - tile) & 1) == 0;
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad)
        store_if(reaches, scores + (at * kQuads + quad) * 2, __float_as_uint(score[quad][tile].x),
                 __float_as_uint(score[quad][tile].y));
      store_if(reaches && lane_of() % 2 == 0, kept + at, __float_as_uint(rank[tile]),
               static_cast<uint32_t>(first + tile * kTile + key_of_lane()));
      at += reaches ? 1 : 0;
    }
    n += __shfl_sync(cuda::kAllLanes, sum, cuda::kWarp - 1);
    below = 0;
  }
  /// The mass since the last call, in all lanes of query i of the quad.
  __device__ float end_run(int quad, int i) {
    float x = mass[quad][i];
#pragma unroll
    for (int step = 2; step < cuda::kWarp; step *= 2)
      x += __shfl_xor_sync(cuda::kAllLanes, x, step);
    mass[quad][i] = 0;
    return x;
  }
};

/// Region `region`, by a warp.
template <int kSteps, int kQuads, bool kClusters>
__device__ __forceinline__ void scan_region(const ChooseCodedParams& p, const CodedList& list,
                                            int group, int region,
                                            ClusterSums<kQuads * kQuad>* sums) {
  const int begin = region * kRegionKeys, n = min(list.n - begin, kRegionKeys);
  if (n <= 0) return;
  const uint8_t* at = list.group(p, begin);
  const int bytes = static_cast<int>(code_group_bytes(p.codes.dims)), line = lane_of() * 128;
  if (line < bytes) cuda::prefetch(at + line);
  const DeviceCodeQuery* queries = p.scratch.queries + list.local;
  const ListRegions to(p, list.set(p));
  GroupWriter<kQuads, kClusters> writer;
  writer.sums = sums;
  writer.scores = reinterpret_cast<float2*>(scores_of(p, list.set(p), group)) +
                  int64_t{begin} * kQuads * 2 + lane_of() % 2;
  writer.kept = to.scanned + begin;
  writer.floor = queries->floor;
  uint32_t q[kQuads][kSteps][2];
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    const int first = quad * kQuad, in_quad = min(group - first, kQuad);
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      for (int i = 0; i < 2; ++i)
        q[quad][j][i] = query_word(p.scratch.q + (list.local + first) * p.codes.dims, p.codes.dims,
                                   in_quad, j * 8 + i * 4 + lane_of() % 4);
    for (int i = 0; i < 2; ++i) {
      const int head = first + query_of_lane() + i;
      writer.reference[quad][i] = head < group ? p.scratch.references[list.local + head] : INFINITY;
    }
  }
#pragma unroll 1
  for (int first = 0; first < n; first += kCodeKeys, at += bytes) {
    GroupWords<kSteps> words;
    words.load(at);
    if constexpr (kClusters) writer.clusters.load(p, list, begin + first);
    if (first + kCodeKeys < n && line < bytes) cuda::prefetch(at + bytes + line);
    const auto score = [&](auto all) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad)
        words.score(q[quad], LaneQueries(queries + quad * kQuad, group - quad * kQuad),
                    [&](int tile, float2 scores) {
                      const bool exists = first + tile * kTile + key_of_lane() < n;
                      writer.template take<decltype(all)::value>(quad, tile, exists, scores);
                    });
    };
    if (first + kCodeKeys <= n)
      score(std::true_type{});
    else
      score(std::false_type{});
    writer.end_group(begin + first);
    const bool ends_run = (first + kCodeKeys) % kMeanKeys == 0 || first + kCodeKeys >= n;
    const bool adds = !kClusters && p.masses != nullptr && ends_run;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad)
      for (int i = 0; i < 2 && adds; ++i) {
        const int head = quad * kQuad + query_of_lane() + i;
        const float mass = writer.end_run(quad, i);
        if (lane_of() < 2 && head < group)
          masses_of(p, list.local + head)[(begin + first) / kMeanKeys] = mass;
      }
  }
  if (lane_of() == 0) to.counts[region] = writer.n;
}

/// Block (regions, KV head, row): a region a warp.
template <int kSteps, int kQuads, bool kClusters>
__global__ void __launch_bounds__(kThreads, kQuads == 1 && kSteps <= 4 ? 5 : 2)
    scan(const ChooseCodedParams p) {
  cuda::start_after_previous();
  const int group = p.n_heads / p.n_kv_heads, block = static_cast<int>(blockIdx.x);
  const CodedList list(p, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y) * group);
  if (block * kScanKeys >= list.n) return;
  ClusterSums<kQuads* kQuad>* sums = nullptr;
  if constexpr (kClusters) {
    __shared__ ClusterSums<kQuads * kQuad> shared;
    sums = &shared;
    sums->clear();
  }
  scan_region<kSteps, kQuads, kClusters>(p, list, group, block * kWarps + warp_of(), sums);
  if constexpr (kClusters) sums->write(p, list.local, group, block);
}

template <int kQuads>
void launch(const ChooseCodedParams& p, Stream stream) {
  with_steps<1>(p.codes.dims / kCodeDims, [&](auto steps) {
    cuda::launch(
        p.clusters.ids != nullptr ? scan<steps(), kQuads, true> : scan<steps(), kQuads, false>,
        dim3(cuda::blocks_for(p.max_keys, kScanKeys), static_cast<unsigned>(p.n_kv_heads),
             static_cast<unsigned>(p.n_rows)),
        kThreads, stream, p);
  });
}

}  // namespace

void scan_shared(const ChooseCodedParams& p, Stream stream) {
  static_assert(kMostSharing == 2 * kQuad);
  p.n_heads / p.n_kv_heads <= kQuad ? launch<1>(p, stream) : launch<2>(p, stream);
}

}  // namespace tandem::coded
