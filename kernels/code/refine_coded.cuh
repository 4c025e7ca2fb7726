#pragma once
// Scores of candidates by all bits, on a GPU.
#include "kernels/code/code_tile.cuh"

namespace tandem::coded {

/// Adds four unsigned bytes of `word` times four signed ones of q.
__device__ inline int add_products(uint32_t word, uint32_t q, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(word), "r"(q));
  return sum;
}

/// The sum of a key's lower bits times the whole numbers from q on, kWidth bits a coordinate; q:
/// 16- byte aligned.
template <int kWidth>
__device__ int low_sum(const uint8_t* low, const uint32_t* q, int dims) {
  constexpr int kFields = 8 / kWidth;  // of a byte; those of each place have a sum, at that place
  constexpr uint32_t kMask = 0x01010101u * ((1 << kWidth) - 1);
  int sums[kFields] = {};
  const auto add = [&](uint32_t word, const uint32_t* from) {
#pragma unroll
    for (int f = 0; f < kFields; f += 4) {
      const uint4 of = reinterpret_cast<const uint4*>(from)[f / 4];
      sums[f] = add_products(word & kMask << f * kWidth, of.x, sums[f]);
      sums[f + 1] = add_products(word & kMask << (f + 1) * kWidth, of.y, sums[f + 1]);
      sums[f + 2] = add_products(word & kMask << (f + 2) * kWidth, of.z, sums[f + 2]);
      sums[f + 3] = add_products(word & kMask << (f + 3) * kWidth, of.w, sums[f + 3]);
    }
  };
  const int words = dims / 32 * kWidth;
  if (words % 4 == 0) {
#pragma unroll 1
    for (int w = 0; w < words; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(low)[w / 4];
      add(four.x, q + w * kFields);
      add(four.y, q + (w + 1) * kFields);
      add(four.z, q + (w + 2) * kFields);
      add(four.w, q + (w + 3) * kFields);
    }
  } else {
#pragma unroll 1
    for (int w = 0; w < words; ++w) add(reinterpret_cast<const uint32_t*>(low)[w], q + w * kFields);
  }
  int sum = 0;
#pragma unroll
  for (int f = 0; f < kFields; ++f) sum += sums[f] >> f * kWidth;
  return sum;
}

/// A candidate's score by all bits, from that by signs; q: words of the whole numbers. Keys lie
/// anywhere: few and wide accesses.
template <int kWidth>
__device__ float refine(const ChooseCodedParams& p, const CodedList& list,
                        const DeviceCodeQuery& query, const uint32_t* q, int key, float old) {
  const uint32_t pair = *reinterpret_cast<const uint16_t*>(list.group(p, key) + 16 * p.codes.dims +
                                                           device_scale_place(key % kCodeKeys));
  const auto lows = static_cast<float>(low_sum<kWidth>(list.low(p, key), q, p.codes.dims));
  const float scale = scale_of(pair), by_axis = query.axis_gain * share_of(pair),
              by_signs = query.sign_gain * scale;
  // As code_refine.inl: the sum by signs is a whole number, so rounding gives it back.
  const float signs = fabsf(by_signs) > 0 ? rintf((old - by_axis) / by_signs) : 0.0f;
  const float less = static_cast<float>((1 << kWidth) - 1) * query.total;
  const float sum = fmaf(signs, static_cast<float>(1 << kWidth), fmaf(lows, 2.0f, -less));
  return sum * query.gain * scale + by_axis;
}

}  // namespace tandem::coded
