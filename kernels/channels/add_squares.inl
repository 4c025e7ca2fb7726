#include "kernels/channels/add_squares.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr float kLeastSum = 0x1p-126f;

float inverse(float sum) { return sum >= kLeastSum ? 1 / sum : 0; }

/// What a row's squares are multiplied by.
float scale_of(const AddSquaresParams& p, int64_t r) {
  if (p.scale == nullptr) return 1;
  const float scale = p.scale[r - p.first_row];
  return p.sums ? inverse(scale) : scale;
}

template <class T>
void scales(const SquareScalesParams& p, Range rows) {
  constexpr int kChains = 4;  // sums that do not wait for each other
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(p.x) + r * p.row_stride;
    Vec sums[kChains] = {zero(), zero(), zero(), zero()};
    int j = 0;
    for (; j + kChains * Vec::kLanes <= p.n_channels; j += kChains * Vec::kLanes)
      for (int c = 0; c < kChains; ++c) {
        const Vec v = load(x + j + c * Vec::kLanes);
        sums[c] = fma(v, v, sums[c]);
      }
    for (; j < p.n_channels; j += Vec::kLanes) {
      const int left = p.n_channels - j;
      const Vec v = load_n(x + j, left < Vec::kLanes ? left : Vec::kLanes);
      sums[0] = fma(v, v, sums[0]);
    }
    const float sum = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
    p.scale[r] = p.sums ? sum : inverse(sum);
  }
}

/// Row by row over channels whose sums stay in the first-level cache.
template <class T>
void add(const AddSquaresParams& p, Range channels) {
  for (int b = 0; b < p.n_seqs; ++b) {
    const int begin = p.row_begin[b], end = p.row_begin[b + 1];
    const int first = begin > p.first_row ? begin : p.first_row;
    const int last = end < p.last_row ? end : p.last_row;
    if (first >= last) continue;
    float* const sums = p.to.sums + p.slot[b] * p.to.slot_stride;
    float* const rows = p.to.rows + p.slot[b] * p.to.rows_stride;
    float weight = 1;
    if (p.blend > 0) {
      weight = p.blend * (*rows / static_cast<float>(end - begin));
      for (int j = channels.begin; first == begin && j < channels.end; ++j) sums[j] *= 1 - p.blend;
    } else if (channels.begin == 0) {
      *rows += static_cast<float>(last - first);  // which no other range reads now
    }
    for (int64_t r = first; r < last; ++r) {
      const T* x = static_cast<const T*>(p.x) + r * p.row_stride;
      const Vec scale = set1(scale_of(p, r) * weight);
      int j = channels.begin;
      for (; j + Vec::kLanes <= channels.end; j += Vec::kLanes) {
        const Vec v = load(x + j);
        store(sums + j, fma(v * v, scale, load(sums + j)));
      }
      if (const int n = channels.end - j; n > 0) {
        const Vec v = load_n(x + j, n);
        store_n(sums + j, fma(v * v, scale, load_n(sums + j, n)), n);
      }
    }
  }
}

}  // namespace

void TANDEM_ISA_FN(square_scales)(const SquareScalesParams& p, Range rows) {
  p.x_type == DType::bf16 ? scales<bf16>(p, rows) : scales<float>(p, rows);
}

void TANDEM_ISA_FN(add_squares)(const AddSquaresParams& p, Range channels) {
  p.x_type == DType::bf16 ? add<bf16>(p, channels) : add<float>(p, channels);
}

}  // namespace tandem
