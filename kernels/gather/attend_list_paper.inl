#include "kernels/gather/attend_list_paper.h"

#include <immintrin.h>
#include <math.h>

#include "base/log2.h"
namespace tandem {
namespace {

constexpr int kTile = 16;
constexpr float kEpsilon = 1e-4f;

/// Tiles of 16 keys; every 32 elements of every key end in a sum over lanes and an add in memory.
void query_key(const AttendListPaperParams& p) {
  for (int tile = 0; tile < p.n_ids; tile += kTile) {
    float* scores = p.scores + tile;
    for (int i = 0; i < kTile; ++i) scores[i] = 0;
    for (int c = 0; c < p.d; c += 32) {
      const auto q = reinterpret_cast<__m512bh>(_mm512_loadu_si512(p.q + c));
      for (int i = 0; i < kTile; ++i) {
        const bf16* k = p.k + static_cast<int64_t>(p.ids[tile + i]) * p.d + c;
        const __m512 products = _mm512_dpbf16_ps(_mm512_setzero_ps(), q,
                                                 reinterpret_cast<__m512bh>(_mm512_loadu_si512(k)));
        scores[i] += _mm512_reduce_add_ps(products);
      }
    }
  }
}

/// Importance weights, key by key through the functions of the C library.
void transform(const AttendListPaperParams& p) {
  const auto bits = static_cast<float>(p.bits), tables = static_cast<float>(p.tables);
  for (int i = 0; i < p.n_ids; ++i) {
    const float dot = p.scores[i];
    const float angle = acosf(dot / (p.q_norm * p.norms[p.ids[i]]));
    const float agree = powf(1.0f - angle / static_cast<float>(M_PI), bits);
    const float differ = 1.0f - agree;
    const float u = 1.0f - powf(differ, tables - 1.0f) * (tables * agree + differ);
    p.scores[i] = dot * p.scale - logf(u + kEpsilon);
  }
}

/// 2^x for x <= 0, third-degree Taylor series in the fraction, no clamp.
__m512 exp2_taylor(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_mul_ps(_mm512_sub_ps(x, whole), _mm512_set1_ps(kLn2));
  __m512 y = _mm512_set1_ps(1.0f / 6);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.5f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(whole), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent));
}

void softmax(const AttendListPaperParams& p) {
  float most = p.scores[0];
  for (int i = 1; i < p.n_ids; ++i)
    if (most < p.scores[i]) most = p.scores[i];
  float sum = 0;
  int i = 0;
  for (; i + kTile <= p.n_ids; i += kTile) {
    const __m512 x = _mm512_sub_ps(_mm512_loadu_ps(p.scores + i), _mm512_set1_ps(most));
    const __m512 weight = exp2_taylor(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)));
    _mm512_storeu_ps(p.scores + i, weight);
    sum += _mm512_reduce_add_ps(weight);
  }
  for (; i < p.n_ids; ++i) sum += p.scores[i] = expf(p.scores[i] - most);
  for (i = 0; i < p.n_ids; ++i) p.scores[i] /= sum;
  *p.lse = most + logf(sum);
}

/// Blocks of 16 elements outside, all rows inside: a row is visited d / 16 times.
void weighted_values(const AttendListPaperParams& p) {
  for (int c = 0; c < p.d; c += 16) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < p.n_ids; ++i) {
      const bf16* v = p.v + static_cast<int64_t>(p.ids[i]) * p.d + c;
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v));
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
      sum = _mm512_fmadd_ps(_mm512_set1_ps(p.scores[i]), _mm512_castsi512_ps(wide), sum);
    }
    // Rounds half up.
    const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_set1_epi32(0x8000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p.o + c),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }
}

}  // namespace

void TANDEM_ISA_FN(attend_list_paper)(const AttendListPaperParams& p) {
  query_key(p);
  transform(p);
  softmax(p);
  weighted_values(p);
}

}  // namespace tandem
