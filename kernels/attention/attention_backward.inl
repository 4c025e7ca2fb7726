#include "kernels/attention/attention_backward.h"

#include "kernels/attention/attention_backward_scratch.h"
#include "kernels/attention/small_product.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Where the parts of one thread's scratch begin.
struct Work {
  float *dq, *of_row;                        // of the document, [queries, width] and [queries]
  float *k, *k_turned, *v_turned, *dk, *dv;  // of a page of keys
  float *q, *dout, *shares, *ds;             // of a block of queries

  Work(void* scratch, const BackwardScratch& s) {
    float* at = static_cast<float*>(scratch);
    const auto take = [&](int64_t n) {
      float* mine = at;
      at += n;
      return mine;
    };
    constexpr int64_t kPage = kPageTokens, kBlock = kBackwardQueries;
    dq = take(s.queries * s.width);
    of_row = take(s.padded_queries());
    k = take(kPage * s.width);
    k_turned = take(s.width * kPage);
    v_turned = take(s.width * kPage);
    dk = take(kPage * s.width);
    dv = take(kPage * s.width);
    q = take(kBlock * s.width);
    dout = take(kBlock * s.width);
    shares = take(kBlock * kPage);
    ds = take(kBlock * kPage);
  }
};

/// One sequence and KV head. Query i is row i / group of head i % group of the KV head's.
template <class T>
struct Document {
  const AttentionBackwardParams& p;
  int seq, kv_head, group, d, n_rows;
  int64_t first_row, width;
  Work work;

  /// Index of a query's head vector in q, out and dout.
  int64_t head_at(int query) const {
    return (first_row + query / group) * p.n_heads + kv_head * group + query % group;
  }
  T* dqkv_at(int row, int64_t head) const {
    return static_cast<T*>(p.dqkv) +
           ((first_row + row) * (p.n_heads + 2 * p.n_kv_heads) + head) * d;
  }
  const T* page_at(const void* pool, int page) const {
    const int64_t id = p.page_table[static_cast<int64_t>(p.slot[seq]) * p.max_pages + page];
    return static_cast<const T*>(pool) + (id * p.n_kv_heads + kv_head) * kPageTokens * d;
  }
};

/// Widens d numbers, and zeros up to `width`.
template <class T>
TANDEM_INLINE void widen(float* out, const T* in, int d, int64_t width) {
  for (int c = 0; c < width; c += Vec::kLanes) {
    const int n = d - c < Vec::kLanes ? (d > c ? d - c : 0) : Vec::kLanes;
    store(out + c, load_n(in + c, n));
  }
}

template <class T>
TANDEM_INLINE void narrow(T* out, const float* in, int d) {
  for (int c = 0; c < d; c += Vec::kLanes) {
    const int n = d - c < Vec::kLanes ? d - c : Vec::kLanes;
    store_n(out + c, load_n(in + c, n), n);
  }
}

/// turned[c][t] = page[t][c]; 0 for tokens that were never written, which may hold anything.
template <class T>
void turn(float* turned, const T* page, int n_tokens, int d) {
  for (int c = 0; c < d; ++c)
    for (int t = 0; t < kPageTokens; ++t)
      turned[c * kPageTokens + t] = t < n_tokens ? to_f32(page[t * d + c]) : 0.0f;
}

TANDEM_INLINE void clear(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0.0f;
}

/// dout . out of every query.
template <class T>
void sums_of_rows(const Document<T>& doc) {
  for (int i = 0; i < doc.n_rows * doc.group; ++i) {
    const T* dout = static_cast<const T*>(doc.p.dout) + doc.head_at(i) * doc.d;
    const T* out = static_cast<const T*>(doc.p.out) + doc.head_at(i) * doc.d;
    Vec sum = zero();
    for (int c = 0; c < doc.d; c += Vec::kLanes) {
      const int n = doc.d - c < Vec::kLanes ? doc.d - c : Vec::kLanes;
      sum = fma(load_n(dout + c, n), load_n(out + c, n), sum);
    }
    doc.work.of_row[i] = reduce_add(sum);
  }
}

/// From scores and dout . v of a query and a page of keys to its shares and the scores' gradients.
TANDEM_INLINE void shares_of(float* scores, float* ds, float scale, float lse, float of_row, int lo,
                             int hi) {
  for (int t = 0; t < kPageTokens; t += Vec::kLanes) {
    const Vec share = exp(fma(load(scores + t), set1(scale), set1(-lse)));
    store(ds + t, share * (load(ds + t) - set1(of_row)) * set1(scale));
    store(scores + t, share);
  }
  for (int t = 0; t < lo; ++t) scores[t] = ds[t] = 0.0f;
  for (int t = hi; t < kPageTokens; ++t) scores[t] = ds[t] = 0.0f;
}

/// Queries [begin, begin + n) against the page of keys that the work holds.
template <class T>
void block_backward(const Document<T>& doc, int begin, int n, int page) {
  const AttentionBackwardParams& p = doc.p;
  const Work& w = doc.work;
  const int64_t width = doc.width;
  for (int i = 0; i < n; ++i) {
    const int64_t at = doc.head_at(begin + i) * doc.d;
    widen(w.q + i * width, static_cast<const T*>(p.q) + at, doc.d, width);
    widen(w.dout + i * width, static_cast<const T*>(p.dout) + at, doc.d, width);
  }
  clear(w.shares, n * kPageTokens);
  clear(w.ds, n * kPageTokens);
  add_product({.c = w.shares,
               .ldc = kPageTokens,
               .a = w.q,
               .a_row = width,
               .a_col = 1,
               .b = w.k_turned,
               .ldb = kPageTokens,
               .m = n,
               .n = kPageTokens,
               .k = doc.d});
  add_product({.c = w.ds,
               .ldc = kPageTokens,
               .a = w.dout,
               .a_row = width,
               .a_col = 1,
               .b = w.v_turned,
               .ldb = kPageTokens,
               .m = n,
               .n = kPageTokens,
               .k = doc.d});
  const int first = page * kPageTokens;
  for (int i = 0; i < n; ++i) {
    const int row = (begin + i) / doc.group;
    const int lo = p.window == 0 || row < p.window ? 0 : row - p.window + 1;
    shares_of(w.shares + i * kPageTokens, w.ds + i * kPageTokens, p.scale,
              p.lse[doc.head_at(begin + i)], w.of_row[begin + i], lo > first ? lo - first : 0,
              row + 1 > first ? row + 1 - first : 0);
  }
  const int columns = static_cast<int>(width);
  add_product({.c = w.dv,
               .ldc = width,
               .a = w.shares,
               .a_row = 1,
               .a_col = kPageTokens,
               .b = w.dout,
               .ldb = width,
               .m = kPageTokens,
               .n = columns,
               .k = n});
  add_product({.c = w.dk,
               .ldc = width,
               .a = w.ds,
               .a_row = 1,
               .a_col = kPageTokens,
               .b = w.q,
               .ldb = width,
               .m = kPageTokens,
               .n = columns,
               .k = n});
  add_product({.c = w.dq + begin * width,
               .ldc = width,
               .a = w.ds,
               .a_row = kPageTokens,
               .a_col = 1,
               .b = w.k,
               .ldb = width,
               .m = n,
               .n = columns,
               .k = kPageTokens});
}

template <class T>
void page_backward(const Document<T>& doc, int page) {
  const Work& w = doc.work;
  const int first = page * kPageTokens;
  const int n_tokens = doc.n_rows - first < kPageTokens ? doc.n_rows - first : kPageTokens;
  const T *k = doc.page_at(doc.p.k_pool, page), *v = doc.page_at(doc.p.v_pool, page);
  turn(w.k_turned, k, n_tokens, doc.d);
  turn(w.v_turned, v, n_tokens, doc.d);
  for (int t = 0; t < kPageTokens; ++t)
    widen(w.k + t * doc.width, k + t * doc.d, t < n_tokens ? doc.d : 0, doc.width);
  clear(w.dk, kPageTokens * doc.width);
  clear(w.dv, kPageTokens * doc.width);
  // Rows from the page's first token on see it, up to where the window of its last has passed.
  const int64_t last = static_cast<int64_t>(first) + n_tokens - 1 + doc.p.window;
  const int end = doc.p.window == 0 || last > doc.n_rows ? doc.n_rows : static_cast<int>(last);
  for (int i = first * doc.group; i < end * doc.group; i += kBackwardQueries) {
    const int left = end * doc.group - i;
    block_backward(doc, i, left < kBackwardQueries ? left : kBackwardQueries, page);
  }
  for (int t = 0; t < n_tokens; ++t) {
    T* of_k = doc.dqkv_at(first + t, doc.p.n_heads + doc.kv_head);
    narrow(of_k, w.dk + t * doc.width, doc.d);
    narrow(of_k + static_cast<int64_t>(doc.p.n_kv_heads) * doc.d, w.dv + t * doc.width, doc.d);
  }
}

template <class T>
void run_task(const AttentionBackwardParams& p, int task, void* scratch) {
  const int seq = task / p.n_kv_heads, group = p.n_heads / p.n_kv_heads;
  const int n_rows = p.row_begin[seq + 1] - p.row_begin[seq];
  const BackwardScratch sizes(n_rows, group, p.head_dim);
  const Document<T> doc{.p = p,
                        .seq = seq,
                        .kv_head = task % p.n_kv_heads,
                        .group = group,
                        .d = p.head_dim,
                        .n_rows = n_rows,
                        .first_row = p.row_begin[seq],
                        .width = sizes.width,
                        .work = Work(scratch, sizes)};
  clear(doc.work.dq, sizes.queries * sizes.width);
  sums_of_rows(doc);
  for (int page = 0; page * kPageTokens < n_rows; ++page) page_backward(doc, page);
  for (int i = 0; i < n_rows * group; ++i)
    narrow(doc.dqkv_at(i / group, doc.kv_head * group + i % group), doc.work.dq + i * doc.width,
           doc.d);
}

}  // namespace

void TANDEM_ISA_FN(attention_backward)(const AttentionBackwardParams& p, Range tasks,
                                       void* scratch) {
  for (int task = tasks.begin; task < tasks.end; ++task)
    p.act == DType::bf16 ? run_task<bf16>(p, task, scratch) : run_task<float>(p, task, scratch);
}

}  // namespace tandem
