#include <cmath>
#include <vector>

#include "kernels/attention/attention_backward.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

template <class T>
void backward(const AttentionBackwardParams& p, int seq, int kv_head) {
  const int64_t d = p.head_dim, hq = p.n_heads, hkv = p.n_kv_heads, group = hq / hkv;
  const int64_t first = p.row_begin[seq], n = p.row_begin[seq + 1] - first;
  const int32_t* pages = p.page_table + int64_t{p.slot[seq]} * p.max_pages;
  const auto slot = [&](const void* pool, int64_t t) {
    return static_cast<const T*>(pool) +
           ((pages[t / kPageTokens] * hkv + kv_head) * kPageTokens + t % kPageTokens) * d;
  };
  const auto dot = [&](const T* a, const T* b) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) sum += double{to_float(a[c])} * to_float(b[c]);
    return sum;
  };
  std::vector<double> dk(static_cast<size_t>(n * d)), dv(dk.size()), dq(static_cast<size_t>(d));
  T* out = static_cast<T*>(p.dqkv);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = (first + i) * hq + head;
      const T* q = static_cast<const T*>(p.q) + at * d;
      const T* dout = static_cast<const T*>(p.dout) + at * d;
      const double of_row = dot(dout, static_cast<const T*>(p.out) + at * d);
      dq.assign(dq.size(), 0.0);
      for (int64_t j = p.window == 0 ? 0 : std::max<int64_t>(0, i - p.window + 1); j <= i; ++j) {
        const T *k = slot(p.k_pool, j), *v = slot(p.v_pool, j);
        const double share = std::exp(p.scale * dot(q, k) - p.lse[at]);
        const double ds = share * (dot(dout, v) - of_row) * p.scale;
        for (int64_t c = 0; c < d; ++c) {
          dv[static_cast<size_t>(j * d + c)] += share * to_float(dout[c]);
          dk[static_cast<size_t>(j * d + c)] += ds * to_float(q[c]);
          dq[static_cast<size_t>(c)] += ds * to_float(k[c]);
        }
      }
      for (int64_t c = 0; c < d; ++c)
        out[((first + i) * (hq + 2 * hkv) + head) * d + c] =
            from_double<T>(dq[static_cast<size_t>(c)]);
    }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < d; ++c) {
      T* of_k = out + ((first + i) * (hq + 2 * hkv) + hq + kv_head) * d + c;
      *of_k = from_double<T>(dk[static_cast<size_t>(i * d + c)]);
      of_k[hkv * d] = from_double<T>(dv[static_cast<size_t>(i * d + c)]);
    }
}

}  // namespace

void attention_backward_ref(const AttentionBackwardParams& p, Range tasks) {
  for (int task = tasks.begin; task < tasks.end; ++task) {
    const int seq = task / p.n_kv_heads, kv_head = task % p.n_kv_heads;
    p.act == DType::bf16 ? backward<bf16>(p, seq, kv_head) : backward<float>(p, seq, kv_head);
  }
}

}  // namespace tandem
