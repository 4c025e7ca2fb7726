#include "kv/quantized/quantized_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/divide_up.h"
#include "base/parallel.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

constexpr const char* kQueriesName = "workspace/coded queries";
constexpr const char* kStatesName = "workspace/coded states";
constexpr const char* kScratchName = "workspace/coded scratch";
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

/// Splits up to token `end`.
int splits_of(int end) { return static_cast<int>(divide_up(end, kSplitTokens)); }

/// Splits of whole blocks of queries, enough of them to keep all threads busy.
int most_states(const AttentionBounds& b) { return 2 * max_threads() * splits_of(b.max_tokens); }

/// A state for each query of a block.
size_t state_floats(const AttentionBounds& b) {
  return static_cast<size_t>(most_states(b)) * QuantizedAttention::kQueries;
}

/// Bytes of a block's queries: f32, whole numbers and gains.
size_t block_bytes(const AttentionBounds& b) {
  const auto d = static_cast<size_t>(b.head_dim);
  return QuantizedAttention::kQueries *
         (d * (sizeof(float) + sizeof(int16_t)) + sizeof(CodedGains));
}

size_t scratch_bytes(const AttentionBounds& b) {
  constexpr size_t kLine = 64;
  return divide_up(attend_coded_scratch(b.head_dim, QuantizedAttention::kQueries), kLine) * kLine;
}

}  // namespace

void QuantizedAttention::plan(const AttentionBounds& bounds, MemoryPlan& plan) {
  plan.add(kQueriesName, static_cast<size_t>(most_states(bounds)) * block_bytes(bounds));
  plan.add(kStatesName,
           state_floats(bounds) * static_cast<size_t>(bounds.head_dim + 1) * sizeof(float));
  plan.add(kScratchName, static_cast<size_t>(max_threads()) * scratch_bytes(bounds));
}

QuantizedAttention::QuantizedAttention(const AttentionBounds& bounds, const QuantizedKeys& keys,
                                       Arena& arena)
    : bounds_(bounds),
      keys_(keys),
      queries_(static_cast<std::byte*>(arena.take(kQueriesName))),
      o_(static_cast<float*>(arena.take(kStatesName))),
      lse_(o_ + state_floats(bounds) * static_cast<size_t>(bounds.head_dim)),
      scratch_(static_cast<std::byte*>(arena.take(kScratchName))) {}

void QuantizedAttention::attend(const Call& call) {
  const Step& step = call.step;
  const int n_kv_heads = bounds_.n_kv_heads, group = bounds_.n_heads / n_kv_heads;
  const int most = most_states(bounds_);
  int state = 0;
  for (int seq = 0; seq < step.n_seqs; ++seq) {
    const auto i = static_cast<size_t>(seq);
    const int splits = splits_of(step.near_begin[i]);
    if (step.near_begin[i] == QuantizedKeys::kFirst) {
      std::fill_n(call.lse + int64_t{step.row_begin[i]} * bounds_.n_heads,
                  int64_t{step.rows_of(seq)} * bounds_.n_heads, kEmpty);
      continue;
    }
    const int n = step.rows_of(seq) * group;
    for (int kv_head = 0; kv_head < n_kv_heads; ++kv_head)
      for (int first = 0; first < n; first += kQueries, state += splits) {
        if (state + splits > most) {
          run(call);
          state = 0;
        }
        blocks_.push_back({.seq = seq,
                           .kv_head = kv_head,
                           .first = first,
                           .n = std::min(kQueries, n - first),
                           .first_state = state,
                           .n_states = splits});
      }
  }
  run(call);
}

QuantizedAttention::BlockQueries QuantizedAttention::queries_of(int block) const {
  const size_t n = kQueries * static_cast<size_t>(bounds_.head_dim);
  auto* const gains =
      reinterpret_cast<CodedGains*>(queries_ + static_cast<size_t>(block) * block_bytes(bounds_));
  auto* const q = reinterpret_cast<float*>(gains + kQueries);
  return {q, reinterpret_cast<int16_t*>(q + n), gains};
}

size_t QuantizedAttention::place(const Step& step, const Block& b, int i) const {
  const int group = bounds_.n_heads / bounds_.n_kv_heads, query = b.first + i;
  const int row = step.row_begin[static_cast<size_t>(b.seq)] + query / group;
  return static_cast<size_t>(row * bounds_.n_heads + b.kv_head * group + query % group);
}

void QuantizedAttention::run(const Call& call) {
  const Step& step = call.step;
  const auto d = static_cast<size_t>(bounds_.head_dim);
  const int n_blocks = static_cast<int>(blocks_.size());
  parallel_for(n_blocks, [&](int i) {
    const Block& b = blocks_[static_cast<size_t>(i)];
    const BlockQueries queries = queries_of(i);
    for (int j = 0; j < b.n; ++j)
      read_vector(static_cast<const char*>(call.q.raw()) +
                      place(step, b, j) * d * dtype_bytes(call.q.dtype()),
                  call.q.dtype(), {queries.q + static_cast<size_t>(j) * d, d});
    const int slot = step.slot[static_cast<size_t>(b.seq)];
    const float* const center = keys_.frame(slot, call.layer, b.kv_head);
    ops::prepare_coded_queries({.numbers = queries.numbers,
                                .gains = queries.gains,
                                .q = queries.q,
                                .layout = keys_.layout(call.layer),
                                .center = center,
                                .axis = center + d,
                                .signs = keys_.signs(),
                                .scale = call.scale},
                               {0, b.n});
  });
  tasks_.clear();
  for (int i = 0; i < n_blocks; ++i)
    for (int split = 0; split < blocks_[static_cast<size_t>(i)].n_states; ++split)
      tasks_.push_back({i, split});
  parallel_for(static_cast<int>(tasks_.size()), max_threads(), [&](int i, int thread) {
    const auto [block, split] = tasks_[static_cast<size_t>(i)];
    const Block& b = blocks_[static_cast<size_t>(block)];
    const auto seq = static_cast<size_t>(b.seq);
    const size_t state = static_cast<size_t>(b.first_state + split) * kQueries;
    const BlockQueries queries = queries_of(block);
    ops::attend_coded(
        {.o = o_ + state * d,
         .lse = lse_ + state,
         .numbers = queries.numbers,
         .gains = queries.gains,
         .n_queries = b.n,
         .pool = keys_.codes(call.layer),
         .layout = keys_.layout(call.layer),
         .n_kv_heads = bounds_.n_kv_heads,
         .kv_head = b.kv_head,
         .pages = call.tables.cells() + int64_t{step.slot[seq]} * call.tables.max_pages(),
         .begin = std::max(split * kSplitTokens, QuantizedKeys::kFirst),
         .end = std::min((split + 1) * kSplitTokens, step.near_begin[seq]),
         .scratch = scratch_ + static_cast<size_t>(thread) * scratch_bytes(bounds_)});
  });
  parallel_for(n_blocks, [&](int i) {
    const Block& b = blocks_[static_cast<size_t>(i)];
    for (int j = 0; j < b.n; ++j) {
      const size_t at = place(step, b, j);
      float* const o = call.o + at * d;
      call.lse[at] = merge(b, j, o);
      ops::rotate_rows_back({o, keys_.signs(), bounds_.head_dim}, {0, 1});
    }
  });
  blocks_.clear();
}

float QuantizedAttention::merge(const Block& b, int query, float* o) const {
  const auto d = static_cast<size_t>(bounds_.head_dim);
  const size_t first = static_cast<size_t>(b.first_state) * kQueries + static_cast<size_t>(query);
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
