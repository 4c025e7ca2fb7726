#include "kernels/code/code.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kAhead = 24;   // keys whose bits are asked for before their turn
constexpr int kAtOnce = 16;  // keys whose sums are then scored in vectors

/// A key's scale; its share is kCodeKeys further on.
TANDEM_INLINE const uint8_t* scales_of(const CodeRefineParams& p, int64_t key) {
  return p.groups + key / kCodeKeys * code_group_bytes(p.dims) + int64_t{16} * p.dims +
         key % kCodeKeys;
}

/// For the listed keys [first, first + n) the sum of q over the set bits of the last plane, and of
/// the one before twice that.
void sum_planes(const CodeRefineParams& p, int first, int n, float* sums) {
  const CodeQuery& q = *p.query;
  const int64_t low_bytes = code_low_bytes(p.dims, p.bits);
  const int negative = (q.bias - q.total) / 2;  // what the tables add
  for (int i = 0; i < n; ++i) {
    const uint8_t* low = p.low + (p.keys[first + i] - p.first) * low_bytes;
    int sum = 0;
    for (int plane = 0; plane < p.bits - 1; ++plane) {
      int of_plane = -negative;
      for (int byte = 0; byte < p.dims / 8; ++byte, ++low) {
        const uint8_t* table = q.sums + 32 * byte;
        of_plane += table[*low & 15] + table[16 + (*low >> 4)];
      }
      sum = 2 * sum + of_plane;
    }
    sums[i] = static_cast<float>(sum);
  }
}

#if defined(TANDEM_ISA_avx512)
/// 64 bits of a plane from coordinate c on; where 32 are left, those.
TANDEM_INLINE __mmask64 plane_bits(const uint8_t* plane, int c, int dims) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, plane + c / 8, dims - c >= 64 ? 8 : 4);
  return bits;
}

__attribute__((target("avx512vnni"))) void sum_planes_vnni(const CodeRefineParams& p, int first,
                                                           int n, float* sums) {
  const int64_t low_bytes = code_low_bytes(p.dims, p.bits);
  const __m512i one = _mm512_set1_epi8(1), two = _mm512_set1_epi8(2);
  for (int i = 0; i < n; ++i) {
    const uint8_t* low = p.low + (p.keys[first + i] - p.first) * low_bytes;
    __m512i sum = _mm512_setzero_si512();
    for (int c = 0; c < p.dims; c += 64) {
      const __mmask64 inside = p.dims - c >= 64 ? ~0ull : 0xffffffffull;
      const __m512i x = _mm512_maskz_loadu_epi8(inside, p.query->q + c);
      const __m512i high = _mm512_maskz_mov_epi8(plane_bits(low, c, p.dims), x);
      sum = _mm512_dpbusd_epi32(sum, p.bits == 3 ? two : one, high);
      if (p.bits == 2) continue;
      const __mmask64 last = plane_bits(low + p.dims / 8, c, p.dims);
      sum = _mm512_dpbusd_epi32(sum, one, _mm512_maskz_mov_epi8(last, x));
    }
    sums[i] = static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
}
#endif

/// Scores of the listed keys [first, first + n), n <= kAtOnce, from their sums by the low planes,
/// scales and shares.
TANDEM_INLINE void score(const CodeRefineParams& p, int first, int n, const float* lows,
                         const float* scales, const float* shares) {
  const CodeQuery& q = *p.query;
  alignas(64) float old[kAtOnce] = {}, scores[kAtOnce];
  for (int i = 0; i < n; ++i) old[i] = p.scores[p.keys[first + i]];
  // 2 y = sum over planes of +-2^plane: 4 times the sign's and 2 (2 B1 + B0) - 3 for three bits.
  const Vec planes = set1(static_cast<float>(1 << (p.bits - 1)));
  const Vec less = set1(static_cast<float>(((1 << (p.bits - 1)) - 1) * q.total));
  for (int i = 0; i < kAtOnce; i += Vec::kLanes) {
    const Vec scale = load(scales + i), by_axis = set1(q.axis_gain) * load(shares + i);
    const Vec by_signs = set1(q.sign_gain) * scale;
    // The sum by signs is a whole number below 2^14, so rounding gives it back exactly. Sums of all
    // bits are below 2^17: whole numbers too.
    const Vec signs =
        select(lt(zero(), abs(by_signs)), round((load(old + i) - by_axis) / by_signs), zero());
    const Vec sum = fma(signs, planes, fma(load(lows + i), set1(2), zero() - less));
    store(scores + i, sum * set1(q.gain) * scale + by_axis);
  }
  for (int i = 0; i < n; ++i) p.refined[first + i] = p.scores[p.keys[first + i]] = scores[i];
}

template <class SumPlanes>
TANDEM_INLINE void refine(const CodeRefineParams& p, const SumPlanes& sum) {
  const int64_t low_bytes = code_low_bytes(p.dims, p.bits);
  alignas(64) float lows[kAtOnce] = {}, scales[kAtOnce] = {}, shares[kAtOnce] = {};
  for (int first = 0; first < p.n; first += kAtOnce) {
    const int n = p.n - first < kAtOnce ? p.n - first : kAtOnce;
    for (int i = 0; i < n; ++i) {
      const int at = first + i;
      if (at + kAhead < p.n) {
        const int64_t later = p.keys[at + kAhead] - p.first;
        __builtin_prefetch(p.low + later * low_bytes);
        __builtin_prefetch(scales_of(p, later));
        __builtin_prefetch(scales_of(p, later) + kCodeKeys);
      }
      const uint8_t* scale = scales_of(p, p.keys[at] - p.first);
      scales[i] = code_scale(scale[0]);
      shares[i] = static_cast<float>(static_cast<int8_t>(scale[kCodeKeys]));
    }
    sum(p, first, n, lows);
    score(p, first, n, lows, scales, shares);
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
