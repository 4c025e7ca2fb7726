#include "ops/attention.h"

#include <array>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/attention/attention_cpu.h"

namespace tandem::ops {

size_t attention_workspace_bytes(int max_seqs, int max_rows, int max_tokens, int n_heads,
                                 int n_kv_heads, int head_dim) {
  return attention_cpu_workspace_bytes({.max_seqs = max_seqs, .max_rows = max_rows,
                                        .max_tokens = max_tokens, .n_heads = n_heads, .n_kv_heads = n_kv_heads,
                                        .head_dim = head_dim, .threads = max_threads()});
}

void attention(const AttentionArgs& a, void* workspace) {
  TANDEM_CHECK(a.k.size(2) == kPageTokens && a.k.size(3) == a.q.size(2) &&
                   a.q.size(1) % a.k.size(1) == 0,
               "attention of {} heads on {} of [{}, {}]", a.q.size(1), a.k.size(1), a.k.size(2),
               a.k.size(3));
  TANDEM_CHECK(a.k.dtype() == a.q.dtype() && a.v.dtype() == a.q.dtype(), "attention mixes dtypes");
  AttentionParams p{};
  p.out = a.out.raw();
  p.lse = a.lse;
  p.q = a.q.raw();
  p.k_pool = a.k.raw();
  p.v_pool = a.v.raw();
  p.page_table = a.step.page_table;
  p.row_begin = a.step.row_begin;
  p.base = a.step.base;
  p.pos = a.step.pos;
  p.tree_mask = a.step.tree_mask;
  p.dtype = a.q.dtype();
  p.out_dtype = a.out.dtype();
  p.n_seqs = a.step.n_seqs;
  p.max_pages = a.step.max_pages;
  p.n_heads = static_cast<int>(a.q.size(1));
  p.n_kv_heads = static_cast<int>(a.k.size(1));
  p.head_dim = static_cast<int>(a.q.size(2));
  p.mask_words = a.step.mask_words;
  p.key_lo = a.key_lo;
  p.seq_key_lo = a.seq_key_lo;
  p.key_hi = a.key_hi;
  p.sinks = a.sinks;
  p.window = a.window;
  p.scale = a.scale;
  attention_cpu(p, workspace);
}

void merge_states(const Tensor& out, const float* o, const float* lse, int n) {
  constexpr size_t kMaxParts = 4;
  const int64_t cells = out.rows() * out.size(1);
  std::array<const void*, kMaxParts> parts{};
  std::array<const float*, kMaxParts> part_lse{};
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    parts[i] = o + static_cast<int64_t>(i) * cells * out.size(2);
    part_lse[i] = lse + static_cast<int64_t>(i) * cells;
  }
  const MergeStatesParams p{.out = out.raw(), .lse = nullptr, .o = parts.data(),
                            .part_lse = part_lse.data(), .part_dtype = DType::f32,
                            .out_dtype = out.dtype(), .n_parts = n,
                            .n_heads = static_cast<int>(out.size(1)),
                            .head_dim = static_cast<int>(out.size(2))};
  parallel_ranges(static_cast<int>(out.rows()), 8,
                  [&](int begin, int end) { tandem::merge_states(p, Range{begin, end}); });
}

}  // namespace tandem::ops
