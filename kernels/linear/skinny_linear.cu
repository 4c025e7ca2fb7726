#include "kernels/linear/skinny_linear.cuh"

#include <algorithm>

// skinny_linear for any GPU. A lane reads the pieces of x that it multiplies a step ahead, into
// registers: from where x lies, whose lines the tiles of a block share in L1, or, normalised, from
// shared memory, which else is the ring's alone.

namespace tandem::portable {
namespace {

using skinny::bf16x;

// 16 KiB each; more than these are never needed to keep an SM's share of the memory busy.
constexpr int kMostStages = 6, kLeastStages = 2;

/// kGroups: eights of x's rows.
template <int kGroups>
__global__ void __launch_bounds__(skinny::kThreads, 1)
    skinny_linear(const SkinnyLinearParams p, const int stages) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kWarps = skinny::kWarps, kChunk = skinny::kChunk;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int chunks = (p.in + kChunk - 1) / kChunk;
  const int steps = (chunks - warp + kWarps - 1) / kWarps;  // <= 0: nothing for this warp
  const int tiles = skinny::tiles_of(p);
  const int lane_at = warp * skinny::kChunkBytes + lane * 16;

  float* parts = reinterpret_cast<float*>(shared + stages * skinny::kStageBytes);
  bf16x* normed =
      reinterpret_cast<bf16x*>(shared + stages * skinny::kStageBytes + skinny::parts_bytes(p.rows));
  skinny::Loader loader{.p = p,
                        .steps = steps,
                        .tiles = tiles,
                        .warp = warp,
                        .g = g,
                        .t = t,
                        .ring = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + lane_at,
                        .tile = static_cast<int>(blockIdx.x)};
  for (int s = 0; s < stages; ++s) loader.issue(s);
  const bool normalises = p.norm_weight != nullptr;
  if (normalises) {
    float4 norm[skinny::kNormKept] = {};
    skinny::keep_norm(p, norm);
    skinny::load_normalised(p, normed, skinny::pitch_of(p.in), norm);
  }
  const bf16x* x[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int n = g + 8 * j, pitch = normalises ? skinny::pitch_of(p.in) : p.in;
    const bf16x* all = normalises ? normed : static_cast<const bf16x*>(p.x);
    x[j] = n < p.rows ? all + static_cast<int64_t>(n) * pitch : nullptr;
  }
  const int first = warp * kChunk + t * 8;
  skinny::Pieces<kGroups> ahead;
  ahead.load(x, first, p.in);

  int stage = 0, buffer = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    skinny::Sums<kGroups> sums;
    skinny::Finish<kGroups> finish{.p = p, .lane = lane};
    if (warp == turn) finish.begin(tile);
    for (int s = 0; s < steps; ++s) {
      const skinny::Pieces<kGroups> b = ahead;
      ahead.load(x, first + (s + 1 == steps ? 0 : s + 1) * skinny::kStep, p.in);
      cuda::copies_wait(stages - 1);
      const unsigned char* slot = shared + stage * skinny::kStageBytes + lane_at;
      sums.add(slot, [&](int h, int j) { return b.at[h][j]; });
      loader.issue(stage);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    float* set = parts + buffer * kWarps * skinny::part_floats(p.rows);
    sums.put(set + warp * skinny::part_floats(p.rows), p.rows, g, t);
    __syncthreads();
    if (warp == turn) finish.end(tile, set);
    buffer ^= 1;
    turn = (turn + 1) % kWarps;
  }
}

/// Of a block.
int shared_bytes(const SkinnyLinearShape& s) {
  return s.stages * skinny::kStageBytes + skinny::parts_bytes(s.rows) +
         (s.norm ? s.rows * skinny::pitch_of(s.in) * 2 : 0);
}

}  // namespace

bool skinny_linear_fits(const SkinnyLinearShape& s) {
  return s.rows >= 1 && s.rows <= kSkinnyRows && s.in > 0 && s.in % 8 == 0 &&
         s.stages >= kLeastStages && s.stages <= kMostStages &&
         shared_bytes(s) + skinny::kReservedBytes - 1024 <= cuda::gpu().block_shared_bytes;
}

void skinny_linear_cuda(const SkinnyLinearParams& p, Stream stream) {
  if (p.rows == 0) return;
  // Chosen for the product without the norm, whose input takes no shared memory.
  SkinnyLinearShape shape{p.rows, p.in, p.stages, p.norm_weight != nullptr};
  while (shape.stages > kLeastStages && !skinny_linear_fits(shape)) --shape.stages;
  const auto kernel = p.rows > 8 ? skinny_linear<2> : skinny_linear<1>;
  const int bytes = shared_bytes(shape);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const auto blocks =
      static_cast<unsigned>(std::min(skinny::tiles_of(p), cuda::gpu().multiprocessors));
  cuda::launch(kernel, blocks, skinny::kThreads, static_cast<size_t>(bytes), 1, stream, p,
               shape.stages);
}

}  // namespace tandem::portable
