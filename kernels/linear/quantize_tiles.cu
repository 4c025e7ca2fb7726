#include <cuda_fp8.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/linear/code_tiles.h"
#include "kernels/quant/quantize.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kTeam = kScaleFactors;  // threads of a group, one for each multiple of its scale
constexpr int kSliceInputs = 1024;    // a block's, if groups are small
constexpr int kLaneBytes = 16;

/// A stored scale, and the zero before the code's offset.
struct Chosen {
  float scale, zero_at;
};

/// Inputs of the two rows of a block: whole groups, tiles and vectors.
template <class T>
struct Slice {
  int inputs, group;

  __host__ __device__ explicit Slice(const CodeTiles& w)
      : inputs(w.group == 0             ? w.across() * kTileInputs
               : w.group <= kTileInputs ? kSliceInputs
                                        : w.group),
        group(w.group == 0 ? inputs : w.group) {}
  __host__ __device__ int of_row(const CodeTiles& w) const { return (w.in + inputs - 1) / inputs; }
  /// From the first row to the second, which begins at another bank.
  __host__ __device__ int stride() const { return inputs + cuda::Pack<T>::kSize; }
  __host__ __device__ size_t chosen_at() const { return 2 * sizeof(T) * stride(); }
  __host__ __device__ size_t bytes() const {
    return chosen_at() + 2 * sizeof(Chosen) * (inputs / group);
  }
};

template <class F>
__device__ float over_team(float x, const F& f) {
  for (int step = kTeam / 2; step > 0; step /= 2)
    x = f(x, __shfl_xor_sync(cuda::kAllLanes, x, step));
  return x;
}

/// The least and the largest weight of a group, 0 among them.
struct Ends {
  float low = 0, high = 0;

  template <class T>
  __device__ Ends(const T* x, int n, int lane) {
    for (int i = lane; i < n; i += kTeam) {
      const float v = cuda::to_float(x[i]);
      low = fminf(low, v);
      high = fmaxf(high, v);
    }
    low = over_team(low, [](float a, float b) { return fminf(a, b); });
    high = over_team(high, [](float a, float b) { return fmaxf(a, b); });
  }
  __device__ float most() const { return fmaxf(high, -low); }
};

/// The scale of a group before it is rounded. The functions below repeat those of quantize.inl,
/// with the same order of operations.
template <class T>
__device__ float scale_of(const CodeRule& rule, Code code, const T* x, Ends ends) {
  if (rule.has_zero) return (ends.high - ends.low) / rule.high;
  if (code == Code::i8) return ends.most() / 127.0f;
  float extreme = ends.high > -ends.low ? ends.high : ends.low;
  if (ends.high == -ends.low)
    for (extreme = cuda::to_float(*x); extreme != ends.high && extreme != ends.low;)
      extreme = cuda::to_float(*++x);
  return extreme / -8.0f;
}

/// A scale and the values that the error of a weight under it needs.
struct Trial {
  float scale, zero_at = 0, inverse = 0;
  float low, high;  // limits of q, moved by kRounder

  __device__ Trial(const CodeRule& rule, Ends ends, float unrounded, float factor)
      : scale(fmaxf(-kMostScale, fminf(kMostScale, unrounded * factor))) {
    scale = __half2float(__float2half_rn(scale)) + 0.0f;  // -0 becomes 0
    if (rule.has_zero && scale != 0)
      zero_at = fmaxf(0, fminf(rule.high, rintf((0 - ends.low * factor) / scale)));
    if (scale != 0) inverse = 1.0f / scale;
    low = kRounder + (rule.low - zero_at);
    high = kRounder + (rule.high - zero_at);
  }
  __device__ float squared_error(float x) const {
    const float moved = x * inverse + kRounder;
    const float q = fminf(high, fmaxf(low, moved)) - kRounder;
    const float error = x - scale * q;
    return error * error;
  }
};

/// The multiple of a scale that leaves the least error, or the scale itself.
template <class T>
__device__ Chosen best_of(const CodeRule& rule, Ends ends, float unrounded, const T* x, int n,
                          int lane) {
  constexpr int kVector = cuda::Pack<T>::kSize;
  const Trial own(rule, ends, unrounded, 1.0f), mine(rule, ends, unrounded, scale_factor(lane));
  float even = 0, odd = 0, own_error = 0;
  for (int i = 0; i < n; i += kVector) {
    const auto some = *reinterpret_cast<const cuda::Pack<T>*>(x + i);
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      even += mine.squared_error(cuda::to_float(some.at[e]));
      odd += mine.squared_error(cuda::to_float(some.at[e + 1]));
    }
  }
  for (int i = lane; i < n; i += kTeam) own_error += own.squared_error(cuda::to_float(x[i]));
  own_error = over_team(own_error, [](float a, float b) { return a + b; });
  const float error = even + odd,
              least = over_team(error, [](float a, float b) { return fminf(a, b); });
  const unsigned half =
      __ballot_sync(cuda::kAllLanes, error == least) >> (cuda::lane_of() / kTeam * kTeam);
  const int first = __ffs(static_cast<int>(half)) - 1;
  const float scale = __shfl_sync(cuda::kAllLanes, mine.scale, first, kTeam);
  const float zero_at = __shfl_sync(cuda::kAllLanes, mine.zero_at, first, kTeam);
  return least < own_error ? Chosen{scale, zero_at} : Chosen{own.scale, own.zero_at};
}

template <class T>
__device__ Chosen choose(const QuantizeTilesParams& p, const CodeRule& rule, const T* x, int n,
                         int lane) {
  const Ends ends(x, n, lane);
  if (p.tiles.code == Code::fp8) return {ends.most() / kMostFp8, 0};
  const float unrounded = scale_of(rule, p.tiles.code, x, ends);
  if (p.search) return best_of(rule, ends, unrounded, x, n, lane);
  const Trial own(rule, ends, unrounded, 1.0f);
  return {own.scale, own.zero_at};
}

/// A code as tiles hold it.
template <Code kCode>
__device__ unsigned code_of(const CodeRule& rule, Chosen by, float x) {
  const float steps = by.scale == 0 ? 0 : x / by.scale;
  if (kCode == Code::fp8) return __nv_cvt_float_to_fp8(steps, __NV_SATFINITE, __NV_E4M3);
  const float q = fminf(rule.high - by.zero_at, fmaxf(rule.low - by.zero_at, rintf(steps)));
  const int code = static_cast<int>(q + (by.zero_at + rule.offset));
  return static_cast<unsigned>(kCode == Code::i8 ? code + 128 : code);
}

/// A block has rows g and g + 8 of a row of tiles, or a slice of them.
template <Code kCode, class T>
__global__ void __launch_bounds__(kThreads) quantize_tiles(const QuantizeTilesParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  cuda::start_after_previous();
  constexpr int kVector = cuda::Pack<T>::kSize;
  const CodeTiles& w = p.tiles;
  const CodeRule rule = rule_of(kCode, w.zero);
  const Slice<T> slice(w);
  const int slices = slice.of_row(w), pair = static_cast<int>(blockIdx.x) / slices;
  const int begin = static_cast<int>(blockIdx.x) % slices * slice.inputs, g = pair % 8;
  const int tile = pair / 8, left = w.in - begin;  // inputs, of which the slice may have fewer
  T* const numbers = reinterpret_cast<T*>(memory);
  auto* const chosen = reinterpret_cast<Chosen*>(memory + slice.chosen_at());
  const auto is_real = [&](int row) { return w.is_output(p.first + tile, g + 8 * row); };

  bool finite = true;
  const bool packed = w.in % kVector == 0 && reinterpret_cast<uintptr_t>(p.numbers) % 16 == 0;
  for (int v = threadIdx.x * kVector; v < 2 * slice.inputs; v += kThreads * kVector) {
    const int row = v >= slice.inputs, k = v - row * slice.inputs;
    // Rows that pad a tile have the codes of its first row.
    const int64_t place = w.place(p.first, p.n, tile, is_real(row) ? g + 8 * row : 0);
    const T* const from = static_cast<const T*>(p.numbers) + place * w.in + begin + k;
    cuda::Pack<T> some = {};
    if (packed && k < left)
      some = *reinterpret_cast<const cuda::Pack<T>*>(from);
    else
      for (int e = 0; e < kVector && k + e < left; ++e) some.at[e] = from[e];
    for (const T& number : some.at) finite &= isfinite(cuda::to_float(number));
    *reinterpret_cast<cuda::Pack<T>*>(numbers + row * slice.stride() + k) = some;
  }
  if (!finite) *p.refused = p.number;
  __syncthreads();

  // Both teams of a warp have the same group, of the two rows.
  const int groups = min(slice.inputs, left + slice.group - 1) / slice.group;
  for (int i = static_cast<int>(threadIdx.x) / kTeam; i < 2 * groups; i += kThreads / kTeam) {
    const int lane = static_cast<int>(threadIdx.x) % kTeam;
    const T* const x = numbers + i % 2 * slice.stride() + i / 2 * slice.group;
    const Chosen by = choose(p, rule, x, slice.group, lane);
    if (lane == 0) chosen[i] = by;
  }
  __syncthreads();

  // Words of both rows: each has two inputs of each, and for i4 those eight further.
  constexpr int kPiece = kCode == Code::i4 ? 64 : 32, kPairs = kCode == Code::i4 ? 2 : 1;
  constexpr int kWords = kTileInputs / kPiece * 16;  // in a tile
  const int tiles = min(slice.inputs, left + kTileInputs - 1) / kTileInputs;
  uint8_t* const out = p.to + tile * w.row_bytes() + begin / kTileInputs * w.tile_bytes();
  for (int i = threadIdx.x; i < tiles * kWords; i += kThreads) {
    const int piece = i % kWords / 16, t = i % 16 / 4, s = i % 4;
    const int k = i / kWords * kTileInputs + piece * kPiece + s * kPiece / 4 + 2 * t;
    unsigned word = 0;
#pragma unroll
    for (int j = 0; j < 4 * kPairs; ++j) {
      const int row = j % 2, odd = j / 2 % 2, far = j / 4, input = k + odd + 8 * far;
      if (input >= left) continue;
      const float x = cuda::to_float(numbers[row * slice.stride() + input]);
      const unsigned code = code_of<kCode>(rule, chosen[input / slice.group * 2 + row], x);
      word |= code << (kCode == Code::i4 ? 4 * (row + 2 * far) + 16 * odd : 8 * row + 16 * odd);
    }
    uint8_t* const at = out + i / kWords * w.tile_bytes() + piece * kPieceBytes;
    reinterpret_cast<unsigned*>(at + (4 * g + t) * kLaneBytes)[s] = word;
  }

  for (int i = threadIdx.x; i < 2 * tiles * w.units(); i += kThreads) {
    const int row = i % 2, unit = i / 2, input = unit * w.unit();
    const bool holds = is_real(row) && input < left;
    const Chosen by = holds ? chosen[input / slice.group * 2 + row] : Chosen{};
    uint8_t* const at = out + unit / w.units() * w.tile_bytes();
    const int place = unit % w.units() * kTileOutputs + g + 8 * row;
    if (kCode == Code::fp8)
      reinterpret_cast<float*>(at + w.scales_at())[place] = by.scale;
    else
      reinterpret_cast<__half*>(at + w.scales_at())[place] = __float2half_rn(by.scale);
    if (rule.has_zero)
      at[w.zeros_at() + place] =
          static_cast<uint8_t>(holds ? static_cast<int>(by.zero_at + rule.offset) : 0);
  }
}

template <class T>
void launch_of(const QuantizeTilesParams& p, Stream stream) {
  const Slice<T> slice(p.tiles);
  const auto kernel = p.tiles.code == Code::i4   ? quantize_tiles<Code::i4, T>
                      : p.tiles.code == Code::i8 ? quantize_tiles<Code::i8, T>
                                                 : quantize_tiles<Code::fp8, T>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(slice.bytes()));
  cuda::launch(kernel, static_cast<unsigned>(8 * p.n * slice.of_row(p.tiles)), kThreads,
               slice.bytes(), 1, stream, p);
}

}  // namespace

void quantize_tiles_cuda(const QuantizeTilesParams& p, Stream stream) {
  if (p.n == 0) return;
  if (p.type == DType::bf16)
    launch_of<__nv_bfloat16>(p, stream);
  else
    launch_of<float>(p, stream);
}

bool quantize_tiles_fits(const CodeTiles& w, DType type) {
  const size_t bytes =
      type == DType::bf16 ? Slice<__nv_bfloat16>(w).bytes() : Slice<float>(w).bytes();
  return bytes <= static_cast<size_t>(cuda::gpu().block_shared_bytes);
}

}  // namespace tandem
