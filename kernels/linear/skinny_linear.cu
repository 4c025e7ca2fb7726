#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/linear/skinny_linear_cuda.h"

// A block's eight warps take 16 rows of W at a time, and of their columns the chunks of 64 in turn.
// Each lane copies what it will multiply, and only that, into its own part of a ring in shared
// memory: no barrier stands between load and use, and the ring runs on from tile to tile, so that
// the memory never idles. W is the left operand of m16n8k16 and x, padded to 8 or 16 rows, the
// right one. The order of columns inside a product is free as long as both sides agree: lane t of a
// row takes 8 neighbouring columns where the instruction's layout names two pairs, so that all
// loads are of 16 bytes.

namespace tandem {
namespace {

using bf16x = __nv_bfloat16;

constexpr int kWarps = 8, kThreads = kWarps * cuda::kWarp;
constexpr int kTileRows = 16;  // weight rows that a block takes together
constexpr int kChunk = 64;     // columns that a warp takes together
constexpr int kChunkBytes = kTileRows * kChunk * 2;
constexpr int kStageBytes = kWarps * kChunkBytes;
constexpr int kStep = kWarps * kChunk;  // columns that the warps take together
constexpr int kMaxSteps = 64;
constexpr int kBarrierBytes = kMaxSteps * 8;
// Rows of x in shared memory lie half of the 32 banks apart: a quarter warp reads two of them.
constexpr int kPitchPad = 32;
// Of an SM's 228 KiB the system keeps one for each block; block_sum has some, too.
constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024 + 256;
// Norm weights that a thread holds before x is there: of rows up to 4096 all.
constexpr int kNormKept = 4;

__host__ __device__ constexpr int padded(int in) { return (in + kChunk - 1) / kChunk * kChunk; }
__host__ __device__ constexpr int pitch_of(int in) { return padded(in) + kPitchPad; }
__host__ __device__ constexpr int tiles_of(const SkinnyLinearParams& p) {
  return p.swiglu ? (p.out / 2 + 7) / 8 : (p.out + kTileRows - 1) / kTileRows;
}
/// Sums of a tile, one set a warp, two sets so that one is read while the next is written.
__host__ __device__ constexpr int part_floats(int rows) { return kTileRows * rows; }
__host__ __device__ constexpr int parts_bytes(int rows) {
  return 2 * kWarps * part_floats(rows) * 4;
}

__device__ void copy_async(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                         unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

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

/// The lane's copies of W, some steps ahead of its products.
struct Loader {
  const SkinnyLinearParams& p;
  int steps, tiles;
  int warp, g, t;
  unsigned ring;  // shared address of the lane's first piece
  int tile, step = 0;
  const bf16x* low = nullptr;
  const bf16x* high = nullptr;

  __device__ const bf16x* row(int r) const {
    return reinterpret_cast<const bf16x*>(p.w) + static_cast<int64_t>(min(r, p.out - 1)) * p.in;
  }
  __device__ void issue(int stage) {
    if (tile < tiles && steps > 0) {
      if (step == 0) {
        low = row(p.swiglu ? tile * 8 + g : tile * kTileRows + g);
        high = row(p.swiglu ? p.out / 2 + tile * 8 + g : tile * kTileRows + g + 8);
      }
      const unsigned slot = ring + stage * kStageBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = (step * kWarps + warp) * kChunk + h * 32 + t * 8;
        const int bytes = k < p.in ? 16 : 0;  // zeros behind the last column
        const int at = min(k, p.in - 8);
        copy_async(slot + h * 1024, low + at, bytes);
        copy_async(slot + h * 1024 + 512, high + at, bytes);
      }
      if (++step == steps) {
        step = 0;
        tile += gridDim.x;
        // Blocks of the next kernel come when this one's end. Before the last tile they could not
        // have, and their launch takes a while.
        if (tile + static_cast<int>(gridDim.x) >= tiles) cuda::release_next();
      }
    }
    commit_copies();
  }
};

/// x in shared memory.
struct Input {
  bf16x* x;  // [rows, pitch]
  int in, pitch;
  unsigned barriers;  // one a step of kStep columns

  __device__ int steps() const { return (in + kStep - 1) / kStep; }
  __device__ int step_columns(int s) const { return min(kStep, in - s * kStep); }

  /// Before the kernel ahead has ended: zeros behind the last column, and what will have to arrive.
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

/// Instead of Input::load: x normalised by its root mean square. `kept`: the thread's first norm
/// weights.
__device__ void load_normalised(const SkinnyLinearParams& p, const Input& in,
                                const float4 (&kept)[kNormKept]) {
  for (int n = 0; n < p.rows; ++n) {
    const float* row = static_cast<const float*>(p.x) + static_cast<int64_t>(n) * p.in;
    float sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < p.in; i += kThreads * 4) {
      const float4 v = *reinterpret_cast<const float4*>(row + i);
      sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    const float mean = cuda::block_sum<kThreads>(sum) / static_cast<float>(p.in);
    const float scale = 1.0f / sqrtf(mean + p.norm_eps);
    const auto write = [&](int k, const float4& w) {
      const float4 v = *reinterpret_cast<const float4*>(row + k);
      const __nv_bfloat162 a = __floats2bfloat162_rn(v.x * scale * w.x, v.y * scale * w.y);
      const __nv_bfloat162 b = __floats2bfloat162_rn(v.z * scale * w.z, v.w * scale * w.w);
      uint2 packed;
      packed.x = *reinterpret_cast<const unsigned*>(&a);
      packed.y = *reinterpret_cast<const unsigned*>(&b);
      *reinterpret_cast<uint2*>(in.x + n * in.pitch + k) = packed;
    };
    const int first = threadIdx.x * 4;
#pragma unroll
    for (int j = 0; j < kNormKept; ++j)
      if (const int k = first + j * kThreads * 4; k < p.in) write(k, kept[j]);
#pragma unroll 4
    for (int k = first + kNormKept * kThreads * 4; k < p.in; k += kThreads * 4)
      write(k, *reinterpret_cast<const float4*>(p.norm_weight + k));
  }
  __syncthreads();
}

/// Writes y for row n of x and output o: what was computed, and what it is added to.
__device__ void store(const SkinnyLinearParams& p, int n, int o, float value, float before) {
  const int64_t at = static_cast<int64_t>(n) * (p.swiglu ? p.out / 2 : p.out) + o;
  if (p.y_type == DType::bf16)
    static_cast<bf16x*>(p.y)[at] = __float2bfloat16_rn(value);
  else
    static_cast<float*>(p.y)[at] = value + before;
}
__device__ float gated(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

/// What one warp does with a finished tile. Lane and i stand for weight row m = lane % 16 of the
/// tile and row 2 i + lane / 16 of x.
template <int kGroups>
struct Finish {
  static constexpr int kEach = kGroups * 4;
  const SkinnyLinearParams& p;
  int lane, m = lane % kTileRows;
  float before[kEach] = {};

  __device__ int row_of(int i) const { return 2 * i + lane / kTileRows; }
  /// The output of this lane in a tile; with swiglu of its second half what the first gates.
  __device__ int output_of(int tile) const {
    if (!p.swiglu) return tile * kTileRows + m;
    return tile * 8 + m % 8 + (m >= 8 ? p.out / 2 : 0);
  }
  /// Reads what the tile is to be added to, early.
  __device__ void begin(int tile) {
    const int o = output_of(tile);
    if (!p.accumulate) return;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (row_of(i) < p.rows && o < p.out)
        before[i] = static_cast<const float*>(p.y)[static_cast<int64_t>(row_of(i)) * p.out + o];
  }
  __device__ void end(int tile, const float* parts) {
    const int each = part_floats(p.rows), o = output_of(tile);
    const bool real = p.swiglu ? tile * 8 + m % 8 < p.out / 2 : o < p.out;
    const float b = real && p.bias != nullptr ? p.bias[o] : 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (2 * i >= p.rows) break;
      const bool mine = real && row_of(i) < p.rows;
      float sum = 0;
      if (mine)
        for (int w = 0; w < kWarps; ++w) sum += parts[w * each + i * 32 + lane];
      sum += b;
      const float up = p.swiglu ? __shfl_down_sync(cuda::kAllLanes, sum, 8) : 0;
      if (!mine || (p.swiglu && m >= 8)) continue;
      store(p, row_of(i), o, p.swiglu ? gated(sum, up) : sum, before[i]);
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
  const int tiles = tiles_of(p);
  const int lane_at = warp * kChunkBytes + lane * 16;

  unsigned char* ring = shared;
  unsigned char* behind_ring = shared + kStages * kStageBytes;
  float* parts = reinterpret_cast<float*>(behind_ring + kBarrierBytes);
  const Input input{
      .x = reinterpret_cast<bf16x*>(behind_ring + kBarrierBytes + parts_bytes(p.rows)),
      .in = p.in,
      .pitch = pitch_of(p.in),
      .barriers = static_cast<unsigned>(__cvta_generic_to_shared(behind_ring))};
  Loader loader{.p = p,
                .steps = steps,
                .tiles = tiles,
                .warp = warp,
                .g = g,
                .t = t,
                .ring = static_cast<unsigned>(__cvta_generic_to_shared(ring)) + lane_at,
                .tile = static_cast<int>(blockIdx.x)};
#pragma unroll
  for (int s = 0; s < kStages; ++s) loader.issue(s);
  float4 norm[kNormKept] = {};
  if (p.norm_weight != nullptr)
    for (int j = 0; j < kNormKept; ++j)
      if (const int k = (threadIdx.x + j * kThreads) * 4; k < p.in)
        norm[j] = *reinterpret_cast<const float4*>(p.norm_weight + k);
  input.prepare(p.rows);
  cuda::wait_for_previous();
  if (p.norm_weight != nullptr)
    load_normalised(p, input, norm);
  else
    input.load(p);

  bool arrived = p.norm_weight != nullptr;  // all of x
  int stage = 0, buffer = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float acc[kGroups][4] = {};
    Finish<kGroups> finish{.p = p, .lane = lane};
    if (warp == turn) finish.begin(tile);
    for (int s = 0; s < steps; ++s) {
      if (!arrived) wait_open(input.barriers + s * 8);
      wait_copies<kStages - 1>();
      const unsigned char* slot = ring + stage * kStageBytes + lane_at;
      const bf16x* x = input.x + s * kStep + warp * kChunk + t * 8;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 lo = *reinterpret_cast<const uint4*>(slot + h * 1024);
        const uint4 hi = *reinterpret_cast<const uint4*>(slot + h * 1024 + 512);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          uint4 b{0, 0, 0, 0};
          if (g + 8 * j < p.rows)
            b = *reinterpret_cast<const uint4*>(x + (g + 8 * j) * input.pitch + h * 32);
          multiply(acc[j], lo.x, hi.x, lo.y, hi.y, b.x, b.y);
          multiply(acc[j], lo.z, hi.z, lo.w, hi.w, b.z, b.w);
        }
      }
      loader.issue(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    arrived = true;
    float* set = parts + buffer * kWarps * part_floats(p.rows);
    float* part = set + warp * part_floats(p.rows);
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (const int n = 8 * j + 2 * t + i % 2; n < p.rows)
          part[n * kTileRows + g + i / 2 * 8] = acc[j][i];
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

int multiprocessors() {
  int device = 0, n = 1;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  return n;
}

/// Of a block, of which an SM always holds one: two of one kernel there leave another SM without,
/// as one kernel begins where the last one ends (measured: a quarter slower). Two blocks an SM and
/// parts of the columns for different blocks were tried and are slower.
int shared_bytes(int rows, int in, int stages) {
  const int needed =
      stages * kStageBytes + kBarrierBytes + parts_bytes(rows) + rows * pitch_of(in) * 2;
  return std::max(needed, kSmBytes / 2 - kReservedBytes + 256);
}

}  // namespace

bool skinny_linear_fits(int rows, int in, int stages) {
  return rows >= 1 && rows <= kSkinnyRows && in > 0 && in % 8 == 0 && in <= kMaxSteps * kStep &&
         stages >= 2 && (stages <= 6 || stages == 8) &&
         shared_bytes(rows, in, stages) + kReservedBytes <= kSmBytes;
}

void skinny_linear_cuda(const SkinnyLinearParams& p, Stream stream) {
  if (p.rows == 0) return;
  const auto kernel = p.rows > 8 ? kernel_of<2>(p.stages) : kernel_of<1>(p.stages);
  const int bytes = shared_bytes(p.rows, p.in, p.stages);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const auto blocks = static_cast<unsigned>(std::min(tiles_of(p), multiprocessors()));
  cuda::launch(kernel, blocks, kThreads, static_cast<size_t>(bytes), 1, stream, p);
}

}  // namespace tandem
