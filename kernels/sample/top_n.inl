#include <math.h>

#include "kernels/sample/heap_sort.h"
#include "kernels/sample/select.h"

namespace tandem {
namespace {

struct Entry {
  uint32_t key;
  int32_t id;
};

/// Whether a comes after b: the smaller logit, or at equal logits the higher id.
inline bool is_after(Entry a, Entry b) { return a.key != b.key ? a.key < b.key : a.id > b.id; }

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
      heap_sort(entries, n);
    }
    for (int i = 0; i < p.n; ++i) {
      ids[i] = is_valid ? entries[i].id : kInvalidToken;
      logprobs[i] = is_valid ? x[ids[i]] - p.lse[r] : NAN;
    }
  }
}

}  // namespace tandem
