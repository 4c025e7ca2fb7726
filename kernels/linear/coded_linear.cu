#include <algorithm>

#include "kernels/cuda/mbarrier.cuh"
#include "kernels/linear/code_products.cuh"
#include "kernels/linear/coded_linear.h"

// A block takes one or two rows of tiles at a time, and its warps the tiles of these in turn. A
// warp copies tiles into its part of a ring in shared memory, ahead of their use. Rows of x lie in
// shared memory in the order in which lanes read them: a lane's 16 numbers of 64 columns are
// neighbours.

namespace tandem::portable {
namespace {

using skinny::bf16x;
using skinny::kChunk;
using tiles::padded, tiles::pitch_of;

constexpr int kWarps = 16, kThreads = kWarps * cuda::kWarp;
constexpr int kLeastStages = 2, kMostStages = 8;

/// The zeros after the last column of normalised rows.
__device__ void pad_input(const SkinnyLinearParams& p, bf16x* x) {
  const int pad = padded(p.in) - p.in;
  for (int i = threadIdx.x; i < p.rows * pad; i += kThreads)
    x[i / pad * pitch_of(p.in) + tiles::LaneOrder<>::at(p.in + i % pad)] =
        __float2bfloat16_rn(0.0f);
}

/// A warp's copies, some tiles ahead of its products. kTiles: rows of tiles at a time.
template <int kPieces, int kTiles>
class Loader {
 public:
  /// steps    tiles of the warp in a row of tiles
  __device__ Loader(const CodeTiles& w, int steps, int warp, int lane, void* ring)
      : data_(w.data + warp * w.tile_bytes() + lane * 16),
        row_bytes_(w.row_bytes()),
        tile_bytes_(w.tile_bytes()),
        steps_(steps),
        down_(w.down()),
        has_tail_(lane < w.tile_bytes() / 16 - kPieces * cuda::kWarp),
        slot_(cuda::shared_address(ring) + warp * kTiles * w.tile_bytes() + lane * 16),
        row_(static_cast<int>(blockIdx.x) * kTiles) {
    if (steps_ <= 0) row_ = down_;
    begin_row();
  }

  /// at       bytes of a stage from the ring's begin
  __device__ void issue(int at) {
    if (row_ < down_) {
      const uint8_t* from = at_;
      unsigned to = slot_ + at;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
          cuda::copy_async<16>(to + i * kPieceBytes, from + i * kPieceBytes);
        if (has_tail_)
          cuda::copy_async<16>(to + kPieces * kPieceBytes, from + kPieces * kPieceBytes);
        from += next_;
        to += tile_bytes_;
      }
      at_ += kWarps * tile_bytes_;
      if (++step_ == steps_) {
        row_ += gridDim.x * kTiles;
        // Blocks of the next kernel come when this one's end; see skinny_linear.
        if (row_ + static_cast<int>(gridDim.x) * kTiles >= down_) cuda::release_next();
        begin_row();
      }
    }
    cuda::copies_commit();
  }

 private:
  __device__ void begin_row() {
    step_ = 0;
    if (row_ >= down_) return;
    at_ = data_ + row_ * row_bytes_;
    next_ = row_ + 1 < down_ ? row_bytes_ : 0;
  }

  const uint8_t* data_;
  int64_t row_bytes_, next_ = 0;  // from a tile to the one in the next row of tiles
  int tile_bytes_, steps_, down_;
  bool has_tail_;
  unsigned slot_;
  int row_, step_ = 0;
  const uint8_t* at_ = nullptr;
};

/// A lane's part in finishing tiles: row m of a tile, of a row n of x.
struct Output {
  const CodedLinearParams& all;
  int n, m, o;
  bool real;

  __device__ Output(const CodedLinearParams& given, int row_of_x, int tile, int row)
      : all(given), n(row_of_x), m(row) {
    const CodeTiles& w = all.w;
    o = w.paired ? tile * 8 + m % 8 + (m < 8 ? 0 : w.out / 2) : tile * kTileOutputs + m;
    real = tile < w.down() && w.is_output(tile, m);
  }
  __device__ int64_t at() const { return static_cast<int64_t>(n) * all.y_stride + o; }
  /// The number that the sum is added to.
  __device__ float before() const {
    return real && all.product.accumulate ? static_cast<const float*>(all.product.y)[at()] : 0.0f;
  }
  /// parts    begins with the first warp's
  __device__ void finish(const float* parts, int each, float before) const {
    const SkinnyLinearParams& p = all.product;
    float sum = real && p.bias != nullptr ? p.bias[o] : 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w * each + n * kTileOutputs + m];
    const float up = p.gated ? __shfl_down_sync(cuda::kAllLanes, sum, 8) : 0;
    if (!real || (p.gated && m >= 8)) return;
    if (p.gated) sum = cuda::gated(p.gate, sum, up);
    if (p.y_type == DType::bf16)
      static_cast<bf16x*>(p.y)[at()] = __float2bfloat16_rn(sum);
    else
      static_cast<float*>(p.y)[at()] = sum + before;
  }
};

/// Sets of the warps' sums, in turn: one is read while others are written.
constexpr int kMostSets = 4, kLeastSets = 2;

/// kUnit: inputs of a tile that share a scale; kGroups: eights of x's rows.
template <Code kCode, int kUnit, Zero kZero, int kTiles, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    coded_linear(const CodedLinearParams all, const int stages, const int early, const int sets) {
  using Order = tiles::LaneOrder<tiles::kInX<kCode>>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ cuda::Barrier read[kMostSets];  // a set may be written again
  const SkinnyLinearParams& p = all.product;
  const CodeTiles& w = all.w;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int steps = (w.across() - warp + kWarps - 1) / kWarps;  // <= 0: nothing for this warp
  const int down = w.down(), pitch = pitch_of(p.in), tile_bytes = w.tile_bytes();
  const int stage_bytes = kWarps * kTiles * tile_bytes, ring_bytes = stages * stage_bytes;
  const int each = skinny::part_floats(p.rows);

  float* parts = reinterpret_cast<float*>(shared + ring_bytes);
  bf16x* x = reinterpret_cast<bf16x*>(parts + sets * kWarps * kTiles * each);
  Loader<kCode == Code::i4 ? 2 : 4, kTiles> loader(w, steps, warp, lane, shared);
  int at = 0;  // bytes of a stage from the ring's begin
  for (; at < early * stage_bytes; at += stage_bytes) loader.issue(at);
  if (threadIdx.x < kMostSets) read[threadIdx.x].init(static_cast<unsigned>(p.rows));
  float4 norm[skinny::kNormKept] = {};
  if (p.norm_weight != nullptr) {
    skinny::keep_norm<kThreads>(p, norm);
    pad_input(p, x);
  }
  cuda::wait_for_previous();
  if (p.norm_weight != nullptr)
    skinny::load_normalised<Order, kThreads>(p, x, pitch, norm);
  else
    tiles::load_input<Order, kThreads>(p.x, p.rows, p.in, x);
  for (; at < ring_bytes; at += stage_bytes) loader.issue(at);

  const tiles::Reader<kCode, kZero == Zero::minimum> read_tile(w);
  const unsigned char* const own = shared + warp * kTiles * tile_bytes;
  // Lanes without a row of x read the last one. Their sums are not used.
  const bf16x* lane_x[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
    lane_x[j] = x + min(g + 8 * j, p.rows - 1) * pitch + warp * kTileInputs + t * 16;
  int set = 0, turn = 0;
  at = 0;
  unsigned parity = 1;
  for (int row = blockIdx.x * kTiles; row < down; row += gridDim.x * kTiles) {
    skinny::Sums<kGroups> sums[kTiles];
    const int n = (warp - turn + kWarps) % kWarps;  // the row of x that this warp finishes
    const bool finishes = n < p.rows;
    const int of = lane / kTileOutputs;
    const auto output = [&] {
      return Output(all, n, of < kTiles ? row + of : down, lane % kTileOutputs);
    };
    const float before = finishes ? output().before() : 0.0f;
    for (int s = 0, column = 0; s < steps; ++s, column += kWarps * kTileInputs) {
      cuda::copies_wait(stages - 1);
      __syncwarp();
      tiles::add_tiles<kCode, kUnit, kZero>(
          sums, own + at, tile_bytes, read_tile, lane,
          [&](int place, const unsigned char* scales) {
            constexpr int kZerosAt =
                kTileInputs / kUnit * kTileOutputs * (kCode == Code::fp8 ? 4 : 2);
            const unsigned char* const zeros = scales + kZerosAt;
            const auto bits = [&](const unsigned char* all) {
              return read_tile.scale_bits(all, place);
            };
            return uint2{bits(scales), kZero == Zero::integer   ? zeros[place]
                                       : kZero == Zero::minimum ? bits(zeros)
                                                                : 0};
          },
          [&](int k, int j) {
            return *reinterpret_cast<const uint4*>(lane_x[j] + column + k / 4 * kChunk + k % 4 * 4);
          });
      __syncwarp();
      loader.issue(at);
      at += stage_bytes;
      if (at == ring_bytes) at = 0;
    }
    float* const to = parts + set * kWarps * kTiles * each;
    read[set].wait(parity);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      sums[tile].put(to + (tile * kWarps + warp) * each, p.rows, g, t);
    // Only warps that finish wait for the others.
    if (finishes) {
      cuda::named_sync(1 + set, kThreads);
      output().finish(to + min(of, kTiles - 1) * kWarps * each, each, before);
      __syncwarp();
      if (lane == 0) read[set].arrive();
    } else {
      __syncwarp();
      cuda::named_arrive(1 + set, kThreads);
    }
    turn = (turn + p.rows) % kWarps;
    if (++set == sets) {
      set = 0;
      parity ^= 1;
    }
  }
}

struct Launch {
  int tiles = 0, stages = 0, sets = 0, bytes = 0;

  int blocks(const CodeTiles& w) const {
    return std::min((w.down() + tiles - 1) / tiles, cuda::gpu().multiprocessors);
  }
  /// Stages to ask for before x, which waits for them: enough to keep the memory busy until then.
  int early(const CodeTiles& w) const {
    const int each = blocks(w) * tiles, turns = (w.down() + each - 1) / each;
    return turns * ((w.across() + kWarps - 1) / kWarps) > stages ? 2 : 1;
  }
};

int shared_bytes(const CodeTiles& w, int rows, const Launch& l) {
  const int sums = l.sets * kWarps * l.tiles * skinny::part_floats(rows) * 4;
  return l.stages * kWarps * l.tiles * w.tile_bytes() + sums + rows * pitch_of(w.in) * 2;
}

/// Two rows of tiles at a time, where all multiprocessors then have about as much to do.
int tiles_at_once(const CodeTiles& w) {
  const int n = cuda::gpu().multiprocessors, down = w.down();
  const auto turns = [&](int tiles) { return (down + tiles * n - 1) / (tiles * n) * tiles; };
  return turns(2) * 10 <= turns(1) * 11 ? 2 : 1;
}

/// The most sets, for few rows, and stages that a block finds room for; no stages: not enough.
Launch launch_of(const CodeTiles& w, int rows) {
  constexpr int kFewRows = 4;
  const int room = cuda::gpu().block_shared_bytes - (skinny::kReservedBytes - 1024);
  for (int sets = rows <= kFewRows ? kMostSets : kLeastSets; sets >= kLeastSets; sets -= 2)
    for (int tiles = tiles_at_once(w); tiles > 0; --tiles)
      for (int stages = kMostStages; stages >= kLeastStages; --stages) {
        Launch l{tiles, stages, sets};
        l.bytes = shared_bytes(w, rows, l);
        if (l.bytes <= room) return l;
      }
  return {};
}

template <Code kCode, int kUnit, Zero kZero>
auto kernel_of(int tiles, bool few) {
  if (tiles == 2)
    return few ? coded_linear<kCode, kUnit, kZero, 2, 1> : coded_linear<kCode, kUnit, kZero, 2, 2>;
  return few ? coded_linear<kCode, kUnit, kZero, 1, 1> : coded_linear<kCode, kUnit, kZero, 1, 2>;
}

template <Code kCode, Zero kZero>
auto kernel_of(int unit, int tiles, bool few) {
  switch (unit) {
    case 16:
      return kernel_of<kCode, 16, kZero>(tiles, few);
    case 32:
      return kernel_of<kCode, 32, kZero>(tiles, few);
    case 64:
      return kernel_of<kCode, 64, kZero>(tiles, few);
    default:
      return kernel_of<kCode, kTileInputs, kZero>(tiles, few);
  }
}

template <Code kCode>
auto kernel_of(Zero zero, int unit, int tiles, bool few) {
  switch (zero) {
    case Zero::none:
      return kernel_of<kCode, Zero::none>(unit, tiles, few);
    case Zero::integer:
      return kernel_of<kCode, Zero::integer>(unit, tiles, few);
    default:
      return kernel_of<kCode, Zero::minimum>(unit, tiles, few);
  }
}

auto kernel_of(const CodeTiles& w, int tiles, bool few) {
  if (w.code == Code::fp8) return kernel_of<Code::fp8, kTileInputs, Zero::none>(tiles, few);
  return w.code == Code::i4 ? kernel_of<Code::i4>(w.zero, w.unit(), tiles, few)
                            : kernel_of<Code::i8>(w.zero, w.unit(), tiles, few);
}

}  // namespace

bool coded_linear_fits(const CodeTiles& w, int rows, bool /*norm*/) {
  return rows >= 1 && rows <= kSkinnyRows && w.in % 8 == 0 && launch_of(w, rows).stages > 0;
}

void coded_linear_cuda(const CodedLinearParams& p, Stream stream) {
  const int rows = p.product.rows;
  if (rows == 0) return;
  const Launch l = launch_of(p.w, rows);
  const auto kernel = kernel_of(p.w, l.tiles, rows <= 8);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.bytes);
  cuda::launch(kernel, static_cast<unsigned>(l.blocks(p.w)), kThreads, static_cast<size_t>(l.bytes),
               1, stream, p, l.stages, l.early(p.w), l.sets);
}

}  // namespace tandem::portable
