#include <algorithm>

#include "kernels/cuda/mbarrier.cuh"
#include "kernels/linear/code_tiles.cuh"
#include "kernels/linear/coded_linear.h"
#include "kernels/linear/skinny_linear.cuh"

// A block takes one or two rows of tiles at a time, and its warps the tiles of these in turn. A
// warp copies tiles into its part of a ring in shared memory, ahead of their use. Rows of x lie in
// shared memory in the order in which lanes read them: a lane's 16 numbers of 64 columns are
// neighbours. Codes in products are too large by their base and their zero. The kernel subtracts
// that much times the sum of x in a unit from the unit's sum. The sum of x is a product with ones
// that all tiles share.

namespace tandem::portable {
namespace {

using skinny::bf16x;
using skinny::kChunk;

constexpr int kWarps = 16, kThreads = kWarps * cuda::kWarp;
constexpr int kLeastStages = 2, kMostStages = 8;

__host__ __device__ constexpr int padded(int in) {
  return (in + kTileInputs - 1) / kTileInputs * kTileInputs;
}
// Rows of x lie 4 of the 32 banks apart: a quarter warp reads two of them.
__host__ __device__ constexpr int pitch_of(int in) { return padded(in) + 8; }

/// Columns 16 s + 8 h + 2 t + e of 64 lie at 16 t + 4 s + 2 h + e, multiplied by 2^kExponent.
template <int kExponent = 0>
struct LaneOrder {
  __device__ static int at(int k) {
    return (k & ~63) + ((k >> 1 & 3) << 4) + ((k >> 4 & 3) << 2) + ((k >> 3 & 1) << 1) + (k & 1);
  }
  __device__ static unsigned scaled(unsigned pair) {
    if (kExponent == 0) return pair;
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                           __float2bfloat162_rn(tiles::power_of_two(kExponent)));
    return *reinterpret_cast<const unsigned*>(&product);
  }
  __device__ static void place(bf16x* row, int k, uint2 four) {
    *reinterpret_cast<unsigned*>(row + at(k)) = scaled(four.x);
    *reinterpret_cast<unsigned*>(row + at(k + 2)) = scaled(four.y);
  }
};

/// Copies rows of x, with zeros after the last column.
template <class Order>
__device__ void load_input(const SkinnyLinearParams& p, bf16x* x) {
  const int eights = padded(p.in) / 8, pitch = pitch_of(p.in);
  for (int i = threadIdx.x; i < p.rows * eights; i += kThreads) {
    const int n = i / eights, k = i % eights * 8;
    uint4 v{0, 0, 0, 0};
    if (k < p.in)
      v = *reinterpret_cast<const uint4*>(static_cast<const bf16x*>(p.x) +
                                          static_cast<int64_t>(n) * p.in + k);
    Order::place(x + n * pitch, k, {v.x, v.y});
    Order::place(x + n * pitch, k + 4, {v.z, v.w});
  }
  __syncthreads();
}

/// The zeros after the last column of normalised rows.
__device__ void pad_input(const SkinnyLinearParams& p, bf16x* x) {
  const int pad = padded(p.in) - p.in;
  for (int i = threadIdx.x; i < p.rows * pad; i += kThreads)
    x[i / pad * pitch_of(p.in) + LaneOrder<>::at(p.in + i % pad)] = __float2bfloat16_rn(0.0f);
}

/// A warp's copies, some tiles ahead of its products. kTiles: rows of tiles at a time.
template <int kPieces, int kTiles>
class Loader {
 public:
  /// steps    tiles of the warp in a row of tiles
  __device__ Loader(const CodeTiles& w, int steps, int warp, int lane, void* ring)
      : data_(w.data),
        row_bytes_(w.row_bytes()),
        tile_bytes_(w.tile_bytes()),
        tail_(w.tile_bytes() / 16 - kPieces * 32),
        steps_(steps),
        down_(w.down()),
        lane_at_(lane * 16),
        begin_(warp * w.tile_bytes() + lane * 16),
        slot_(static_cast<unsigned>(__cvta_generic_to_shared(ring)) +
              warp * kTiles * w.tile_bytes() + lane * 16),
        row_(static_cast<int>(blockIdx.x) * kTiles) {
    if (steps_ <= 0) row_ = down_;
    begin_row();
  }

  __device__ void issue(int stage) {
    if (row_ < down_) {
      const unsigned slot = slot_ + stage * (kWarps * kTiles * tile_bytes_);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint8_t* const from = at_ + (row_ + tile < down_ ? tile * row_bytes_ : 0);
        const unsigned to = slot + tile * tile_bytes_;
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
          cuda::copy_async<16>(to + i * kPieceBytes, from + i * kPieceBytes);
        if (lane_at_ < tail_ * 16)
          cuda::copy_async<16>(to + kPieces * kPieceBytes, from + kPieces * kPieceBytes);
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
    at_ = data_ + min(row_, down_ - 1) * row_bytes_ + begin_;
  }

  const uint8_t* data_;
  int64_t row_bytes_;
  int tile_bytes_, tail_, steps_, down_, lane_at_, begin_;
  unsigned slot_;
  int row_, step_ = 0;
  const uint8_t* at_ = nullptr;
};

/// Adds the products of kTiles tiles, unit by unit.
/// slot     the tiles, one after the other
/// piece    (k, j): of x's row g + 8 j the lane's columns of steps k and k + 1
template <Code kCode, int kUnit, bool kMinimum, int kTiles, int kGroups, class Piece>
__device__ __forceinline__ void add_tiles(skinny::Sums<kGroups> (&sums)[kTiles],
                                          const unsigned char* slot, int tile_bytes, Zero zero,
                                          ScaleType type, int lane, const Piece& piece) {
  using Decode = tiles::Decoder<kCode>;
  constexpr int kPieces = kCode == Code::i4 ? 2 : 4, kUnits = kTileInputs / kUnit,
                kUnitSteps = kUnit / 16;
  constexpr unsigned kOnes = 0x3f803f80u;
  constexpr bool kHasBase = kCode == Code::i4 || kMinimum;
  const bool integer = !kMinimum && zero == Zero::integer, summed = kHasBase || integer;
  const int g = lane / 4;
  uint4 codes[kTiles][kPieces];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      codes[tile][i] =
          *reinterpret_cast<const uint4*>(slot + tile * tile_bytes + i * kPieceBytes + lane * 16);
  constexpr int kScalesAt = kPieces * kPieceBytes, kPlaces = kUnits * kTileOutputs;
  const int zeros_at = kScalesAt + kPlaces * (kCode == Code::fp8 ? 4 : 2);
  uint4 b[kGroups];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    // Two sums, so that no product waits for the one before it.
    float part[2][kTiles][kGroups][4] = {}, inputs[kGroups][4] = {};
#pragma unroll
    for (int k = unit * kUnitSteps; k < (unit + 1) * kUnitSteps; ++k) {
      if (k % 2 == 0)
#pragma unroll
        for (int j = 0; j < kGroups; ++j) b[j] = piece(k, j);
      const auto low = [&](int j) { return k % 2 == 0 ? b[j].x : b[j].z; };
      const auto high = [&](int j) { return k % 2 == 0 ? b[j].y : b[j].w; };
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned a[4];
        Decode::fragment(a, codes[tile], k);
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          skinny::multiply(part[k % 2][tile][j], a[0], a[1], a[2], a[3], low(j), high(j));
      }
      if (summed)
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          skinny::multiply(inputs[j], kOnes, kOnes, kOnes, kOnes, low(j), high(j));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned char* const at = slot + tile * tile_bytes;
        const int place = unit * kTileOutputs + g + 8 * r;
        float scale = tiles::scale_at<kCode>(at + kScalesAt, place, type);
        if (Decode::kExponent > 0)
          scale *= tiles::power_of_two(Decode::kExponent - Decode::kExponent / 2);
        float less = Decode::kBase, least = 0;
        if (kMinimum)
          least = tiles::scale_at<kCode>(at + zeros_at, place, type);
        else if (integer)
          less += tiles::zero_of(at + zeros_at + place, kCode);
        else if (kCode == Code::i4)
          less += 8;
        const float shift = fmaf(-scale, less, least);
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) {
            float& to = sums[tile].at[j][i];
            to = fmaf(scale, part[0][tile][j][i] + part[1][tile][j][i], to);
            if (summed) to = fmaf(shift, inputs[j][i], to);
          }
      }
  }
}

/// A lane's part in finishing tiles: row m of a tile, of a row n of x.
struct Output {
  const CodedLinearParams& all;
  int n, tile, m, o;
  bool real;
  float before = 0;

  __device__ Output(const CodedLinearParams& given, int row_of_x, int row_of_tiles, int row)
      : all(given), n(row_of_x), tile(row_of_tiles), m(row) {
    const CodeTiles& w = all.w;
    o = w.paired ? tile * 8 + m % 8 + (m < 8 ? 0 : w.out / 2) : tile * kTileOutputs + m;
    real = tile < w.down() && w.is_output(tile, m);
    if (real && all.product.accumulate) before = static_cast<const float*>(all.product.y)[at()];
  }
  __device__ int64_t at() const { return static_cast<int64_t>(n) * all.y_stride + o; }
  /// parts    begins with the first warp's
  __device__ void finish(const float* parts, int each) const {
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
template <Code kCode, int kUnit, bool kMinimum, int kTiles, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    coded_linear(const CodedLinearParams all, const int stages, const int sets) {
  // Half of what codes lack is in x, half in the scales: neither leaves the range of its type.
  using Order = LaneOrder<tiles::Decoder<kCode>::kExponent / 2>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ cuda::Barrier read[kMostSets];  // a set may be written again
  const SkinnyLinearParams& p = all.product;
  const CodeTiles& w = all.w;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int steps = (w.across() - warp + kWarps - 1) / kWarps;  // <= 0: nothing for this warp
  const int down = w.down(), pitch = pitch_of(p.in), tile_bytes = w.tile_bytes();
  const int stage_bytes = kWarps * kTiles * tile_bytes, each = skinny::part_floats(p.rows);

  float* parts = reinterpret_cast<float*>(shared + stages * stage_bytes);
  bf16x* x = reinterpret_cast<bf16x*>(parts + sets * kWarps * kTiles * each);
  Loader<kCode == Code::i4 ? 2 : 4, kTiles> loader(w, steps, warp, lane, shared);
  for (int s = 0; s < stages; ++s) loader.issue(s);
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
    load_input<Order>(p, x);

  const unsigned char* const own = shared + warp * kTiles * tile_bytes;
  int stage = 0, set = 0, turn = 0;
  unsigned parity = 1;
  for (int row = blockIdx.x * kTiles; row < down; row += gridDim.x * kTiles) {
    skinny::Sums<kGroups> sums[kTiles];
    const int n = (warp - turn + kWarps) % kWarps;  // the row of x that this warp finishes
    const bool finishes = n < p.rows;
    const int of = lane / kTileOutputs;
    const Output output(all, n, finishes && of < kTiles ? row + of : down, lane % kTileOutputs);
    const bf16x* columns = x + warp * kTileInputs + t * 16;
    for (int s = 0; s < steps; ++s, columns += kWarps * kTileInputs) {
      cuda::copies_wait(stages - 1);
      __syncwarp();
      add_tiles<kCode, kUnit, kMinimum>(
          sums, own + stage * stage_bytes, tile_bytes, w.zero, w.scale, lane, [&](int k, int j) {
            uint4 b{0, 0, 0, 0};
            if (g + 8 * j < p.rows)
              b = *reinterpret_cast<const uint4*>(columns + (g + 8 * j) * pitch + k / 4 * kChunk +
                                                  k % 4 * 4);
            return b;
          });
      __syncwarp();
      loader.issue(stage);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    float* const to = parts + set * kWarps * kTiles * each;
    read[set].wait(parity);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      sums[tile].put(to + (tile * kWarps + warp) * each, p.rows, g, t);
    // Only warps that finish wait for the others.
    if (finishes) {
      cuda::named_sync(1 + set, kThreads);
      output.finish(to + min(of, kTiles - 1) * kWarps * each, each);
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

template <Code kCode, int kUnit, bool kMinimum>
auto kernel_of(int tiles, bool few) {
  if (tiles == 2)
    return few ? coded_linear<kCode, kUnit, kMinimum, 2, 1>
               : coded_linear<kCode, kUnit, kMinimum, 2, 2>;
  return few ? coded_linear<kCode, kUnit, kMinimum, 1, 1>
             : coded_linear<kCode, kUnit, kMinimum, 1, 2>;
}

template <Code kCode, bool kMinimum>
auto kernel_of(int unit, int tiles, bool few) {
  switch (unit) {
    case 16:
      return kernel_of<kCode, 16, kMinimum>(tiles, few);
    case 32:
      return kernel_of<kCode, 32, kMinimum>(tiles, few);
    case 64:
      return kernel_of<kCode, 64, kMinimum>(tiles, few);
    default:
      return kernel_of<kCode, 128, kMinimum>(tiles, few);
  }
}

auto kernel_of(const CodeTiles& w, int tiles, bool few) {
  const bool minimum = w.zero == Zero::minimum;
  if (w.code == Code::fp8) return kernel_of<Code::fp8, kTileInputs, false>(tiles, few);
  if (w.code == Code::i4)
    return minimum ? kernel_of<Code::i4, true>(w.unit(), tiles, few)
                   : kernel_of<Code::i4, false>(w.unit(), tiles, few);
  return minimum ? kernel_of<Code::i8, true>(w.unit(), tiles, few)
                 : kernel_of<Code::i8, false>(w.unit(), tiles, few);
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
  const int blocks = std::min((p.w.down() + l.tiles - 1) / l.tiles, cuda::gpu().multiprocessors);
  cuda::launch(kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(l.bytes), 1,
               stream, p, l.stages, l.sets);
}

}  // namespace tandem::portable
