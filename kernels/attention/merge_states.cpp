#include <cmath>
#include <limits>

#include "base/convert.h"
#include "kernels/attention/attention.h"

namespace tandem {
namespace {

void set(float& to, float x) { to = x; }
void set(bf16& to, float x) { to = to_bf16(x); }

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

/// log sum_p exp(lse_p), with the maximum taken out; -inf when every part is empty.
double joint_lse(const MergeStatesParams& p, size_t at) {
  double m = kEmpty, sum = 0;
  for (int i = 0; i < p.n_parts; ++i) m = std::max<double>(m, p.part_lse[i][at]);
  if (m == kEmpty) return m;
  for (int i = 0; i < p.n_parts; ++i) sum += std::exp(p.part_lse[i][at] - m);
  return m + std::log(sum);
}

template <class Out, class Part>
void merge_one(const MergeStatesParams& p, size_t at) {
  constexpr int kBlock = 64;  // sums kept in registers or L1
  const double lse = joint_lse(p, at);
  const size_t row = at * static_cast<size_t>(p.head_dim);
  Out* out = static_cast<Out*>(p.out) + row;
  for (int begin = 0; begin < p.head_dim; begin += kBlock) {
    const int n = std::min(kBlock, p.head_dim - begin);
    float sum[kBlock] = {};
    for (int i = 0; i < p.n_parts; ++i) {
      if (p.part_lse[i][at] == kEmpty) continue;
      const auto w = static_cast<float>(std::exp(p.part_lse[i][at] - lse));
      const Part* o = static_cast<const Part*>(p.o[i]) + row + begin;
      for (int c = 0; c < n; ++c) sum[c] += w * to_float(o[c]);
    }
    for (int c = 0; c < n; ++c) set(out[begin + c], sum[c]);
  }
  if (p.lse != nullptr) p.lse[at] = static_cast<float>(lse);
}

template <class Out, class Part>
void merge_rows(const MergeStatesParams& p, Range rows) {
  const auto heads = static_cast<size_t>(p.n_heads);
  for (size_t at = static_cast<size_t>(rows.begin) * heads;
       at < static_cast<size_t>(rows.end) * heads; ++at)
    merge_one<Out, Part>(p, at);
}

}  // namespace

void merge_states(const MergeStatesParams& p, Range rows) {
  const bool part32 = p.part_dtype == DType::f32, out32 = p.out_dtype == DType::f32;
  if (part32 && out32) return merge_rows<float, float>(p, rows);
  if (part32) return merge_rows<bf16, float>(p, rows);
  if (out32) return merge_rows<float, bf16>(p, rows);
  merge_rows<bf16, bf16>(p, rows);
}

}  // namespace tandem
