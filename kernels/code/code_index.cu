// The index of key codes on a GPU: frames, codes, means of values.
#include <math.h>

#include "kernels/code/code_numbers.h"
#include "kernels/code/device_codes.h"
#include "kernels/code/indexed_rows.cuh"
#include "kernels/code/rotate.cuh"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
constexpr int kMostDim = 256;

using cuda::lane_of;
using cuda::warp_of;

__device__ float* frame_of(const DeviceCodes& c, int slot, int head) {
  return c.frames + slot * c.frame_slot_stride + head * c.frame_head_stride;
}

/// The tokens of a split, or of a block of a smaller grid.
struct Part {
  int begin, end;
  __device__ Part(const IndexedTokens& t, int number, int parts) {
    const int each = (t.n + parts - 1) / parts;
    begin = t.token + min(number * each, t.n);
    end = t.token + min((number + 1) * each, t.n);
  }
};

/// Block (split, head): the sum of a split's keys; thread c has coordinate c.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_keys(const CodeFramesParams p) {
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.y), d = p.codes.d;
  const int c = static_cast<int>(threadIdx.x);
  const Part part(p.tokens, static_cast<int>(blockIdx.x), kFrameSplits);
  if (c >= d) return;
  double sum = 0;
#pragma unroll 8
  for (int t = part.begin; t < part.end; ++t) sum += key_of<T>(p.tokens, head, t, d)[c];
  p.sums[(int64_t{blockIdx.x} * p.tokens.n_kv_heads + head) * d + c] = sum;
}

/// Block head: center and axis; the units become 0.
template <class T>
__global__ void __launch_bounds__(kThreads) set_directions(const CodeFramesParams p) {
  cuda::wait_for_previous();
  __shared__ float squares[kMostDim];
  const int head = static_cast<int>(blockIdx.x), d = p.codes.d;
  const int c = static_cast<int>(threadIdx.x), group = p.n_heads / p.tokens.n_kv_heads;
  float* const frame = frame_of(p.codes, p.slot, head);
  double mean = 0, query = 0;
  if (c < d) {
    for (int i = 0; i < kFrameSplits; ++i)
      mean += p.sums[(int64_t{i} * p.tokens.n_kv_heads + head) * d + c];
    for (int t = p.first_query; t < p.first_query + p.n_queries; ++t)
      for (int h = head * group; h < (head + 1) * group; ++h)
        query += cuda::to_float(static_cast<const T*>(
            p.queries)[(int64_t{t % p.ring_capacity} * p.n_heads + h) * d + c]);
  }
  squares[c] = 0;
  if (c < d) squares[c] = static_cast<float>(query * query);
  __syncthreads();
  if (c < d) {
    double square = 0;
    for (int i = 0; i < d; ++i) square += squares[i];
    frame[c] = static_cast<float>(mean / p.tokens.n);
    frame[d + c] = square > 0 ? static_cast<float>(query / sqrt(square)) : 0.0f;
  }
  if (c < 2) frame[2 * d + c] = 0;
}

/// A warp's view of one key: centred, its share along the axis, and the square of the rest.
template <class T>
struct CentredKey {
  static constexpr int kOwn = kMostDim / cuda::kWarp;
  float x[kOwn], share = 0, square = 0;

  __device__ CentredKey(const KeyRow<T>& key, const float* frame, int d) {
    float norm = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int c = i * cuda::kWarp + lane_of();
      x[i] = c < d ? key[c] - frame[c] : 0.0f;
      norm = fmaf(x[i], x[i], norm);
      share = fmaf(x[i], c < d ? frame[d + c] : 0.0f, share);
    }
    share = cuda::warp_sum(share);
    square = cuda::warp_sum(norm) - share * share;
  }
};

/// Block (split, head): the largest square and share of a split's keys, as bits, which have the
/// order of the numbers.
template <class T>
__global__ void __launch_bounds__(kThreads) find_extents(const CodeFramesParams p) {
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.y), d = p.codes.d;
  const Part part(p.tokens, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  float* const frame = frame_of(p.codes, p.slot, head);
  float square = 0, share = 0;
  for (int t = part.begin + warp_of(); t < part.end; t += kWarps) {
    const CentredKey<T> key(key_of<T>(p.tokens, head, t, d), frame, d);
    square = fmaxf(square, key.square);
    share = fmaxf(share, fabsf(key.share));
  }
  if (lane_of() != 0) return;
  atomicMax(reinterpret_cast<int*>(frame + 2 * d), __float_as_int(square));
  atomicMax(reinterpret_cast<int*>(frame + 2 * d + 1), __float_as_int(share));
}

__global__ void set_units(const CodeFramesParams p) {
  cuda::wait_for_previous();
  const int head = static_cast<int>(threadIdx.x), d = p.codes.d;
  if (head >= p.tokens.n_kv_heads) return;
  float* const units = frame_of(p.codes, p.slot, head) + 2 * d;
  units[0] =
      2 * sqrtf(units[0]) / (sqrtf(static_cast<float>(p.codes.dims)) * mean_product(p.codes.bits));
  units[1] = kAxisRoom * units[1] / 127;
}

/// Sets bits of a word in shared memory that other lanes set other bits of.
__device__ void put_bits(uint8_t* bytes, CodeBitPlace at, uint32_t value) {
  auto* const words = reinterpret_cast<uint32_t*>(bytes);
  if (value != 0) atomicOr(words + at.byte / 4, value << (at.byte % 4 * 8 + at.bit));
}

/// Block (group, head): the codes of the tokens that fall into one group.
template <class T>
__global__ void __launch_bounds__(kThreads) code_keys(const CodeKeysParams p, int first_group) {
  extern __shared__ __align__(16) uint8_t shared[];
  cuda::wait_for_previous();
  const DeviceCodes& codes = p.codes;
  const int head = static_cast<int>(blockIdx.y), d = codes.d, dims = codes.dims, bits = codes.bits;
  const int group = first_group + static_cast<int>(blockIdx.x);
  const int begin = max(p.offset, group * kCodeKeys),
            end = min(p.offset + p.tokens.n, (group + 1) * kCodeKeys);
  const int sign_bytes = 16 * dims, low_bytes = dims / 8 * (bits - 1);
  uint8_t* const signs = shared;
  uint8_t* const lows = signs + sign_bytes;  // [kWarps][low_bytes]
  auto* const rows = reinterpret_cast<float*>(lows + kWarps * ((low_bytes + 15) / 16 * 16));
  uint8_t* const to = codes.groups + p.block * codes.group_block_stride +
                      head * codes.group_head_stride + group * code_group_bytes(dims);
  // Bits of the keys that stay.
  for (int w = static_cast<int>(threadIdx.x); w < sign_bytes / 4; w += kThreads)
    reinterpret_cast<uint32_t*>(signs)[w] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < (begin % kCodeKeys) * dims; i += kThreads) {
    const CodeBitPlace at = device_sign_place(i / dims, i % dims);
    put_bits(signs, at, to[at.byte] >> at.bit & 1);
  }
  __syncthreads();
  const float* frame = frame_of(codes, p.slot, head);
  const float scale_unit = frame[2 * d], axis_unit = frame[2 * d + 1];
  float* const row = rows + warp_of() * dims;
  uint8_t* const low = lows + warp_of() * ((low_bytes + 15) / 16 * 16);
  for (int k = begin + warp_of(); k < end; k += kWarps) {
    const int token = p.tokens.token + k - p.offset;
    const CentredKey<T> key(key_of<T>(p.tokens, head, token, d), frame, d);
#pragma unroll
    for (int i = 0; i < CentredKey<T>::kOwn; ++i) {
      const int c = i * cuda::kWarp + lane_of();
      if (c < dims) row[c] = c < d ? key.x[i] - key.share * frame[d + c] : 0.0f;
    }
    for (int w = lane_of(); w < low_bytes / 4; w += cuda::kWarp)
      reinterpret_cast<uint32_t*>(low)[w] = 0;
    __syncwarp();
    rotate_row(row, codes.signs, dims, lane_of());
    double square = 0, product = 0;
    for (int c = lane_of(); c < dims; c += cuda::kWarp) square += double{row[c]} * row[c];
    for (int step = cuda::kWarp / 2; step > 0; step /= 2)
      square += __shfl_xor_sync(cuda::kAllLanes, square, step);
    const auto norm = static_cast<float>(sqrt(square));
    const float to_steps = norm > 0 ? sqrtf(static_cast<float>(dims)) / norm : 0;
    for (int c = lane_of(); c < dims; c += cuda::kWarp) {
      const int number =
          step_number(static_cast<int>(floorf(row[c] * to_steps / code_step(bits))), bits);
      product += double{row[c]} * (number + 0.5 - (1 << (bits - 1)));
      put_bits(signs, device_sign_place(k % kCodeKeys, c),
               static_cast<uint32_t>(number >> (bits - 1)));
      if (bits > 1) put_bits(low, device_low_place(c, bits), number & ((1u << (bits - 1)) - 1));
    }
    for (int step = cuda::kWarp / 2; step > 0; step /= 2)
      product += __shfl_xor_sync(cuda::kAllLanes, product, step);
    if (lane_of() == 0) {
      const double scale = bits == 1     ? norm / sqrt(static_cast<double>(dims)) / mean_product(1)
                           : product > 0 ? square / product
                                         : 0;
      uint8_t* const scales = to + sign_bytes + device_scale_place(k % kCodeKeys);
      scales[0] = scale_unit > 0 ? scale_code(static_cast<float>(scale) / scale_unit) : 0;
      const float share = axis_unit > 0 ? rintf(key.share / axis_unit) : 0.0f;
      scales[1] = static_cast<uint8_t>(static_cast<int8_t>(fminf(fmaxf(share, -127.0f), 127.0f)));
    }
    __syncwarp();
    uint8_t* const low_to = codes.low + p.block * codes.low_block_stride +
                            head * codes.low_head_stride + int64_t{k} * low_bytes;
    for (int w = lane_of(); w < low_bytes / 4; w += cuda::kWarp)
      reinterpret_cast<uint32_t*>(low_to)[w] = reinterpret_cast<const uint32_t*>(low)[w];
    __syncwarp();
  }
  __syncthreads();
  for (int w = static_cast<int>(threadIdx.x); w < sign_bytes / 4; w += kThreads)
    reinterpret_cast<uint32_t*>(to)[w] = reinterpret_cast<const uint32_t*>(signs)[w];
}

/// Block (run, head): the mean of a run's values; thread c has coordinate c.
template <class T>
__global__ void __launch_bounds__(kThreads) average_values(const CodeKeysParams p, int first_run) {
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.y), d = p.codes.d;
  const int c = static_cast<int>(threadIdx.x), run = first_run + static_cast<int>(blockIdx.x);
  const int begin = run * kMeanKeys, end = min(p.offset + p.tokens.n, begin + kMeanKeys);
  if (c >= d) return;
  const int token = p.tokens.token - p.offset;
  double sum = 0;
#pragma unroll 8
  for (int t = begin; t < end; ++t) sum += value_of<T>(p.tokens, head, token + t, d)[c];
  auto* const means = reinterpret_cast<__nv_bfloat16*>(p.means);
  means[head * p.mean_head_stride + int64_t{run} * d + c] =
      __float2bfloat16_rn(static_cast<float>(sum / (end - begin)));
}

dim3 grid_of(int n, int heads) { return {static_cast<unsigned>(n), static_cast<unsigned>(heads)}; }

}  // namespace

void code_frames_cuda(const CodeFramesParams& p, Stream stream) {
  cuda::with_act(p.tokens.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int heads = p.tokens.n_kv_heads;
    cuda::launch(sum_keys<T>, grid_of(kFrameSplits, heads), kThreads, stream, p);
    cuda::launch(set_directions<T>, grid_of(heads, 1), kThreads, stream, p);
    cuda::launch(find_extents<T>, grid_of(kFrameSplits, heads), kThreads, stream, p);
    cuda::launch(set_units, grid_of(1, 1), 1024, stream, p);
  });
}

void code_keys_cuda(const CodeKeysParams& p, Stream stream) {
  if (p.tokens.n == 0) return;
  cuda::with_act(p.tokens.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int heads = p.tokens.n_kv_heads, end = p.offset + p.tokens.n;
    const int first_group = p.offset / kCodeKeys, first_run = p.offset / kMeanKeys;
    const int low_bytes = p.codes.dims / 8 * (p.codes.bits - 1);
    const size_t bytes = static_cast<size_t>(16 * p.codes.dims) +
                         static_cast<size_t>(kWarps * ((low_bytes + 15) / 16 * 16)) +
                         static_cast<size_t>(kWarps * p.codes.dims) * sizeof(float);
    cuda::launch(code_keys<T>, grid_of((end - 1) / kCodeKeys + 1 - first_group, heads), kThreads,
                 bytes, 1, stream, p, first_group);
    if (p.means == nullptr) return;
    cuda::launch(average_values<T>, grid_of((end - 1) / kMeanKeys + 1 - first_run, heads), kThreads,
                 stream, p, first_run);
  });
}

}  // namespace tandem
