#include "kv/quantized/quantized_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "base/parallel.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

constexpr const char* kQueriesName = "workspace/coded queries";
constexpr const char* kStatesName = "workspace/coded states";
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

/// Splits up to token `end`.
int splits_of(int end) { return (end + kSplitTokens - 1) / kSplitTokens; }

/// Whole blocks of queries: as many as keep all threads busy.
int most_states(const AttentionBounds& b) { return 2 * max_threads() * splits_of(b.max_tokens); }

size_t state_floats(const AttentionBounds& b) {
  return static_cast<size_t>(most_states(b)) * QuantizedAttention::kQueries;
}

/// Of a block: [kQueries, d], and their products with axis and center.
size_t block_floats(const AttentionBounds& b) {
  return QuantizedAttention::kQueries * static_cast<size_t>(b.head_dim + 2);
}

float dot(const float* x, const float* y, size_t d) {
  double sum = 0;
  for (size_t c = 0; c < d; ++c) sum += double{x[c]} * y[c];
  return static_cast<float>(sum);
}

}  // namespace

void QuantizedAttention::plan(const AttentionBounds& bounds, MemoryPlan& plan) {
  plan.add(kQueriesName,
           static_cast<size_t>(most_states(bounds)) * block_floats(bounds) * sizeof(float));
  plan.add(kStatesName,
           state_floats(bounds) * static_cast<size_t>(bounds.head_dim + 1) * sizeof(float));
}

QuantizedAttention::QuantizedAttention(const AttentionBounds& bounds, const QuantizedKeys& keys,
                                       Arena& arena)
    : bounds_(bounds),
      keys_(keys),
      queries_(static_cast<float*>(arena.take(kQueriesName))),
      o_(static_cast<float*>(arena.take(kStatesName))),
      lse_(o_ + state_floats(bounds) * static_cast<size_t>(bounds.head_dim)) {}

void QuantizedAttention::attend(const Call& call) {
  const Step& step = call.step;
  const int n_kv_heads = bounds_.n_kv_heads, group = bounds_.n_heads / n_kv_heads;
  int state = 0;
  const int most = most_states(bounds_);
  for (int seq = 0; seq < step.n_seqs; ++seq) {
    const int end = step.near_begin[static_cast<size_t>(seq)], splits = splits_of(end);
    const int first_row = step.row_begin[static_cast<size_t>(seq)];
    const int64_t first = int64_t{first_row} * bounds_.n_heads;
    if (end == QuantizedKeys::kFirst) {
      const int64_t n = int64_t{step.rows_of(seq)} * bounds_.n_heads;
      std::fill_n(call.lse + first, n, kEmpty);
      continue;
    }
    for (int kv_head = 0; kv_head < n_kv_heads; ++kv_head)
      for (int i = 0, n = step.rows_of(seq) * group; i < n; i += kQueries, state += splits) {
        if (state + splits > most) {
          run(call);
          state = 0;
        }
        blocks_.push_back({.seq = seq,
                           .kv_head = kv_head,
                           .first = i,
                           .n = std::min(kQueries, n - i),
                           .first_state = state,
                           .n_states = splits});
      }
  }
  run(call);
}

QuantizedAttention::BlockQueries QuantizedAttention::queries_of(int block) const {
  float* const q = queries_ + static_cast<size_t>(block) * block_floats(bounds_);
  float* const along = q + kQueries * static_cast<size_t>(bounds_.head_dim);
  return {q, along, along + kQueries};
}

void QuantizedAttention::run(const Call& call) {
  const Step& step = call.step;
  const int n_heads = bounds_.n_heads, group = n_heads / bounds_.n_kv_heads;
  const auto d = static_cast<size_t>(bounds_.head_dim);
  const int n_blocks = static_cast<int>(blocks_.size());
  // Row and head of a block's query in q and o.
  const auto place = [&](const Block& b, int i) {
    const int query = b.first + i, row = step.row_begin[static_cast<size_t>(b.seq)] + query / group;
    return static_cast<size_t>(row * n_heads + b.kv_head * group + query % group);
  };
  parallel_for(n_blocks, [&](int i) {
    const Block& b = blocks_[static_cast<size_t>(i)];
    const float* const center =
        keys_.frame(step.slot[static_cast<size_t>(b.seq)], call.layer, b.kv_head);
    const float* const axis = center + d;
    const BlockQueries to = queries_of(i);
    for (int j = 0; j < b.n; ++j) {
      float* const q = to.q + static_cast<size_t>(j) * d;
      read_vector(
          static_cast<const char*>(call.q.raw()) + place(b, j) * d * dtype_bytes(call.q.dtype()),
          call.q.dtype(), {q, d});
      const float along = dot(q, axis, d);
      to.along[j] = call.scale * along;
      to.center[j] = call.scale * dot(q, center, d);
      for (size_t c = 0; c < d; ++c) q[c] = call.scale * (q[c] - along * axis[c]);
      ops::rotate_rows({q, keys_.signs(), bounds_.head_dim}, {0, 1});
    }
  });
  tasks_.clear();
  for (int i = 0; i < n_blocks; ++i)
    for (int split = 0; split < blocks_[static_cast<size_t>(i)].n_states; ++split)
      tasks_.push_back({i, split});
  parallel_for(static_cast<int>(tasks_.size()), [&](int i) {
    const auto [index, split] = tasks_[static_cast<size_t>(i)];
    const Block& b = blocks_[static_cast<size_t>(index)];
    const auto seq = static_cast<size_t>(b.seq), state = static_cast<size_t>(b.first_state + split);
    const BlockQueries q = queries_of(index);
    ops::attend_coded(
        {.o = o_ + state * kQueries * d,
         .lse = lse_ + state * kQueries,
         .q = q.q,
         .along = q.along,
         .center = q.center,
         .n_queries = b.n,
         .pool = keys_.codes(call.layer),
         .layout = keys_.layout(call.layer),
         .n_kv_heads = bounds_.n_kv_heads,
         .kv_head = b.kv_head,
         .pages = call.tables.cells() + int64_t{step.slot[seq]} * call.tables.max_pages()},
        {std::max(split * kSplitTokens, QuantizedKeys::kFirst),
         std::min((split + 1) * kSplitTokens, step.near_begin[seq])});
  });
  parallel_for(n_blocks, [&](int i) {
    const Block& b = blocks_[static_cast<size_t>(i)];
    for (int j = 0; j < b.n; ++j) {
      const size_t at = place(b, j);
      float* const o = call.o + at * d;
      call.lse[at] = merge(b, j, o);
      ops::rotate_rows_back({o, keys_.signs(), bounds_.head_dim}, {0, 1});
    }
  });
  blocks_.clear();
}

float QuantizedAttention::merge(const Block& b, int query, float* o) const {
  const auto d = static_cast<size_t>(bounds_.head_dim);
  const auto first = static_cast<size_t>(b.first_state) * kQueries + static_cast<size_t>(query);
  std::fill_n(o, d, 0.0f);
  double most = kEmpty, sum = 0;
  for (int i = 0; i < b.n_states; ++i)
    most = std::max<double>(most, lse_[first + static_cast<size_t>(i) * kQueries]);
  for (int i = 0; i < b.n_states; ++i) {
    const size_t at = first + static_cast<size_t>(i) * kQueries;
    const double weight = std::exp(lse_[at] - most);
    sum += weight;
    for (size_t c = 0; c < d; ++c) o[c] += static_cast<float>(weight) * o_[at * d + c];
  }
  for (size_t c = 0; c < d; ++c) o[c] /= static_cast<float>(sum);
  return static_cast<float>(most + std::log(sum));
}

}  // namespace tandem::kv
