#include "ops/attention.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/error.h"
#include "base/parallel.h"
#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/few_rows_plan.h"
#include "kernels/cuda_table.h"
#include "ops/operation.h"
#include "tensor/cuda.h"

namespace tandem::ops {

namespace {

// Rows of a sequence up to which a GPU divides the keys among its processors; above, rows do.
constexpr int kFewRows = kMaxListRows;
// The same for drafted rows, of all sequences together: they are few compared with the keys that
// all of them read. Of sequoia/bench-llama-2-7b-68m, the target's forward of 128 nodes took 7.2 ms
// with rows divided, 5.1 with keys.
constexpr int kFewTreeRows = 512;

int tree_rows(const AttentionBounds& b) { return std::min(b.max_tree_rows, kFewTreeRows); }

bool few_rows(const StepArrays& step, int tree_rows) {
  return step.max_rows_a_seq <= kFewRows ||
         (step.drafted && step.n_seqs * step.max_rows_a_seq <= tree_rows);
}

AttentionBounds few_rows_bounds(AttentionBounds b) {
  b.max_rows = std::min(b.max_rows, kFewRows);
  if (!b.lists) b.max_tree_rows = tree_rows(b);
  return b;
}

void check_head_dim(int head_dim) {
  if (head_dim > kMostHeadDim || head_dim % 2 != 0)
    throw make_error(ErrorKind::device, "head_dim",
                     "attention on a GPU needs an even number up to {}, this model has {}",
                     kMostHeadDim, head_dim)
        .hint("run the model with --device cpu");
}

/// Bytes of the counters, which come first in the workspace.
size_t counter_bytes(const AttentionBounds& b) {
  constexpr size_t kAlign = 256;
  return (attention_few_rows_counter_bytes(few_rows_bounds(b)) + kAlign - 1) / kAlign * kAlign;
}

void attention_on_gpu(const AttentionParams& p, const AttentionArgs& a,
                      const AttentionWorkspace& workspace, Stream stream) {
  const int max_tokens = a.step.max_pages * kPageTokens, max_rows = a.step.max_rows_a_seq;
  if (a.lists.bounds_keys() || a.scores.at != nullptr || few_rows(a.step, workspace.tree_rows)) {
    cuda_table().attention_few_rows(p,
                                    {.max_rows_a_seq = max_rows,
                                     .max_tokens = max_tokens,
                                     .keys_settled = a.keys_settled,
                                     .counters = workspace.counters,
                                     .workspace = workspace.memory},
                                    stream);
  } else {
    cuda_table().attention_many_rows(
        p, {.n_rows = a.step.n_rows, .max_rows_a_seq = max_rows, .max_tokens = max_tokens}, stream);
  }
  cuda::launched("attention", stream);
}

}  // namespace

size_t attention_workspace_bytes(Device device, const AttentionBounds& b) {
  if (device.kind == Device::Kind::cuda) {
    check_head_dim(b.head_dim);
    return counter_bytes(b) + attention_few_rows_workspace_bytes(few_rows_bounds(b));
  }
  AttentionBounds on_cpu = b;
  on_cpu.threads = max_threads();
  return attention_cpu_workspace_bytes(on_cpu);
}

AttentionWorkspace attention_workspace(Device device, const AttentionBounds& b, void* memory) {
  if (device.kind != Device::Kind::cuda) return {.memory = memory};
  return {.counters = memory,
          .memory = static_cast<std::byte*>(memory) + counter_bytes(b),
          .tree_rows = tree_rows(b),
          .list_rows = b.lists ? std::max(1, b.max_tree_rows) : 0};
}

bool takes_lists(const StepArrays& step, const AttentionWorkspace& workspace) {
  return workspace.list_rows > 0 && few_rows(step, workspace.list_rows);
}

bool leaves_scores(const StepArrays& step) {
  return step.drafted || step.max_rows_a_seq <= kMaxListRows;
}

void mean_lse(const MeanLseParams& p, Stream stream) {
  TANDEM_OPERATION(mean_lse).run(p, p.n_seqs,
                                 int64_t{p.n_layers} * p.n_heads * int64_t{sizeof(double)}, stream);
}

void attention(const AttentionArgs& a, const AttentionWorkspace& workspace, Stream stream) {
  TANDEM_CHECK(
      a.k.size(2) == kPageTokens && a.k.size(3) == a.q.size(2) && a.q.size(1) % a.k.size(1) == 0,
      "attention: {} query heads do not fit {} KV heads with pages [{}, {}]", a.q.size(1),
      a.k.size(1), a.k.size(2), a.k.size(3));
  TANDEM_CHECK(
      !a.lists.bounds_keys() || (takes_lists(a.step, workspace) && kPageTokens % a.lists.run == 0),
      "attention: key lists with runs of {} do not fit {} rows a sequence", a.lists.run,
      a.step.max_rows_a_seq);
  TANDEM_CHECK(
      a.scores.at == nullptr || (leaves_scores(a.step) && a.window == 0 && a.key_lo == 0 &&
                                 a.seq_key_lo == nullptr && !a.lists.bounds_keys()),
      "attention: scores are not supported for this mask, window or lists with {} rows a sequence",
      a.step.max_rows_a_seq);
  TANDEM_CHECK(a.scores.at == nullptr || a.q.device().kind == Device::Kind::cpu ||
                   takes_lists(a.step, workspace),
               "attention: scores were not planned for {} rows a sequence", a.step.max_rows_a_seq);
  TANDEM_CHECK(a.k.dtype() == a.q.dtype() && a.v.dtype() == a.q.dtype(),
               "attention: dtypes of queries, keys and values differ");
  AttentionParams p{};
  p.out = a.out.raw();
  p.lse = a.lse;
  p.q = a.q.raw();
  p.k_pool = a.k.raw();
  p.v_pool = a.v.raw();
  p.page_table = a.step.page_table;
  p.slot = a.step.slot;
  p.row_begin = a.step.row_begin;
  p.base = a.step.base;
  p.tentative = a.step.tentative;
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
  p.lists = a.lists;
  p.scores = a.scores;
  p.scale = a.scale;
  if (a.q.device().kind == Device::Kind::cuda) return attention_on_gpu(p, a, workspace, stream);
  attention_cpu(p, workspace.memory);
}

void merge_states(const Tensor& out, const float* o, const float* lse, int n, Stream stream,
                  float* merged_lse) {
  constexpr size_t kMaxParts = kMaxMergeParts;
  TANDEM_CHECK(n <= kMaxMergeParts, "cannot merge {} partial results: too many", n);
  const int64_t cells = out.rows() * out.size(1);
  std::array<const void*, kMaxParts> parts{};
  std::array<const float*, kMaxParts> part_lse{};
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    parts[i] = o + static_cast<int64_t>(i) * cells * out.size(2);
    part_lse[i] = lse + static_cast<int64_t>(i) * cells;
  }
  const MergeStatesParams p{.out = out.raw(),
                            .lse = merged_lse,
                            .o = parts.data(),
                            .part_lse = part_lse.data(),
                            .part_dtype = DType::f32,
                            .out_dtype = out.dtype(),
                            .n_parts = n,
                            .n_heads = static_cast<int>(out.size(1)),
                            .head_dim = static_cast<int>(out.size(2))};
  if (out.device().kind == Device::Kind::cuda) {
    cuda_table().merge_states(p, static_cast<int>(out.rows()), stream);
    return cuda::launched("merge_states", stream);
  }
  parallel_ranges(static_cast<int>(out.rows()), 8, [&](int begin, int end) {
    tandem::merge_states(p, Range{begin, end});
  });
}

}  // namespace tandem::ops
