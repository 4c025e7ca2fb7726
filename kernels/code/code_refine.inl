#include "kernels/code/code.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

constexpr int kAhead = 24;  // keys whose bits are asked for before their turn

/// 2 x the sum of q over the set bits of the more significant plane, if there is one, plus that
/// over those of the last.
#if defined(TANDEM_ISA_avx512)
#define TANDEM_VNNI __attribute__((target("avx512vnni")))

TANDEM_VNNI TANDEM_INLINE __m512i add_planes(__m512i sum, const uint8_t* low, const int8_t* q,
                                             int plane_bytes, int bits, int c, __mmask64 inside) {
  const __m512i x = _mm512_maskz_loadu_epi8(inside, q + c);
  uint64_t plane = 0;
  const int n = plane_bytes - c / 8 < 8 ? plane_bytes - c / 8 : 8;
  __builtin_memcpy(&plane, low + c / 8, static_cast<size_t>(n == 8 ? 8 : 4));
  const int weight = bits == 3 ? 2 : 1;
  sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(static_cast<char>(weight)),
                            _mm512_maskz_mov_epi8(plane & inside, x));
  if (bits == 3) {
    plane = 0;
    __builtin_memcpy(&plane, low + plane_bytes + c / 8, static_cast<size_t>(n == 8 ? 8 : 4));
    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_maskz_mov_epi8(plane & inside, x));
  }
  return sum;
}

TANDEM_VNNI int sum_planes_vnni(const CodeQuery& query, const uint8_t* low, int dims, int bits) {
  __m512i sum = _mm512_setzero_si512();
  for (int c = 0; c < dims; c += 64)
    sum = add_planes(sum, low, query.q, dims / 8, bits, c, dims - c >= 64 ? ~0ull : 0xffffffffull);
  return _mm512_reduce_add_epi32(sum);
}
#endif

int sum_planes(const CodeQuery& query, const uint8_t* low, int dims, int bits) {
  const int negative = (query.bias - query.total) / 2;  // what the tables add
  int sum = 0;
  for (int plane = 0; plane < bits - 1; ++plane) {
    int of_plane = -negative;
    for (int byte = 0; byte < dims / 8; ++byte) {
      const int set = low[plane * dims / 8 + byte];
      const uint8_t* sums = query.sums + 32 * byte;
      of_plane += sums[set & 15] + sums[16 + (set >> 4)];
    }
    sum = 2 * sum + of_plane;
  }
  return sum;
}

/// A key's scale; its share is kCodeKeys further on.
TANDEM_INLINE const uint8_t* scales_of(const CodeRefineParams& p, int64_t key) {
  return p.groups + key / kCodeKeys * code_group_bytes(p.dims) + int64_t{16} * p.dims +
         key % kCodeKeys;
}

template <class SumPlanes>
TANDEM_INLINE void refine(const CodeRefineParams& p, const SumPlanes& sum_planes_of) {
  const CodeQuery& q = *p.query;
  const int64_t low_bytes = code_low_bytes(p.dims, p.bits);
  for (int i = 0; i < p.n; ++i) {
    if (i + kAhead < p.n) {
      const int64_t later = p.keys[i + kAhead] - p.first;
      __builtin_prefetch(p.low + later * low_bytes);
      __builtin_prefetch(scales_of(p, later));
      __builtin_prefetch(scales_of(p, later) + kCodeKeys);
    }
    const int64_t key = p.keys[i] - p.first;
    const uint8_t* scales = scales_of(p, key);
    const float scale = code_scale(scales[0]);
    const float by_axis = q.axis_gain * static_cast<float>(static_cast<int8_t>(scales[kCodeKeys]));
    float* score = p.scores + p.keys[i];
    // The sum by signs is a whole number below 2^14, so rounding gives it back exactly.
    const float by_signs = q.sign_gain * scale;
    const int signs =
        by_signs != 0 ? static_cast<int>(__builtin_rintf((*score - by_axis) / by_signs)) : 0;
    // 2 y = sum over planes of +-2^plane = 2 (2 B1 + B0) - 3, with the signs' 4 in front.
    const int lows = 2 * sum_planes_of(q, p.low + key * low_bytes, p.dims, p.bits) -
                     ((1 << (p.bits - 1)) - 1) * q.total;
    const int sum = (signs << (p.bits - 1)) + lows;
    p.refined[i] = *score = (static_cast<float>(sum) * q.gain) * scale + by_axis;
  }
}

}  // namespace

void TANDEM_ISA_FN(code_refine)(const CodeRefineParams& p) {
#ifdef TANDEM_ISA_avx512
  if (__builtin_cpu_supports("avx512vnni")) return refine(p, sum_planes_vnni);
#endif
  refine(p, sum_planes);
}

}  // namespace tandem
