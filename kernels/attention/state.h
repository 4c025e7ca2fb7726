#pragma once
// Softmax states (m, l, o) of splits: merged in order, kept for another thread, turned into output.
// Included by ISA files only.
#include "base/log2.h"
#include "kernels/attention/block.h"

namespace tandem {
namespace {

/// Adds the state of one split, (m, l, o), to the running one.
inline void merge_state(Block& b) {
  for (int v = 0; v < b.n_vectors; ++v) {
    float *pm = b.scratch.m_run + v * kW, *pl = b.scratch.l_run + v * kW;
    const float* o = b.scratch.o + v * b.o_stride();
    float* run = b.scratch.o_run + v * b.o_stride();
    const Vec m_run = simd::load(pm), m_new = simd::load(b.scratch.m + v * kW);
    const Vec top = max(m_run, m_new), shift = finite_or_zero(top);
    const Vec a = exp2_nonpositive(m_run - shift), c = exp2_nonpositive(m_new - shift);
    simd::store(pm, top);
    simd::store(pl, fma(simd::load(b.scratch.l + v * kW), c, simd::load(pl) * a));
    for (int i = 0; i < b.o_width(); i += kW)
      simd::store(run + i, fma(simd::load(o + i), c, simd::load(run + i) * a));
  }
}

inline void clear_run(Block& b) {
  for (int i = 0; i < b.n_vectors * kW; i += kW) {
    simd::store(b.scratch.m_run + i, simd::set1(kEmpty));
    simd::store(b.scratch.l_run + i, simd::zero());
  }
  memset(b.scratch.o_run, 0, sizeof(float) * static_cast<size_t>(b.n_vectors * b.o_stride()));
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
  const size_t o_floats = static_cast<size_t>(b.few ? b.d : b.d * kW);
  const int lanes = b.few ? 1 : kW;
  for (int v = 0; v < b.n_vectors; ++v) {
    memcpy(to.m + v * lanes, b.scratch.m + v * kW, sizeof(float) * static_cast<size_t>(lanes));
    memcpy(to.l + v * lanes, b.scratch.l + v * kW, sizeof(float) * static_cast<size_t>(lanes));
    memcpy(to.o + static_cast<size_t>(v) * o_floats, b.scratch.o + v * b.o_stride(),
           sizeof(float) * o_floats);
  }
}

inline void load_partial(const Block& b, const Partial& from) {
  const size_t o_floats = static_cast<size_t>(b.few ? b.d : b.d * kW);
  for (int v = 0; v < b.n_vectors; ++v) {
    const auto lanes_of = [&](const float* x) {
      return b.few ? simd::set1(x[v]) : simd::load(x + v * kW);
    };
    simd::store(b.scratch.m + v * kW, lanes_of(from.m));
    simd::store(b.scratch.l + v * kW, lanes_of(from.l));
    memcpy(b.scratch.o + v * b.o_stride(), from.o + static_cast<size_t>(v) * o_floats,
           sizeof(float) * o_floats);
  }
}

/// The output of a query whose channels lie `step` floats apart.
template <class Out>
void write_row(const Block& b, int query, const float* o, int step) {
  Out* out = static_cast<Out*>(b.params->out) + b.head_at(query) * static_cast<size_t>(b.d);
  float line[kW];
  for (int c = 0; c < b.d; c += kW) {
    const int n = b.d - c < kW ? b.d - c : kW;
    for (int i = 0; i < n; ++i) line[i] = o[(c + i) * step];
    simd::store_n(out + c, simd::load_n(line, n), n);
  }
}

inline void finish(Block& b) {
  const int lanes = b.few ? 1 : kW;  // queries of a vector
  for (int v = 0; v < b.n_vectors; ++v) {
    const Vec l = simd::load(b.scratch.l_run + v * kW);
    const Mask some = lt(simd::zero(), l);
    float* o = b.scratch.o_run + v * b.o_stride();
    for (int i = 0; i < b.o_width(); i += kW)
      simd::store(o + i, select(some, simd::load(o + i) / l, simd::zero()) + simd::zero());
    for (int lane = 0; lane < lanes && v * lanes + lane < b.n_queries; ++lane) {
      const int query = v * lanes + lane;
      if (b.params->out_dtype == DType::f32)
        write_row<float>(b, query, o + lane, lanes);
      else
        write_row<bf16>(b, query, o + lane, lanes);
      if (b.params->lse == nullptr) continue;
      const float m = b.scratch.m_run[v * kW + lane], sum = b.scratch.l_run[v * kW + lane];
      b.params->lse[b.head_at(query)] = sum > 0 ? m * kLn2 + logf(sum) : kEmpty;
    }
  }
}

}  // namespace
}  // namespace tandem
