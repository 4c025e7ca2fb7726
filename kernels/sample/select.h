#pragma once
// Exact selection of the largest elements, for the bodies of this folder. Integer work only.
#include "kernels/sample/workspace.h"

namespace tandem {
namespace {

// Floats as unsigned integers of the same order. -0 counts as +0.
constexpr uint32_t kKeyMinusInf = 0x007fffffu, kKeyPlusInf = 0xff800000u;

constexpr uint32_t order_key(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x + 0.0f);
  return u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
}

constexpr int kFewKeys = 1024;

/// Keeps keys above `key`, and of those equal to it the ones up to index `last`.
struct Cut {
  uint32_t key;
  int last;
  constexpr bool keeps(uint32_t k, int i) const { return k > key || (k == key && i <= last); }
};

/// The smallest prefix, in the order (key descending, index ascending), whose measures sum to at
/// least `target`; everything if the total is less. Radix descent over the key's digits: exact and
/// linear for any distribution. Four histograms take turns, since logits crowd into few buckets and
/// one counter's updates would wait for each other; of few keys one, which takes less to clear.
template <class Key, class Measure>
Cut find_cut(int n, uint64_t target, Key key, Measure measure, uint64_t* histogram) {
  constexpr int kShifts[3] = {21, 10, 0};
  const int n_histograms = n > kFewKeys ? 4 : 1;
  uint32_t prefix = 0, mask = 0;
  uint64_t above = 0;  // measure of all keys larger than any with this prefix
  for (const int shift : kShifts) {
    memset(histogram, 0, kHistogramBytes / 4 * static_cast<size_t>(n_histograms));
    for (int i = 0; i < n; ++i) {
      const uint32_t k = key(i);
      if ((k & mask) == prefix)
        histogram[(i & (n_histograms - 1)) * kHistogramBins + ((k & ~mask) >> shift)] += measure(i);
    }
    uint32_t bin = shift == 0 ? 1023 : kHistogramBins - 1;
    for (;; --bin) {
      const uint64_t* h = histogram + bin;
      uint64_t here = h[0];
      if (n_histograms > 1)
        here += h[kHistogramBins] + h[2 * kHistogramBins] + h[3 * kHistogramBins];
      if (above + here >= target || bin == 0) break;
      above += here;
    }
    prefix |= bin << shift;
    mask |= (shift == 21 ? 0x7ffu : shift == 10 ? 0x7ffu : 0x3ffu) << shift;
  }
  Cut cut{prefix, n - 1};
  for (int i = 0; i < n; ++i)
    if (key(i) == prefix && (above += measure(i)) >= target) {
      cut.last = i;
      break;
    }
  return cut;
}

struct Extremes {
  uint32_t max;
  bool is_valid;
};

/// Largest key of each block of kScanBlock logits and of the row.
inline Extremes scan(const float* x, int n, uint32_t* block_max) {
  uint32_t low = ~0u, high = 0;
  for (int begin = 0; begin < n; begin += kScanBlock) {
    const int end = n - begin < kScanBlock ? n : begin + kScanBlock;
    uint32_t block_high = 0;
    for (int i = begin; i < end; ++i) {
      const uint32_t k = order_key(x[i]);
      block_high = k > block_high ? k : block_high;
      low = k < low ? k : low;
    }
    block_max[begin / kScanBlock] = block_high;
    high = block_high > high ? block_high : high;
  }
  return {high, low >= kKeyMinusInf && high < kKeyPlusInf && high > kKeyMinusInf};
}

/// The largest logit; NaN for a row without meaning.
inline float row_max(const float* x, int n) {
  float high[kScanBlock];
  uint32_t nan[kScanBlock];
  for (int j = 0; j < kScanBlock; ++j) high[j] = -__builtin_inff(), nan[j] = 0;
  const auto take = [&](const float* block, int end) {
    for (int j = 0; j < end; ++j) {
      high[j] = block[j] > high[j] ? block[j] : high[j];
      nan[j] |= static_cast<uint32_t>(block[j] != block[j]);
    }
  };
  int begin = 0;
  for (; begin + kScanBlock <= n; begin += kScanBlock) take(x + begin, kScanBlock);
  take(x + begin, n - begin);
  for (int j = 1; j < kScanBlock; ++j) {
    high[0] = high[j] > high[0] ? high[j] : high[0];
    nan[0] |= nan[j];
  }
  const bool is_finite = high[0] < __builtin_inff() && high[0] > -__builtin_inff();
  return is_finite && nan[0] == 0 ? high[0] : __builtin_nanf("");
}

inline int first_with_key(const float* x, uint32_t key, const uint32_t* block_max) {
  int block = 0;
  while (block_max[block] != key) ++block;
  int i = block * kScanBlock;
  while (order_key(x[i]) != key) ++i;
  return i;
}

/// The k largest, in ascending order of id, into w.top and w.id; returns their number, k (k <= n).
/// The k-th largest block maximum bounds the k-th largest logit from below, so that blocks whose
/// maximum is smaller need no look: at small k nearly all.
inline int keep_top(const float* x, int n, int k, const Workspace& w) {
  const auto one = [](int) { return uint64_t{1}; };
  const int n_blocks = (n + kScanBlock - 1) / kScanBlock;
  const auto block_key = [&](int b) { return w.block_max[b]; };
  const auto target = static_cast<uint64_t>(k);
  const uint32_t bound =
      k <= n_blocks ? find_cut(n_blocks, target, block_key, one, w.histogram).key : 0;
  int found = 0;
  for (int b = 0; b < n_blocks; ++b) {
    if (w.block_max[b] < bound) continue;
    const int begin = b * kScanBlock, end = n - begin < kScanBlock ? n : begin + kScanBlock;
    for (int i = begin; i < end; ++i) {
      w.top[found] = x[i];
      w.id[found] = i;
      found += order_key(x[i]) >= bound;
    }
  }
  const auto top_key = [&](int i) { return order_key(w.top[i]); };
  const Cut cut = find_cut(found, target, top_key, one, w.histogram);
  int kept = 0;
  for (int i = 0; i < found; ++i) {
    const bool keep = cut.keeps(top_key(i), i);
    w.top[kept] = w.top[i];
    w.id[kept] = w.id[i];
    kept += keep;
  }
  return kept;
}

}  // namespace
}  // namespace tandem
