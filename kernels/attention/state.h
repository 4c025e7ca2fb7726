#pragma once
// Softmax states (m, l, o) of splits: merged in order, kept for another thread, turned into output.
// Included by ISA files only.
#include "kernels/attention/block.h"

namespace tandem {
namespace {

/// Adds the state (m, l, o) of one split to the running one. `stride` floats lie between o's
/// vectors.
inline void merge_state(Block& b, const float* m, const float* l, const float* o, int stride) {
  const int run_stride = padded_dim(b.d) * kW;
  for (int v = 0; v < b.n_vectors; ++v) {
    float *pm = b.scratch.m_run + v * kW, *pl = b.scratch.l_run + v * kW;
    float* run = b.scratch.o_run + v * run_stride;
    const Vec m_run = simd::load(pm), m_new = simd::load(m + v * kW), top = max(m_run, m_new);
    const Vec shift = finite_or_zero(top);
    const Vec a = exp2(m_run - shift), c = exp2(m_new - shift);
    simd::store(pm, top);
    simd::store(pl, fma(simd::load(l + v * kW), c, simd::load(pl) * a));
    for (int i = 0; i < b.d * kW; i += kW)
      simd::store(run + i, fma(simd::load(o + v * stride + i), c, simd::load(run + i) * a));
  }
}

inline void clear_run(Block& b) {
  for (int i = 0; i < b.n_vectors * kW; i += kW) {
    simd::store(b.scratch.m_run + i, simd::set1(kEmpty));
    simd::store(b.scratch.l_run + i, simd::zero());
  }
  memset(b.scratch.o_run, 0,
         sizeof(float) * static_cast<size_t>(b.n_vectors * kW * padded_dim(b.d)));
}

/// A split's state in AttentionPlan::partials: m, l, then o without padding.
struct Partial {
  float *m, *l, *o;
};
inline Partial partial_at(const Block& b, const AttentionPlan& plan, const AttentionTask& t,
                          int i) {
  const int lanes = (t.n_queries + 15) / 16 * 16;  // as attention_plan counts
  float* at = plan.partials + t.partial + static_cast<int64_t>(i) * lanes * (b.d + 2);
  return {at, at + lanes, at + 2 * lanes};
}

inline void store_partial(const Block& b, const Partial& to) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(b.n_vectors * kW);
  memcpy(to.m, b.scratch.m, bytes);
  memcpy(to.l, b.scratch.l, bytes);
  for (int v = 0; v < b.n_vectors; ++v)
    memcpy(to.o + v * b.d * kW, b.scratch.o + v * padded_dim(b.d) * kW,
           sizeof(float) * static_cast<size_t>(b.d * kW));
}

template <class Out>
void write_rows(const Block& b, int v) {
  const float* o = b.scratch.o_run + v * padded_dim(b.d) * kW;
  for (int lane = 0; lane < kW && v * kW + lane < b.n_queries; ++lane) {
    Out* out =
        static_cast<Out*>(b.params->out) + b.head_at(v * kW + lane) * static_cast<size_t>(b.d);
    float line[kW];
    for (int c = 0; c < b.d; c += kW) {
      const int n = b.d - c < kW ? b.d - c : kW;
      for (int i = 0; i < n; ++i) line[i] = o[(c + i) * kW + lane];
      simd::store_n(out + c, simd::load_n(line, n), n);
    }
  }
}

inline void finish(Block& b) {
  for (int v = 0; v < b.n_vectors; ++v) {
    const Vec l = simd::load(b.scratch.l_run + v * kW);
    const Mask some = lt(simd::zero(), l);
    float* o = b.scratch.o_run + v * padded_dim(b.d) * kW;
    for (int i = 0; i < b.d * kW; i += kW)
      simd::store(o + i, select(some, simd::load(o + i) / l, simd::zero()) + simd::zero());
    if (b.params->out_dtype == DType::f32)
      write_rows<float>(b, v);
    else
      write_rows<bf16>(b, v);
    if (b.params->lse == nullptr) continue;
    for (int lane = 0; lane < kW && v * kW + lane < b.n_queries; ++lane) {
      const float m = b.scratch.m_run[v * kW + lane], sum = b.scratch.l_run[v * kW + lane];
      b.params->lse[b.head_at(v * kW + lane)] = sum > 0 ? m * 0.693147181f + logf(sum) : kEmpty;
    }
  }
}

}  // namespace
}  // namespace tandem
