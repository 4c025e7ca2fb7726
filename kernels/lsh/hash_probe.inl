#include <stddef.h>

#include "kernels/lsh/hash_tables.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

// A bucket lies anywhere in a table: its place is fetched kOffsetsAhead tables early, its ids, some
// 100 bytes at 32 ids a bucket and their skew, kIdsAhead tables early. Three times
// faster than without on tables in memory; half or twice as far is the same within 10 %.
constexpr int kOffsetsAhead = 16;
constexpr int kIdsAhead = 8;
constexpr int kIdsALine = 32;
// Increments a round: the last, partial one is the second of two mispredicted branches a bucket.
constexpr int kRound = 8;
// Ids written a word whether there are as many or not: cheaper than a mispredicted branch a word.
// At a share of 4 % one word in sixty has more.
constexpr int kWritten = 6;
constexpr int kWord = 64;  // counters compared at once

/// Where the bucket of table t begins; the next number is where it ends.
TANDEM_INLINE const uint16_t* bucket_of(const HashProbeParams& p, int t) {
  return p.block.offsets + static_cast<int64_t>(t) * ((int64_t{1} << p.code_bits) + 1) + p.codes[t];
}

TANDEM_INLINE const uint16_t* ids_of(const HashProbeParams& p, int t) {
  return p.block.ids + static_cast<int64_t>(t) * p.block.capacity;
}

TANDEM_INLINE void prefetch_offsets(const HashProbeParams& p, int t) {
  if (t < p.tables) __builtin_prefetch(bucket_of(p, t));
}

TANDEM_INLINE void prefetch_ids(const HashProbeParams& p, int t) {
  if (t >= p.tables) return;
  const uint16_t* ids = ids_of(p, t) + bucket_of(p, t)[0];
  for (int line = 0; line < 3; ++line) __builtin_prefetch(ids + line * kIdsALine);
}

template <bool kSaturate>
TANDEM_INLINE void count(uint8_t& counter) {
  counter = static_cast<uint8_t>(counter + (kSaturate ? counter != 255 : 1));
}

template <bool kSaturate>
void count_hits(const HashProbeParams& p) {
  for (int t = 0; t < p.tables; ++t) {
    prefetch_offsets(p, t + kOffsetsAhead);
    prefetch_ids(p, t + kIdsAhead);
    const uint16_t* at = bucket_of(p, t);
    const uint16_t* ids = ids_of(p, t);
    int i = at[0];
    const int end = at[1];
    for (; i + kRound <= end; i += kRound)
      for (int j = 0; j < kRound; ++j) count<kSaturate>(p.counters[ids[i + j]]);
    for (; i < end; ++i) count<kSaturate>(p.counters[ids[i]]);
  }
}

/// Bit i: counter i is at least min_hits.
TANDEM_INLINE uint64_t hits(const uint8_t* counters, int min_hits) {
#if defined(TANDEM_ISA_avx512)
  return _mm512_cmpge_epu8_mask(_mm512_load_si512(counters),
                                _mm512_set1_epi8(static_cast<char>(min_hits)));
#elif defined(TANDEM_ISA_avx2)
  const __m256i least = _mm256_set1_epi8(static_cast<char>(min_hits));
  uint64_t bits = 0;
  for (int half = 1; half >= 0; --half) {
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(counters) + half);
    const __m256i reached = _mm256_cmpeq_epi8(_mm256_max_epu8(c, least), c);
    bits = bits << 32 | static_cast<uint32_t>(_mm256_movemask_epi8(reached));
  }
  return bits;
#else
  uint64_t bits = 0;
  for (int i = 0; i < kWord; ++i) bits |= static_cast<uint64_t>(counters[i] >= min_hits) << i;
  return bits;
#endif
}

/// Numbers of the set bits, plus `first`; writes at least kWritten elements.
TANDEM_INLINE int32_t* expand(int32_t* out, uint64_t bits, int first) {
  int32_t* const end = out + __builtin_popcountll(bits);
  constexpr uint64_t kStop = uint64_t{1} << (kWord - 1);  // a bit to find when none is left
  for (int i = 0; i < kWritten; ++i, bits &= bits - 1)
    *out++ = first + __builtin_ctzll(bits | kStop);
  for (; bits != 0; bits &= bits - 1) *out++ = first + __builtin_ctzll(bits);
  return end;
}

}  // namespace

int TANDEM_ISA_FN(hash_probe)(const HashProbeParams& p) {
  for (int t = 0; t < kOffsetsAhead; ++t) prefetch_offsets(p, t);
  // Clearing the counters takes about as long as the first offsets are under way.
  const int words = (p.block.n_tokens + kWord - 1) / kWord;
  __builtin_memset(p.counters, 0, static_cast<size_t>(words) * kWord);
  for (int t = 0; t < kIdsAhead; ++t) prefetch_ids(p, t);
  if (p.tables > 255)
    count_hits<true>(p);
  else
    count_hits<false>(p);
  int32_t* out = p.ids;
  for (int w = 0; w < words; ++w)
    out = expand(out, hits(p.counters + w * kWord, p.min_hits), p.first_id + w * kWord);
  return static_cast<int>(out - p.ids);
}

}  // namespace tandem
