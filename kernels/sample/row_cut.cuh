#pragma once
// The exact cut of top-k and top-p over the row of a group: what find_cut of select.h finds.
#include "kernels/sample/row_group.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

struct alignas(16) CutShared {
  static constexpr int kBins = 2048;
  static constexpr int kGathered = 256;

  // A histogram of this block, the best logits first. Measures in two words, because shared memory
  // adds only words at once. Published.
  struct Bins {
    uint32_t low[kBins], high[kBins], n[kBins];
  } bins;
  // Results for the whole row. Published.
  struct Found {
    // The bin: sum of those before it, its own sum and number of logits.
    uint64_t above, inside;
    int bin, n_inside;
    Cut cut;
  } found;
  // The logits of that bin if they are few, in the first block. Published.
  struct Few {
    int n;
    Best at[kGathered];
  } few;
  uint64_t measure[kGathered];

  __device__ void clear() {
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kRowThreads)
      bins.low[b] = bins.high[b] = bins.n[b] = 0;
  }
  __device__ void add(int at, uint64_t x) {
    const auto word = static_cast<uint32_t>(x);
    const uint32_t old = atomicAdd(&bins.low[at], word);
    const uint32_t carried = static_cast<uint32_t>(x >> 32) + (old + word < old ? 1u : 0u);
    if (carried != 0) atomicAdd(&bins.high[at], carried);
    atomicAdd(&bins.n[at], 1u);
  }
};

/// What top-k and top-p leave of a row; all of it at first.
class RowCut {
 public:
  /// spread: distance from the largest logit within which the cuts are expected; only speed
  /// depends on it.
  __device__ RowCut(RowGroup& row, CutShared& shared, float max, float spread)
      : row_(row), shared_(shared), max_(max), bins_per_unit_(CutShared::kBins / spread) {}

  __device__ bool keeps(int i) const { return keeps(row_.logit(i), row_.first() + i); }
  /// The same of any token of the whole row.
  __device__ bool keeps(float logit, int32_t id) const { return cut_.keeps(order_key(logit), id); }

  /// Keeps the smallest prefix of the kept tokens, in the order (logit descending, id ascending),
  /// whose measure(logit)s sum to at least target(sum of all), which is at least 1; all of it if
  /// there is none. A token of measure 0 may be kept or not. Few logits share a bin of equal
  /// distances from the largest and can be compared with each other; otherwise a radix descent over
  /// the digits of their keys divides the bin.
  template <class Target, class Measure>
  __device__ void narrow(Target&& target_of, Measure&& measure) {
    uint64_t target = 0;
    clear();
    row_.each<2>([&](int i) {
      const uint64_t m = keeps(i) ? measure(row_.logit(i)) : 0;
      if (m != 0) shared_.add(bin_of(row_.logit(i)), m);
    });
    if (!choose_bin(0, [&](uint64_t total) { return target = target_of(total); })) return;
    const int bin = found().bin;
    if (found().n_inside <= CutShared::kGathered) {
      cut_among_few(bin, target, measure);
      return;
    }
    uint32_t prefix = 0, mask = 0;  // of the inverted key, whose order is that of the cut
#pragma unroll 1
    for (int shift = 21;; shift = shift == 21 ? 10 : 0) {
      const uint64_t above = found().above;
      clear();
      row_.each<2>([&](int i) {
        const float x = row_.logit(i);
        const uint32_t k = ~order_key(x);
        if ((k & mask) != prefix || bin_of(x) != bin || !keeps(i)) return;
        if (const uint64_t m = measure(x); m != 0)
          shared_.add(static_cast<int>((k & ~mask) >> shift), m);
      });
      choose_bin(above, [&](uint64_t) { return target; });
      prefix |= static_cast<uint32_t>(found().bin) << shift;
      mask |= ~0u << shift;
      if (shift == 0) break;
    }
    cut_among_equal(~prefix, target - found().above, measure(Best{~prefix, 0}.logit()));
  }

 private:
  __device__ const CutShared::Found& found() const { return *row_.own(&shared_.found); }
  __device__ void clear() {
    shared_.clear();
    if (threadIdx.x == 0) row_.own(&shared_.few)->n = 0;
    __syncthreads();
  }
  __device__ int bin_of(float x) const {
    return static_cast<int>(fminf((max_ - x) * bins_per_unit_, CutShared::kBins - 1));
  }

  /// Finds the bin in which the sum over all blocks, from the first bin on and beginning with
  /// `above`, reaches target(sum). False if none does. All threads see the choice.
  template <class Target>
  __device__ bool choose_bin(uint64_t above, Target&& target_of) {
    row_.publish(shared_.bins);
    row_.sync();
    // Each block adds up its share of the bins.
    const int share = CutShared::kBins / row_.parts();
    const int each = share > kRowThreads ? share / kRowThreads : 1;
    const int begin = static_cast<int>(threadIdx.x) * each;
    const int first = row_.rank() * share + begin, n = begin < share ? each : 0;
    const auto sum_of = [&](int b, int* count) {
      uint64_t sum = 0;
#pragma unroll 4
      for (int r = 0; r < row_.parts(); ++r) {
        const CutShared::Bins* theirs = row_.peer(&shared_.bins, r);
        sum += uint64_t{theirs->high[b]} << 32 | theirs->low[b];
        *count += static_cast<int>(theirs->n[b]);
      }
      return sum;
    };
    uint64_t mine = 0;
    int count = 0;
    for (int b = 0; b < n; ++b) mine += sum_of(first + b, &count);
    const RowSum s = row_.sum(mine);
    const uint64_t target = target_of(s.total);
    uint64_t before = above + s.before;
    if (before < target && target - before <= mine) {
      int b = first;
      uint64_t inside = mine;
      if (n > 1)
        for (;; ++b, before += inside) {
          count = 0;
          inside = sum_of(b, &count);
          if (target - before <= inside) break;
        }
      for (int r = 0; r < row_.parts(); ++r) {
        CutShared::Found* theirs = row_.peer(&shared_.found, r);
        theirs->bin = b;
        theirs->above = before;
        theirs->inside = inside;
        theirs->n_inside = count;
      }
    }
    row_.sync();
    return target <= above + s.total;
  }

  /// The cut within a bin: the first block compares all of its logits with each other.
  template <class Measure>
  __device__ void cut_among_few(int bin, uint64_t target, Measure&& measure) {
    CutShared::Few* first = row_.peer(&shared_.few, 0);
    row_.each([&](int i) {
      const float x = row_.logit(i);
      if (bin_of(x) == bin && keeps(i) && measure(x) != 0)
        first->at[atomicAdd(&first->n, 1)] = {order_key(x), row_.first() + i};
    });
    row_.sync();
    if (row_.rank() == 0) {
      const CutShared::Few& few = *row_.own(&shared_.few);
      const int i = static_cast<int>(threadIdx.x), n = few.n;
      Best mine{0, 0};
      if (i < n) {
        mine = few.at[i];
        shared_.measure[i] = measure(mine.logit());
      }
      __syncthreads();
      if (i < n) {
        uint64_t before = found().above;
        for (int j = 0; j < n; ++j)
          if (few.at[j].comes_before(mine)) before += shared_.measure[j];
        if (before < target && target - before <= shared_.measure[i]) {
          for (int r = 0; r < row_.parts(); ++r)
            row_.peer(&shared_.found, r)->cut = {mine.key, mine.id};
        }
      }
    }
    row_.sync();
    cut_ = found().cut;
  }

  /// Keeps the keys above `key`, and of those equal to it, which measure `measure` each, the first
  /// that hold `wanted`.
  __device__ void cut_among_equal(uint32_t key, uint64_t wanted, uint64_t measure) {
    const Cut old = cut_;
    const uint64_t n = (wanted + measure - 1) / measure;
    cut_ = {key, key == old.key ? old.last : 0x7fffffff};
    if (n * measure == found().inside) return;
    const auto is_equal = [&](int i) -> uint64_t {
      const uint32_t k = order_key(row_.logit(i));
      return k == key && old.keeps(k, row_.first() + i);
    };
    uint64_t mine = 0;
    row_.each([&](int i) { mine += is_equal(i); });
    const int last = row_.find_first(mine, is_equal, [&](uint64_t) { return n - 1; });
    // One warp has it; the others' 0 is below.
    cut_.last = static_cast<int32_t>(row_.best({static_cast<uint32_t>(last + 1), 0}).key) - 1;
  }

  RowGroup& row_;
  CutShared& shared_;
  float max_, bins_per_unit_;
  Cut cut_{0, 0x7fffffff};
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
