// Attention of a step's layers: what a plan of the policy asks, on the device, by the host, or
// both.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/convert.h"
#include "kv/cache.h"
#include "kv/cache_parts.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace tandem::kv {

using namespace parts;

void Cache::attend(int layer, const Step& step, const Tensor& out, const Tensor& q, float* lse) {
  attend_begin(layer, step, out, q, lse);
  // Before the second part: a GPU that has nothing else to do need not wait for an answer then.
  if (host_of(layer, step) != nullptr && !exec_.queue->is_recording()) serve_layer(layer, step);
  attend_end(layer, step, out, lse);
  if (observer_ != nullptr && step.phase == Phase::extend)
    observer_->attended(*this, layer, step, q);
}

void Cache::attend_begin(int layer, const Step& step, const Tensor& out, const Tensor& q,
                         float* lse) {
  TANDEM_CHECK(lse == nullptr || step.phase == Phase::prefill,
               "log-sum-exp is only supported in prefill steps");
  if (queries_) queries_->write(layer, step, q);
  AttendPlan plan;
  Policy& policy = *policies_[static_cast<size_t>(step.reading.keys)];
  if (step.phase == Phase::extend)
    policy.select(layer, step, q, plan);
  else
    plan.add({.window = spec_.geometry.window(layer)});
  // Recorded work asks for lists that may come to be.
  if (host_of(layer, step) != nullptr) plan.selector = policy.selector();
  KeyUsage not_counted;
  KeyUsage& usage = step.probe ? not_counted : usage_[static_cast<size_t>(step.reading.keys)];
  const bool scores = leaves_scores(step);
  pending_[static_cast<size_t>(step.micro_batch)] = attend_parts({.layer = layer,
                                                                  .step = step,
                                                                  .plan = plan,
                                                                  .out = out,
                                                                  .q = q,
                                                                  .lse = lse,
                                                                  .usage = usage,
                                                                  .scores = scores});
  if (scores && layer + 1 == spec_.geometry.n_layers) {
    scores_->take(step);
    for (int i = 0; i < n_policies(); ++i)
      if (asks_scores(step, i)) policies_[static_cast<size_t>(i)]->on_scores(step);
  }
  if (device_step_ || step.phase != Phase::extend || step.probe) return;
  if (plan.selector == nullptr) return count_dense(layer, step);
  count_fixed(step, plan.bounds(), usage);
}

void Cache::attend_end(int, const Step& step, const Tensor& out, float* lse) {
  merge_parts(pending_[static_cast<size_t>(step.micro_batch)], step, out, lse);
}

void Cache::merge_parts(const Parts& parts, const Step& step, const Tensor& out, float* lse) {
  if (parts.n == 0) return;
  const int64_t rows = out.rows();
  if (parts.host != nullptr)
    parts.host->await(part_o(step, rows, parts.n - 1), part_lse(step, rows, parts.n - 1), rows);
  ops::merge_states(out, part_o(step, rows, 0), part_lse(step, rows, 0), parts.n, exec_.stream(),
                    lse);
}

float* Cache::part_o(const Step& step, int64_t n_rows, int i) const {
  const int64_t before = static_cast<int64_t>(n_parts_) * step.rows_before + i * n_rows;
  return partial_o_ + before * spec_.geometry.n_heads * spec_.geometry.head_dim;
}

float* Cache::part_lse(const Step& step, int64_t n_rows, int i) const {
  const int64_t before = static_cast<int64_t>(n_parts_) * step.rows_before + i * n_rows;
  return partial_lse_ + before * spec_.geometry.n_heads;
}

Cache::Parts Cache::attend_parts(const Attention& a) {
  const auto& [layer, step, plan, out, q, lse, usage, scores, on_list] = a;
  if (const PagedStore* passing = residence_->passing(layer, step)) {
    attend_passing(a, *passing);
    return {};
  }
  const LayerKeys keys = this->keys(layer, step);
  // Policies know bounds on the host, steps where attention is.
  const bool near = residence_->reads_near(layer, step);
  HostAttention* const host = host_of(layer, step);
  ops::AttentionArgs args{.out = out,
                          .lse = lse,
                          .q = q,
                          .k = keys.k,
                          .v = keys.v,
                          .step = keys.step,
                          .scale = spec_.geometry.scale(layer).f32(),
                          // The layer ahead read the same arrays, and between two layers only the
                          // rows of the step are written. Pages are copied and tokens moved between
                          // steps.
                          .keys_settled = layer > 0};
  const auto set_source = [&](const KeyRange& source) {
    args.key_lo = source.key_lo;
    args.key_hi = source.key_hi;
    args.sinks = source.sinks;
    args.window = source.window;
    // Lists of copies come with where the range begins.
    const bool by_step = near && source.lists.ids == nullptr && source.seq_key_lo != nullptr;
    args.seq_key_lo = by_step ? a.step.near_lo : source.seq_key_lo;
    args.lists = by_step ? KeyLists{} : source.lists;
  };
  if (host == nullptr && plan.n == 1 && plan.selector == nullptr && plan.lists.ids == nullptr &&
      !plan.far && plan.sources[0].q_position_max < 0) {
    set_source(plan.sources[0]);
    if (plan.sources[0].window == 0 && scores) {
      args.scores = scores_->request(layer, step);
      args.lse = scores_->row_lse(layer);
    }
    ops::attention(args, workspace_, exec_.stream());
    return {};
  }
  const int64_t heads = q.size(1), d = q.size(2), rows = q.rows();
  TANDEM_CHECK(step.rows_before + rows <= static_cast<int64_t>(partial_rows(spec_)),
               "{} rows of partial results exceed the planned {}", step.rows_before + rows,
               partial_rows(spec_));
  // What the host needs goes first, so that it works while this goes on.
  if (host != nullptr && plan.lists.ids == nullptr) host->ask(q);
  int n_parts = plan.n;
  if (host != nullptr && plan.lists.ids != nullptr) n_parts += attend_lists(a, n_parts);
  for (int i = 0; i < plan.n; ++i) {
    const KeyRange& source = plan.sources[static_cast<size_t>(i)];
    set_source(source);
    args.q = q;
    if (source.q_position_max >= 0) {
      args.q = Tensor(q_shifted_, q.dtype(), {rows, heads, d}, q.device());
      ops::rotate_q(args.q, q, ops::rope_at(ropes_, spec_.geometry.at(layer).rope), args.step.pos,
                    source.q_position_max, exec_.stream());
    }
    args.out = Tensor(part_o(step, rows, i), DType::f32, {rows, heads, d}, q.device());
    args.lse = part_lse(step, rows, i);
    ops::attention(args, workspace_, exec_.stream());
  }
  if (host != nullptr) return {.n = n_parts + 1, .host = host};
  if (plan.selector != nullptr) attend_selected(a, n_parts++);
  if (plan.far) {
    residence_->attend_far(layer, step, q, part_o(step, rows, n_parts),
                           part_lse(step, rows, n_parts));
    ++n_parts;
  }
  if (plan.lists.ids != nullptr) n_parts += attend_lists(a, n_parts);
  return {.n = n_parts};
}

void Cache::attend_selected(const Attention& a, int i) {
  const int64_t rows = a.q.rows();
  lists_->run({.selector = *a.plan.selector,
               .layer = a.layer,
               .step = a.step,
               .store = whole_store(a.layer),
               .q = a.q,
               .o = part_o(a.step, rows, i),
               .lse = part_lse(a.step, rows, i),
               .on_list = a.on_list},
              a.usage);
}

void Cache::serve(std::span<const Step> steps) {
  for (int layer = 0; layer < spec_.geometry.n_layers; ++layer)
    for (const Step& step : steps)
      if (host_of(layer, step) != nullptr) serve_layer(layer, step);
}

void Cache::serve_layer(int layer, const Step& step) {
  const Geometry& g = spec_.geometry;
  HostAttention& host = *host_of(layer, step);
  const KeySelector* const chosen = policy(step.reading.keys).selector();
  KeyUsage of_gpu;  // is counted as the GPU's
  KeyUsage& usage = step.probe ? of_gpu : usage_[static_cast<size_t>(step.reading.keys)];
  const auto attend = [&](const HostAttention::Request& r) {
    const int64_t rows = step.padded_rows(), used = step.n_rows, heads = g.n_heads;
    const Tensor q(const_cast<void*>(r.q), g.dtype, {rows, heads, g.head_dim});
    if (!residence_->attend_far(layer, step, q, r.o, r.lse))
      lists_->run({.selector = chosen != nullptr ? *chosen : host.handed(),
                   .layer = layer,
                   .step = step,
                   .store = whole_store(layer),
                   .q = q,
                   .o = r.o,
                   .lse = r.lse},
                  chosen != nullptr ? usage : of_gpu);
    std::fill(r.o + used * heads * g.head_dim, r.o + rows * heads * g.head_dim, 0.0f);
    std::fill(r.lse + used * heads, r.lse + rows * heads, -std::numeric_limits<float>::infinity());
  };
  try {
    host.serve(spec_.interrupted, attend);
  } catch (...) {
    // The other micro-batch has notes on the same queue.
    for (const auto& each : served_) each->refuse();
    for (const auto& each : served_) each->abort();
    throw;
  }
  if (chosen == nullptr) return;
  if (std::ranges::all_of(step.near_begin, [](int32_t begin) { return begin == 0; }))
    return count_dense(layer, step);
  const int32_t* const lo[] = {step.near_begin.data()};
  count_fixed(step, lo, usage);
}

void Cache::attend_passing(const Attention& a, const PagedStore& keys) {
  ops::attention({.out = a.out,
                  .lse = a.lse,
                  .q = a.q,
                  .k = keys.k(a.layer),
                  .v = keys.v(a.layer),
                  .step = a.step.arrays,
                  .key_hi = a.plan.sources[0].key_hi,
                  .scale = spec_.geometry.scale(a.layer).f32()},
                 workspace_, exec_.stream());
  residence_->passed(a.layer, a.step, keys);
}

int Cache::attend_lists(const Attention& a, int first_part) {
  const Geometry& g = spec_.geometry;
  // Pinned memory of the host has the addresses there that it has here.
  const PagedStore& store = whole_store(a.layer);
  const ops::StepArrays& step = a.step.arrays;
  const int n_rows = static_cast<int>(a.q.rows());
  HostAttention* const host = host_of(a.layer, a.step);
  const int at_a_time = a.plan.make_lists ? a.plan.list_rows : n_rows;
  for (int begin = 0; begin < n_rows; begin += at_a_time) {
    const Range rows{begin, std::min(begin + at_a_time, n_rows)};
    if (a.plan.make_lists) a.plan.make_lists(rows, store);
    QueryLists lists = a.plan.lists;
    if (host != nullptr) lists = host->hand_over(lists, rows, cpu_share_);
    if (host != nullptr && rows.end == n_rows) host->ask(a.q);
    ops::attend_lists({.o = part_o(a.step, n_rows, first_part),
                       .lse = part_lse(a.step, n_rows, first_part),
                       .q = a.q.raw(),
                       .k_pool = store.k(a.layer).raw(),
                       .v_pool = store.v(a.layer).raw(),
                       .page_table = step.page_table,
                       .slot = step.slot,
                       .row_begin = step.row_begin,
                       .n_rows = n_rows,
                       .n_seqs = step.n_seqs,
                       .max_pages = step.max_pages,
                       .n_heads = g.n_heads,
                       .n_kv_heads = g.n_kv_heads,
                       .d = g.head_dim,
                       .dtype = g.dtype,
                       .scale = g.scale(a.layer).f32(),
                       .rows = rows,
                       .lists = lists,
                       .tails = a.plan.tails},
                      exec_.stream());
  }
  return attend_lists_parts(a.plan.lists.most, a.plan.tails.masses != nullptr);
}

bool Cache::leaves_scores(const Step& step) const {
  if (!scores_ || step.phase != Phase::extend || step.probe ||
      !needs(step.reading.keys).reads_all || !ops::leaves_scores(step.arrays) ||
      (device_step_ && !ops::takes_lists(step.arrays, workspace_)))
    return false;
  for (int i = 0; i < n_policies(); ++i)
    if (asks_scores(step, i)) return true;
  return false;
}

bool Cache::asks_scores(const Step& step, int i) const {
  return needs(i).scores &&
         std::ranges::all_of(step.slot, [&](int slot) { return readers_of(slot).has(i); });
}

void Cache::count_dense(int layer, const Step& step) {
  const Policy& p = policy(step.reading.keys);
  // What a selector's policy says of a layer is an estimate; without a selection it reads all.
  const auto keys_read = [&](int length) {
    return p.selector() != nullptr ? spec_.geometry.visible(layer, length)
                                   : p.keys_read(layer, length).total;
  };
  double keys = 0;
  if (step.drafted) {
    // Rows share what they read: the text, as the first of them sees it, and the nodes.
    for (int b = 0; b < step.n_seqs; ++b)
      if (step.rows_of(b) > 0)
        keys += keys_read(step.base[static_cast<size_t>(b)] + 1) - 1 + step.tentative_of(b) +
                step.rows_of(b);
  } else {
    for (const int32_t pos : step.pos) keys += keys_read(pos + 1);
  }
  usage_[static_cast<size_t>(step.reading.keys)].dense_bytes +=
      residence_->token_bytes(layer) * keys;
}

/// Adds what the rows read beside their lists: the ranges of the plan.
void Cache::count_fixed(const Step& step, std::span<const int32_t* const> lo,
                        KeyUsage& usage) const {
  const Geometry& g = spec_.geometry;
  for (int b = 0; b < step.n_seqs; ++b) {
    const auto fixed_of = [&](int visible) {
      int fixed = 0;
      for (const int32_t* first : lo) fixed += visible - (first == nullptr ? 0 : first[b]);
      return fixed;
    };
    for (int r = step.row_begin[static_cast<size_t>(b)];
         r < step.row_begin[static_cast<size_t>(b) + 1]; ++r) {
      const int visible = step.pos[static_cast<size_t>(r)] + 1, fixed = fixed_of(visible);
      usage.queries += g.n_heads;
      usage.visible += double(g.n_heads) * visible;
      usage.fixed += double(g.n_heads) * fixed;
      if (!step.drafted) usage.key_bytes += g.token_bytes() * fixed;
    }
    // Drafted rows share what they read, as in count_dense.
    if (step.drafted && step.rows_of(b) > 0)
      usage.key_bytes += g.token_bytes() * fixed_of(step.base[static_cast<size_t>(b)] +
                                                    step.tentative_of(b) + step.rows_of(b));
  }
}

}  // namespace tandem::kv
