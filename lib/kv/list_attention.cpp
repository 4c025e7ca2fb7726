#include "kv/list_attention.h"

#include <omp.h>

#include <cmath>

#include "base/check.h"
#include "base/parallel.h"

namespace tandem::kv {
namespace {

constexpr const char* kScratch = "workspace/key_lists";

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

struct ListAttention::Task {
  const Call& call;
  int b, row, kv_head, first_head, n_heads;
};

void ListAttention::plan(MemoryPlan& plan, const Geometry&, size_t scratch_bytes) {
  plan.add(kScratch, aligned(scratch_bytes) * static_cast<size_t>(max_threads()));
}

ListAttention::ListAttention(Arena& arena, const Geometry& g, size_t scratch_bytes)
    : geometry_(g),
      scratch_bytes_(aligned(scratch_bytes)),
      scratch_(static_cast<std::byte*>(arena.take(kScratch))),
      lists_(static_cast<size_t>(max_threads())),
      usage_(static_cast<size_t>(max_threads())) {
  for (std::vector<KeyList>& lists : lists_) lists.resize(static_cast<size_t>(g.group()));
}

void ListAttention::run(const Call& call, KeyUsage& usage) {
  const Step& step = call.step;
  const int group = geometry_.group();
  const int threads = static_cast<int>(lists_.size());
  // A group stays together unless that leaves threads idle.
  int n_heads = group;
  while (!call.selector.takes_groups() && n_heads > 1 &&
         step.n_rows * geometry_.n_kv_heads * (group / n_heads) < threads)
    n_heads = (n_heads + 1) / 2;
  const int parts = (group + n_heads - 1) / n_heads;
  std::vector<int> seq_of_row;
  for (int b = 0; b < step.n_seqs; ++b)
    seq_of_row.insert(seq_of_row.end(), static_cast<size_t>(step.rows_of(b)), b);
  const int n_tasks = step.n_rows * geometry_.n_kv_heads * parts;
#pragma omp parallel num_threads(threads) if (n_tasks > 1)
  {
    const auto thread = static_cast<size_t>(omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < n_tasks; ++i) {
      const int part = i % parts, kv_head = i / parts % geometry_.n_kv_heads;
      const int row = i / parts / geometry_.n_kv_heads, first = part * n_heads;
      const Task task{.call = call,
                      .b = seq_of_row[static_cast<size_t>(row)],
                      .row = row,
                      .kv_head = kv_head,
                      .first_head = kv_head * group + first,
                      .n_heads = std::min(n_heads, group - first)};
      run_task(task, scratch_ + thread * scratch_bytes_, lists_[thread], usage_[thread]);
    }
  }
  for (KeyUsage& u : usage_) {
    usage = usage.plus(u);
    u = {};
  }
}

void ListAttention::run_task(const Task& t, std::byte* scratch, std::span<KeyList> lists,
                             KeyUsage& usage) const {
  const Call& call = t.call;
  const int d = geometry_.head_dim;
  const size_t bytes = dtype_bytes(geometry_.dtype), width = static_cast<size_t>(d);
  const size_t first = static_cast<size_t>(t.row) * static_cast<size_t>(geometry_.n_heads) +
                       static_cast<size_t>(t.first_head);
  const auto b = static_cast<size_t>(t.b);
  const int32_t* pages = call.store.pages(call.step.slot[b]).data();
  const KeyQuery query{.layer = call.layer,
                       .slot = call.step.slot[b],
                       .row = t.row,
                       .position = call.step.pos[static_cast<size_t>(t.row)],
                       .kv_head = t.kv_head,
                       .keys = KeyRows(call.store.k(call.layer), pages, t.kv_head),
                       .first_head = t.first_head,
                       .n_heads = t.n_heads,
                       .q = static_cast<const char*>(call.q.raw()) + first * width * bytes};
  const auto chosen = lists.first(static_cast<size_t>(t.n_heads));
  for (KeyList& list : chosen) {
    list.segments.clear();
    list.n_static = 0;
    list.n_before = 0;
    list.index_bytes = 0;
    list.tail = {};
    list.error = -1;
  }
  call.selector.select_keys(query, scratch, chosen);
  const std::span<const float> log_u = call.selector.log_u();
  for (size_t i = 0; i < chosen.size(); ++i) {
    const KeyList& list = chosen[i];
    ops::attend_list({.o = call.o + (first + i) * width,
                      .lse = call.lse + first + i,
                      .q = static_cast<const char*>(query.q) + i * width * bytes,
                      .k_pool = call.store.k(call.layer).raw(),
                      .v_pool = call.store.v(call.layer).raw(),
                      .pages = pages,
                      .segments = list.segments.data(),
                      .n_segments = static_cast<int>(list.segments.size()),
                      .n_kv_heads = geometry_.n_kv_heads,
                      .kv_head = t.kv_head,
                      .d = d,
                      .dtype = geometry_.dtype,
                      .scale = 1.0f / std::sqrt(static_cast<float>(d)),
                      .log_u = log_u.data(),
                      .log_u_intervals = log_u.empty() ? 0 : static_cast<int>(log_u.size()) - 1,
                      .q_norm = list.q_norm,
                      .q_center = list.q_center});
    if (!list.tail.rows.empty())
      ops::add_means({.o = call.o + (first + i) * width,
                      .lse = call.lse + first + i,
                      .masses = list.tail.masses,
                      .rows = list.tail.rows.data(),
                      .n_rows = static_cast<int>(list.tail.rows.size()),
                      .d = d,
                      .origin = list.tail.origin});
    if (call.on_list != nullptr) (*call.on_list)(t.row, t.first_head + static_cast<int>(i), list);
    const int n = list.n_keys();
    usage.selected += n - list.n_static;
    usage.fixed += list.n_static;
    usage.index_bytes += list.index_bytes;
    if (list.error >= 0) {
      usage.error += list.error;
      usage.with_error += 1;
    }
    usage.key_bytes += 2.0 * (n - list.n_before) * d * static_cast<double>(bytes);
  }
}

}  // namespace tandem::kv
