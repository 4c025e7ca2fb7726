#include <math.h>

#include "kernels/sample/select.h"

namespace tandem {
namespace {

struct Entry {
  uint32_t key;
  int32_t id;
};

/// Whether a comes after b: the smaller logit, or at equal logits the higher id.
inline bool is_after(Entry a, Entry b) { return a.key != b.key ? a.key < b.key : a.id > b.id; }

inline void sift_down(Entry* heap, int root, int n) {
  for (int child; (child = 2 * root + 1) < n; root = child) {
    if (child + 1 < n && is_after(heap[child + 1], heap[child])) ++child;
    if (!is_after(heap[child], heap[root])) return;
    const Entry moved = heap[root];
    heap[root] = heap[child];
    heap[child] = moved;
  }
}

/// Heapsort, best first: no allocation, no recursion, n log n for any n.
inline void sort(Entry* entries, int n) {
  for (int i = n / 2 - 1; i >= 0; --i) sift_down(entries, i, n);
  for (int left = n - 1; left > 0; --left) {
    const Entry last = entries[0];
    entries[0] = entries[left];
    entries[left] = last;
    sift_down(entries, 0, left);
  }
}

}  // namespace

void TANDEM_ISA_FN(top_n)(const TopNParams& p, Range rows) {
  const Workspace w = lay_out(p.workspace, p.vocab);
  Entry* entries = reinterpret_cast<Entry*>(w.weight);
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = p.logits + static_cast<int64_t>(r) * p.vocab;
    int32_t* ids = p.ids + static_cast<int64_t>(r) * p.n;
    float* logprobs = p.logprobs + static_cast<int64_t>(r) * p.n;
    const bool is_valid = scan(x, p.vocab, w.block_max).is_valid;
    if (is_valid) {
      const int n = keep_top(x, p.vocab, p.n, w);
      for (int i = 0; i < n; ++i) entries[i] = {order_key(w.top[i]), w.id[i]};
      sort(entries, n);
    }
    for (int i = 0; i < p.n; ++i) {
      ids[i] = is_valid ? entries[i].id : kInvalidToken;
      logprobs[i] = is_valid ? x[ids[i]] - p.lse[r] : NAN;
    }
  }
}

}  // namespace tandem
