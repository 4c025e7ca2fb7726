#include "kernels/adapter/grouped_products.h"

#include "kernels/channels/channel_steps.h"

// A value is loaded once for a few rows of x, whose sums stand in registers; more rows go over the
// same values again, which are then in the first cache.

namespace tandem {
namespace {

using simd::kW;
using simd::least;
using simd::Vec;

constexpr int kGroupTileRows = 4;

/// The rows of a group.
struct Rows {
  int64_t at[kGroupRows];
  int n = 0;

  Rows(const RowGroups& groups, int group) {
    for (int i = 0; i < kGroupRows; ++i)
      if (const int32_t r = groups.rows[group * kGroupRows + i]; r >= 0) at[n++] = r;
  }
};

/// sums[r] = w . x[r].
template <int kRows, class T>
TANDEM_INLINE void dots_of(float* sums, const T* w, const T* const* x, int in) {
  using S = Step<T>;
  Vec sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = simd::zero();
  int k = 0;
  for (; k + S::kNumbers <= in; k += S::kNumbers) {
    const S a = S::load(w + k);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = a.add(sum[r], S::load(x[r] + k));
  }
  if (const int n = in - k; n > 0) {
    const S a = S::load_n(w + k, n);
    for (int r = 0; r < kRows; ++r) sum[r] = a.add(sum[r], S::load_n(x[r] + k, n));
  }
  for (int r = 0; r < kRows; ++r) sums[r] = simd::reduce_add(sum[r]);
}

template <int kRows, class T>
void dots_of_some(float* sums, const T* w, const T* const* x, int in, int rows) {
  if (rows == kRows) return dots_of<kRows>(sums, w, x, in);
  if constexpr (kRows > 1) dots_of_some<kRows - 1>(sums, w, x, in, rows);
}

template <class T, class Y>
void run_dots(const GroupedDotsParams& p, Range blocks) {
  const int each = (p.most + kDotParts - 1) / kDotParts;
  for (int at = blocks.begin; at < blocks.end; ++at) {
    const int group = at / each, first = at % each * kDotParts;
    if (group >= *p.groups.n) return;
    const AdapterPart& part = p.parts[p.groups.adapter[group] * p.part_stride];
    const Rows rows(p.groups, group);
    for (int j = first; j < least(part.n, first + kDotParts); ++j) {
      const T* const w = static_cast<const T*>(part.values) + int64_t{j} * p.in;
      for (int r = 0; r < rows.n; r += kGroupTileRows) {
        const int n = least(kGroupTileRows, rows.n - r);
        const T* x[kGroupTileRows];
        for (int i = 0; i < n; ++i) x[i] = static_cast<const T*>(p.x) + rows.at[r + i] * p.in;
        float sums[kGroupTileRows];
        dots_of_some<kGroupTileRows>(sums, w, x, p.in, n);
        for (int i = 0; i < n; ++i) {
          Y* const y = static_cast<Y*>(p.y) + rows.at[r + i] * p.y_stride + part.index[j];
          simd::store1(y, p.add ? simd::to_f32(*y) + sums[i] : sums[i]);
        }
      }
    }
  }
}

/// Values that are multiplied before their sums go back to memory.
constexpr int kGradientsTogether = 4;

/// sums[r][c] += sum of j of x[r][j] w[j][c], of n values.
template <class T>
TANDEM_INLINE void add_values(float (*sums)[kSumColumns], const T* const* w,
                              const float (*x)[kGradientsTogether], int rows, int n, int columns) {
  for (int c = 0; c < columns; c += kW) {
    const int lanes = least(kW, columns - c);
    Vec v[kGradientsTogether];
    for (int j = 0; j < n; ++j)
      v[j] = lanes == kW ? simd::load(w[j] + c) : simd::load_n(w[j] + c, lanes);
    for (int r = 0; r < rows; ++r) {
      Vec sum = simd::load(sums[r] + c);  // a row has whole vectors
      for (int j = 0; j < n; ++j) sum = fma(simd::set1(x[r][j]), v[j], sum);
      simd::store(sums[r] + c, sum);
    }
  }
}

/// Columns [begin, end) of a target.
template <class T, class Y>
void sum_columns(const GroupedSumsParams& p, const Rows& rows, const AdapterPart& part,
                 const GroupedTarget& target, int begin, int end) {
  alignas(64) float sums[kGroupRows][kSumColumns];
  for (int r = 0; r < rows.n; ++r)
    for (int c = 0; c < kSumColumns; c += kW) simd::store(sums[r] + c, simd::zero());
  for (int j = 0; j < part.n; j += kGradientsTogether) {
    const int n = least(kGradientsTogether, part.n - j);
    const T* w[kGradientsTogether];
    float x[kGroupRows][kGradientsTogether];
    for (int i = 0; i < n; ++i) {
      w[i] = static_cast<const T*>(part.values) + int64_t{j + i} * target.width + begin;
      for (int r = 0; r < rows.n; ++r)
        x[r][i] =
            simd::to_f32(static_cast<const T*>(p.x)[rows.at[r] * p.x_stride + part.index[j + i]]);
    }
    if (n == kGradientsTogether)
      add_values<T>(sums, w, x, rows.n, kGradientsTogether, end - begin);
    else
      add_values<T>(sums, w, x, rows.n, n, end - begin);
  }
  for (int r = 0; r < rows.n; ++r) {
    Y* const y = static_cast<Y*>(p.y) + rows.at[r] * p.y_stride + target.first + begin;
    for (int c = 0; c < end - begin; c += kW) {
      const int lanes = least(kW, end - begin - c);
      simd::store_n(y + c, simd::load_n(y + c, lanes) + simd::load(sums[r] + c), lanes);
    }
  }
}

template <class T, class Y>
void run_sums(const GroupedSumsParams& p, Range blocks) {
  const int each = sum_blocks(p);
  for (int at = blocks.begin; at < blocks.end; ++at) {
    const int group = at / each;
    if (group >= *p.groups.n) return;
    int block = at % each, t = 0;
    for (;; ++t) {
      const int n = (p.targets[t].width + kSumColumns - 1) / kSumColumns;
      if (block < n) break;
      block -= n;
    }
    const GroupedTarget& target = p.targets[t];
    const AdapterPart& part = p.parts[p.groups.adapter[group] * p.part_stride + target.part];
    const int begin = block * kSumColumns, end = least(target.width, begin + kSumColumns);
    if (part.n > 0) sum_columns<T, Y>(p, Rows(p.groups, group), part, target, begin, end);
  }
}

}  // namespace

void TANDEM_ISA_FN(grouped_dots)(const GroupedDotsParams& p, Range blocks) {
  if (p.type == DType::f32) return run_dots<float, float>(p, blocks);
  p.y_type == DType::f32 ? run_dots<bf16, float>(p, blocks) : run_dots<bf16, bf16>(p, blocks);
}

void TANDEM_ISA_FN(grouped_sums)(const GroupedSumsParams& p, Range blocks) {
  if (p.type == DType::f32) return run_sums<float, float>(p, blocks);
  p.y_type == DType::f32 ? run_sums<bf16, float>(p, blocks) : run_sums<bf16, bf16>(p, blocks);
}

}  // namespace tandem
