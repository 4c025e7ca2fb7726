#include "kernels/loss/cross_entropy.h"

#include <math.h>

#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

float row_max(const float* z, int n) {
  Vec top = set1(-kInf);
  int i = 0;
  for (; i + Vec::kLanes <= n; i += Vec::kLanes) top = max(top, load(z + i));
  float most = reduce_max(top);
  for (; i < n; ++i) most = z[i] > most ? z[i] : most;
  return most;
}

float sum_of_exp(const float* z, float top, int n) {
  Vec sum[2] = {zero(), zero()};
  int i = 0;
  for (; i + 2 * Vec::kLanes <= n; i += 2 * Vec::kLanes) {
    sum[0] = sum[0] + exp(load(z + i) - set1(top));
    sum[1] = sum[1] + exp(load(z + i + Vec::kLanes) - set1(top));
  }
  for (; i < n; i += Vec::kLanes) {
    const int left = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    sum[0] = sum[0] + select(first_lanes(left), exp(load_n(z + i, left) - set1(top)), zero());
  }
  return reduce_add(sum[0] + sum[1]);
}

template <class T>
void write_gradient(T* out, const float* z, int target, float at_target, const Vec& top,
                    const Vec& scale, int n) {
  for (int i = 0; i < n; i += Vec::kLanes) {
    const int left = n - i < Vec::kLanes ? n - i : Vec::kLanes;
    store_n(out + i, exp(load_n(z + i, left) - top) * scale, left);
  }
  store1(out + target, at_target);
}

template <class T>
void rows_of(const CrossEntropyParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* z = p.logits + r * p.vocab;
    T* out = p.dlogits == nullptr ? nullptr : static_cast<T*>(p.dlogits) + r * p.vocab;
    const int32_t target = p.targets[r];
    if (target < 0) {
      p.loss[r] = 0;
      for (int i = 0; out != nullptr && i < p.vocab; ++i) out[i] = T{};
      continue;
    }
    const float top = row_max(z, p.vocab), sum = sum_of_exp(z, top, p.vocab);
    // Read before the gradient may be written over it.
    const float of_target = z[target] - top;
    p.loss[r] = ::logf(sum) - of_target;
    if (out == nullptr) continue;
    const float share = reduce_max(exp(set1(of_target))) / sum;
    write_gradient(out, z, target, (share - 1.0f) * p.scale, set1(top), set1(p.scale / sum),
                   p.vocab);
  }
}

}  // namespace

void TANDEM_ISA_FN(cross_entropy)(const CrossEntropyParams& p, Range rows) {
  p.act == DType::bf16 ? rows_of<bf16>(p, rows) : rows_of<float>(p, rows);
}

}  // namespace tandem
