#include <algorithm>

#include "kernels/linear/skinny_linear.cuh"

// skinny_linear on Hopper: x comes in bulk copies, whose arrival barriers in shared memory count.

namespace tandem::hopper {
namespace {

using skinny::bf16x;
using skinny::kChunk;
using skinny::kChunkBytes;
using skinny::kStageBytes;
using skinny::kStep;
using skinny::kThreads;
using skinny::kWarps;
using skinny::padded;
using skinny::part_floats;
using skinny::parts_bytes;
using skinny::pitch_of;

constexpr int kMaxSteps = 64;
constexpr int kBarrierBytes = kMaxSteps * 8;
constexpr int kSmBytes = 228 * 1024;

// An mbarrier used once: it opens when the bytes that one thread has announced have arrived.
__device__ void init_barrier(unsigned barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void announce(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ void copy_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ void wait_open(unsigned barrier) {
  asm volatile(
      "{\n.reg .pred open;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], 0;\n"
      "@!open bra again;\n}" ::"r"(barrier)
      : "memory");
}

/// x in shared memory.
struct Input {
  bf16x* x;  // [rows, pitch]
  int in, pitch;
  unsigned barriers;  // one a step of kStep columns

  __device__ int steps() const { return (in + kStep - 1) / kStep; }
  __device__ int step_columns(int s) const { return min(kStep, in - s * kStep); }

  /// Before the kernel ahead has ended: zeros after the last column, and the bytes that have to
  /// arrive.
  __device__ void prepare(int rows) const {
    const int pad = padded(in) - in;
    for (int i = threadIdx.x; i < rows * pad; i += kThreads)
      x[i / pad * pitch + in + i % pad] = __float2bfloat16_rn(0.0f);
    const int s = threadIdx.x;
    if (s < steps()) init_barrier(barriers + s * 8);
    __syncthreads();
    if (s < steps()) announce(barriers + s * 8, rows * step_columns(s) * 2);
  }
  __device__ void load(const SkinnyLinearParams& p) const {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(x));
    for (int i = threadIdx.x; i < p.rows * steps(); i += kThreads) {
      const int n = i % p.rows, s = i / p.rows;
      const auto* from =
          static_cast<const bf16x*>(p.x) + static_cast<int64_t>(n) * p.in + s * kStep;
      copy_bulk(to + (n * pitch + s * kStep) * 2, from, step_columns(s) * 2, barriers + s * 8);
    }
  }
};

/// kGroups: eights of x's rows.
template <int kGroups, int kStages>
__global__ void __launch_bounds__(kThreads, 2) skinny_linear(const SkinnyLinearParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int chunks = (p.in + kChunk - 1) / kChunk;
  const int steps = (chunks - warp + kWarps - 1) / kWarps;  // <= 0: nothing for this warp
  const int tiles = skinny::tiles_of(p);
  const int lane_at = warp * kChunkBytes + lane * 16;

  unsigned char* ring = shared;
  unsigned char* after_ring = shared + kStages * kStageBytes;
  float* parts = reinterpret_cast<float*>(after_ring + kBarrierBytes);
  const Input input{.x = reinterpret_cast<bf16x*>(after_ring + kBarrierBytes + parts_bytes(p.rows)),
                    .in = p.in,
                    .pitch = pitch_of(p.in),
                    .barriers = static_cast<unsigned>(__cvta_generic_to_shared(after_ring))};
  skinny::Loader loader{.p = p,
                        .steps = steps,
                        .tiles = tiles,
                        .warp = warp,
                        .g = g,
                        .t = t,
                        .ring = static_cast<unsigned>(__cvta_generic_to_shared(ring)) + lane_at,
                        .tile = static_cast<int>(blockIdx.x)};
#pragma unroll
  for (int s = 0; s < kStages; ++s) loader.issue(s);
  float4 norm[skinny::kNormKept] = {};
  if (p.norm_weight != nullptr) skinny::keep_norm(p, norm);
  input.prepare(p.rows);
  cuda::wait_for_previous();
  if (p.norm_weight != nullptr)
    skinny::load_normalised(p, input.x, input.pitch, norm);
  else
    input.load(p);

  bool arrived = p.norm_weight != nullptr;  // all of x
  int stage = 0, buffer = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    skinny::Sums<kGroups> sums;
    skinny::Finish<kGroups> finish{.p = p, .lane = lane};
    if (warp == turn) finish.begin(tile);
    for (int s = 0; s < steps; ++s) {
      if (!arrived) wait_open(input.barriers + s * 8);
      cuda::copies_wait<kStages - 1>();
      const unsigned char* slot = ring + stage * kStageBytes + lane_at;
      const bf16x* x = input.x + s * kStep + warp * kChunk + t * 8;
      sums.add(slot, [&](int h, int j) {
        uint4 b{0, 0, 0, 0};
        if (g + 8 * j < p.rows)
          b = *reinterpret_cast<const uint4*>(x + (g + 8 * j) * input.pitch + h * 32);
        return b;
      });
      loader.issue(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    arrived = true;
    float* set = parts + buffer * kWarps * part_floats(p.rows);
    sums.put(set + warp * part_floats(p.rows), p.rows, g, t);
    __syncthreads();
    if (warp == turn) finish.end(tile, set);
    buffer ^= 1;
    turn = (turn + 1) % kWarps;
  }
}

template <int kGroups>
auto kernel_of(int stages) {
  switch (stages) {
    case 2:
      return skinny_linear<kGroups, 2>;
    case 3:
      return skinny_linear<kGroups, 3>;
    case 4:
      return skinny_linear<kGroups, 4>;
    case 5:
      return skinny_linear<kGroups, 5>;
    case 6:
      return skinny_linear<kGroups, 6>;
    default:
      return skinny_linear<kGroups, 8>;
  }
}

/// Of a block, of which an SM always holds one: two of one kernel there leave another SM without,
/// as one kernel begins where the last one ends (measured: a quarter slower). Two blocks an SM and
/// parts of the columns for different blocks were tried and are slower.
int shared_bytes(int rows, int in, int stages) {
  const int needed =
      stages * kStageBytes + kBarrierBytes + parts_bytes(rows) + rows * pitch_of(in) * 2;
  return std::max(needed, kSmBytes / 2 - skinny::kReservedBytes + 256);
}

}  // namespace

bool skinny_linear_fits(const SkinnyLinearShape& s) {
  const auto [rows, in, stages, norm] = s;
  return rows >= 1 && rows <= kSkinnyRows && in > 0 && in % 8 == 0 && in <= kMaxSteps * kStep &&
         stages >= 2 && (stages <= 6 || stages == 8) &&
         shared_bytes(rows, in, stages) + skinny::kReservedBytes <= kSmBytes;
}

void skinny_linear_cuda(const SkinnyLinearParams& p, Stream stream) {
  if (p.rows == 0) return;
  const auto kernel = p.rows > 8 ? kernel_of<2>(p.stages) : kernel_of<1>(p.stages);
  const int bytes = shared_bytes(p.rows, p.in, p.stages);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const auto blocks =
      static_cast<unsigned>(std::min(skinny::tiles_of(p), cuda::gpu().multiprocessors));
  cuda::launch(kernel, blocks, kThreads, static_cast<size_t>(bytes), 1, stream, p);
}

}  // namespace tandem::hopper
