#include "kernels/signature/count_bits.h"
#include "kernels/signature/signature.h"

namespace tandem {
namespace {

constexpr int kQueriesAtOnce = 4;
// Keys that further queries read again while they are in L1: 32 KB at 8 words, in two parts.
constexpr int kBlock = 512;

constexpr int kLine = 64, kPage = 4096, kPageLines = 4;

/// How many lines before their turn lines are asked for. On Intel shortly before, when the
/// prefetcher of L2 has them: asked for sooner, each would hold one of L1's few buffers for the
/// whole latency of memory. AMD's prefetcher runs less far ahead and its L1 waits for more lines: a
/// page ahead is half as fast again as a quarter of it (Zen 5; half of it loses a fifth, twice a
/// twelfth).
TANDEM_INLINE int lines_ahead() {
#ifdef TANDEM_ISA_scalar
  return 16;
#else
  return __builtin_cpu_is("amd") ? 64 : 16;
#endif
}

TANDEM_INLINE int least(int a, int b) { return a < b ? a : b; }

/// The prefetcher of L2 stops at the end of a page: the first lines of the next are asked for a
/// page ahead.
TANDEM_INLINE void prefetch(const uint32_t* group, const bf16* norms, int words, int64_t ahead) {
  const char* at = reinterpret_cast<const char*>(group);
  for (int w = 0; w < words; ++w) __builtin_prefetch(at + ahead + w * kLine);
  __builtin_prefetch(reinterpret_cast<const char*>(norms) + kLine);
  if (reinterpret_cast<uintptr_t>(at) % kPage < static_cast<uintptr_t>(words * kLine))
    for (int l = 0; l < kPageLines; ++l) __builtin_prefetch(at + kPage + l * kLine, 0, 2);
}

TANDEM_INLINE Vec load_norms(const SignatureScanParams& p, int i) {
  const int left = p.n_keys - i;
  if (left >= Vec::kLanes) return load(p.norms + i);
  return left > 0 ? load_n(p.norms + i, left) : zero();
}

/// A polynomial: a gather from a table of 32 * words + 1 cosines takes 15 cycles (Zen 5), as long
/// as a query counts.
TANDEM_INLINE Vec score(const SimilarityCurve& curve, Vec x, Vec norms) {
  const Vec y = x * x;
  return (x * norms) * ((y + set1(curve.p)) * y + set1(curve.q));
}

/// Scores of kQueries queries, those at p.queries and p.scores, for the 16 keys from i on.
template <int kWords, int kQueries>
TANDEM_COUNT_BITS TANDEM_INLINE void score_group(const SignatureScanParams& p, int i,
                                                 int64_t ahead) {
  const int words = kWords != 0 ? kWords : p.words;
  const uint32_t* group = p.signatures + static_cast<int64_t>(i) * words;
  prefetch(group, p.norms + i, words, ahead);
  for (int lane = 0; lane < kSignatureGroup; lane += Vec::kLanes) {
    const Vec norms = load_norms(p, i + lane) * set1(p.similarity.scale);
    Counts counts[kQueries];
    for (int j = 0; j < kQueries; ++j) clear(counts[j], 16 * words);
    for (int w = 0; w < words;) {
      for (const int last = least(words, w + kCountedWords); w < last; ++w) {
        const Words keys = load_words(group + w * kSignatureGroup + lane);
        for (int j = 0; j < kQueries; ++j) count(counts[j], keys, p.queries[j * words + w]);
      }
      for (int j = 0; j < kQueries; ++j) widen(counts[j]);
    }
    float* scores = p.scores + i + lane;
    for (int j = 0; j < kQueries; ++j)
      store(scores + j * p.score_stride, score(p.similarity, left(counts[j]), norms));
  }
}

/// Scores of kQueries queries from q on for the keys [begin, end) and those `apart` further on that
/// are before `limit`: two streams from memory, each with a prefetcher's help, are faster than one.
template <int kWords, int kQueries>
TANDEM_COUNT_BITS void scan(const SignatureScanParams& all, int q, Range keys, int apart,
                            int limit) {
  // Copies, which the compiler knows that no score overwrites.
  SignatureScanParams p = all;
  p.scores += q * p.score_stride;
  p.queries += static_cast<int64_t>(q) * p.words;
  uint32_t queries[kWords != 0 ? kWords * kQueries : 1];
  if (kWords != 0) {
    for (int i = 0; i < kWords * kQueries; ++i) queries[i] = p.queries[i];
    p.queries = queries;
  }
  const int64_t ahead = lines_ahead() * kLine;
  for (int i = keys.begin; i < keys.end; i += kSignatureGroup) {
    score_group<kWords, kQueries>(p, i, ahead);
    if (i + apart < limit) score_group<kWords, kQueries>(p, i + apart, ahead);
  }
}

template <int kWords>
void scan_all(const SignatureScanParams& p, Range keys) {
  const int half = ((keys.end - keys.begin + 1) / 2 + kSignatureGroup - 1) & -kSignatureGroup;
  const int middle = keys.begin + half;
  for (int begin = keys.begin; begin < middle; begin += kBlock) {
    const Range block{begin, least(middle, begin + kBlock)};
    int q = 0;
    for (; q + kQueriesAtOnce <= p.n_queries; q += kQueriesAtOnce)
      scan<kWords, kQueriesAtOnce>(p, q, block, half, keys.end);
    const int left = p.n_queries - q;
    if (left == 3) scan<kWords, 3>(p, q, block, half, keys.end);
    if (left == 2) scan<kWords, 2>(p, q, block, half, keys.end);
    if (left == 1) scan<kWords, 1>(p, q, block, half, keys.end);
  }
}

}  // namespace

void TANDEM_ISA_FN(signature_scan)(const SignatureScanParams& p, Range keys) {
#ifdef TANDEM_ISA_avx512
  // Skylake to Cooper Lake: shuffles on half the width.
  if (!__builtin_cpu_supports("avx512vpopcntdq")) return signature_scan_avx2(p, keys);
#endif
  if (p.words == 8) return scan_all<8>(p, keys);
  if (p.words == 4) return scan_all<4>(p, keys);
  scan_all<0>(p, keys);
}

}  // namespace tandem
