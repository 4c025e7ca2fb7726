#include "kernels/code/sign_sums.h"

namespace tandem {
namespace {

constexpr int kQueriesAtOnce = 4;
// Groups that further queries read again while they are in L1.
constexpr int kBlockGroups = 8;
constexpr int kLine = 64;

/// How far ahead lines are asked for: AMD's prefetcher runs less far ahead than Intel's, and its L1
/// waits for more lines.
TANDEM_INLINE int64_t bytes_ahead() {
#ifdef TANDEM_ISA_scalar
  return 16 * kLine;
#else
  return (__builtin_cpu_is("amd") ? 64 : 16) * kLine;
#endif
}

/// Sums of the tables' entries at the signs of a group's keys, in the keys' order.
template <int kQueries>
TANDEM_INLINE void sum_signs(const uint8_t* signs, const CodeQuery* queries, int dims,
                             int64_t ahead, uint16_t (*sums)[kCodeKeys]) {
  for (int part = 0; part < 64; part += kBytes) {
    Bytes wide[kQueries][4];
    for (int j = 0; j < kQueries; ++j)
      for (Bytes& w : wide[j]) w = no_bytes();
    for (int quad = 0; quad < dims / 4; quad += kQuads) {
      Bytes low[kQueries], high[kQueries];
      for (int j = 0; j < kQueries; ++j) low[j] = high[j] = no_bytes();
      for (int i = quad; i < quad + kQuads; ++i) {
        const uint8_t* at = signs + i * 64 + part;
        if (part % kLine == 0) __builtin_prefetch(at + ahead);
        const Bytes bytes = load_bytes(at), lows = low_halves(bytes), highs = high_halves(bytes);
        for (int j = 0; j < kQueries; ++j) {
          const auto table = table_of(queries[j].sums + i * 16);
          low[j] = add_looked_up(low[j], table, lows);
          high[j] = add_looked_up(high[j], table, highs);
        }
      }
      for (int j = 0; j < kQueries; ++j) {
        wide[j][0] = add_even(wide[j][0], low[j]);
        wide[j][1] = add_odd(wide[j][1], low[j]);
        wide[j][2] = add_even(wide[j][2], high[j]);
        wide[j][3] = add_odd(wide[j][3], high[j]);
      }
    }
    for (int j = 0; j < kQueries; ++j)
      for (int i = 0; i < 4; ++i) store_sums(sums[j] + 32 * i + part / 2, wide[j][i]);
  }
}

template <int kQueries>
TANDEM_INLINE void score_group(const CodeScanParams& p, const CodeQuery* queries, float* scores,
                               int64_t group, int64_t ahead) {
  alignas(64) uint16_t sums[kQueries][kCodeKeys];
  const uint8_t* signs = p.groups + group * code_group_bytes(p.dims);
  sum_signs<kQueries>(signs, queries, p.dims, ahead, sums);
  const uint8_t* scales = signs + 16 * p.dims;
  for (int line = 0; line < 2 * kCodeKeys; line += kLine) __builtin_prefetch(scales + ahead + line);
  scores += group * kCodeKeys;
  for (int i = 0; i < kCodeKeys; i += Vec::kLanes) {
    const Vec scale = of_scales(scales + i), share = of_shares(scales + kCodeKeys + i);
    for (int j = 0; j < kQueries; ++j) {
      const CodeQuery& q = queries[j];
      // Whole numbers below 2^24: no rounding, fused or not.
      const Vec sum = fma(of_sums(sums[j] + i), set1(2), set1(-static_cast<float>(q.bias)));
      store(scores + j * p.score_stride + i,
            sum * set1(q.sign_gain) * scale + set1(q.axis_gain) * share);
    }
  }
}

/// Groups [begin, end) and those `apart` further on before `limit`: two streams from memory, each
/// with a prefetcher's help, are faster than one.
template <int kQueries>
void scan(const CodeScanParams& p, int first, Range groups, int apart, int limit) {
  CodeQuery queries[kQueries];
  for (int j = 0; j < kQueries; ++j) queries[j] = p.queries[first + j];
  float* scores = p.scores + first * p.score_stride;
  const int64_t ahead = bytes_ahead();
  for (int g = groups.begin; g < groups.end; ++g) {
    score_group<kQueries>(p, queries, scores, g, ahead);
    if (g + apart < limit) score_group<kQueries>(p, queries, scores, g + apart, ahead);
  }
}

}  // namespace

void TANDEM_ISA_FN(code_scan)(const CodeScanParams& p, Range keys) {
  const int begin = keys.begin / kCodeKeys, end = (keys.end + kCodeKeys - 1) / kCodeKeys;
  const int half = (end - begin + 1) / 2, middle = begin + half;
  for (int block = begin; block < middle; block += kBlockGroups) {
    const Range groups{block, least(middle, block + kBlockGroups)};
    int q = 0;
    for (; q + kQueriesAtOnce <= p.n_queries; q += kQueriesAtOnce)
      scan<kQueriesAtOnce>(p, q, groups, half, end);
    const int left = p.n_queries - q;
    if (left == 3) scan<3>(p, q, groups, half, end);
    if (left == 2) scan<2>(p, q, groups, half, end);
    if (left == 1) scan<1>(p, q, groups, half, end);
  }
}

}  // namespace tandem
