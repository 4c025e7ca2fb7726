#include "kv/hosted/host_attention.h"

#include "base/check.h"
#include "kv/policies/scratch.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

size_t n_lists(const HostAttention::Spec& s) {
  return s.list_keys == 0 ? 0
                          : static_cast<size_t>(s.max_rows) *
                                static_cast<size_t>(s.geometry.n_heads / s.list_heads);
}

/// Pinned memory.
struct Staging {
  ScratchCutter cutter;
  float *o, *lse;
  char* q;
  int32_t *ids, *count;

  Staging(std::byte* base, const HostAttention::Spec& s) : cutter(base) {
    const size_t heads = static_cast<size_t>(s.max_rows) * static_cast<size_t>(s.geometry.n_heads),
                 elements = heads * static_cast<size_t>(s.geometry.head_dim);
    o = cutter.take<float>(elements);
    lse = cutter.take<float>(heads);
    q = cutter.take<char>(elements * dtype_bytes(s.geometry.dtype));
    ids = cutter.take<int32_t>(n_lists(s) * static_cast<size_t>(s.list_keys));
    count = cutter.take<int32_t>(n_lists(s));
  }
};

size_t pinned_bytes(const HostAttention::Spec& s) { return Staging(nullptr, s).cutter.bytes(); }

}  // namespace

void HostAttention::plan(const Spec& spec, MemoryPlan& plan) {
  ops::Mailbox::plan(spec.name, spec.device, plan);
  plan.add(spec.name + ".staging", pinned_bytes(spec));
  if (n_lists(spec) > 0)
    plan.add(spec.name + ".kept", n_lists(spec) * sizeof(int32_t), spec.device);
}

HostAttention::HostAttention(const Spec& spec, Arena& arena, const Exec& exec)
    : spec_(spec),
      exec_(exec),
      mailbox_(spec.name, arena, exec),
      pinned_(pinned_bytes(spec)),
      kept_(n_lists(spec) > 0 ? static_cast<int32_t*>(arena.take(spec.name + ".kept")) : nullptr) {
  const Staging s(pinned_.data(), spec);
  places_ = {.q = s.q, .o = s.o, .lse = s.lse};
  ids_ = s.ids;
  count_ = s.count;
  handed_.ids = ids_;
  handed_.count = count_;
  handed_.stride = spec.list_keys;
  handed_.n_heads = spec.geometry.n_heads;
  handed_.heads = spec.list_heads;
}

QueryLists HostAttention::hand_over(const QueryLists& lists, Range rows, double share) {
  TANDEM_CHECK(lists.stride == spec_.list_keys && lists.heads == spec_.list_heads,
               "lists of {} keys and {} heads differ from the planned {} and {}", lists.stride,
               lists.heads, spec_.list_keys, spec_.list_heads);
  const int a_row = spec_.geometry.n_heads / spec_.list_heads;
  const int64_t first = int64_t{rows.begin} * a_row;
  ops::hand_over_lists({.host_ids = ids_ + first * spec_.list_keys,
                        .host_count = count_ + first,
                        .kept = kept_ + first,
                        .ids = lists.ids,
                        .count = lists.count,
                        .stride = lists.stride,
                        .n_lists = (rows.end - rows.begin) * a_row,
                        .host_share = static_cast<float>(share)},
                       exec_.stream());
  QueryLists kept = lists;
  kept.count = kept_ + first;
  return kept;
}

void HostAttention::ask(const Tensor& q) {
  TANDEM_CHECK(q.rows() <= spec_.max_rows, "{} rows exceed the planned {}", q.rows(),
               spec_.max_rows);
  const MailboxPart parts[] = {{const_cast<void*>(places_.q), q.raw(), q.bytes()}};
  mailbox_.post(parts);
}

void HostAttention::await(float* o, float* lse, int64_t n_rows) {
  const auto heads = static_cast<size_t>(n_rows * spec_.geometry.n_heads);
  const size_t bytes = heads * sizeof(float);
  const MailboxPart parts[] = {{o, places_.o, bytes * static_cast<size_t>(spec_.geometry.head_dim)},
                               {lse, places_.lse, bytes}};
  mailbox_.await(parts);
}

void HostAttention::serve(const Interrupted& interrupted,
                          const std::function<void(const Request&)>& attend) {
  mailbox_.receive(interrupted);
  attend(places_);
  mailbox_.answer();
}

void HostAttention::Handed::select_keys(const KeyQuery& query, std::byte*,
                                        std::span<KeyList> lists) const {
  const int a_row = n_heads / heads;
  for (size_t h = 0; h < lists.size(); ++h) {
    const int64_t list =
        int64_t{query.row} * a_row + (query.first_head + static_cast<int>(h)) / heads;
    lists[h].segments.push_back({ids + list * stride, count[list], nullptr, nullptr});
    // Heads that share a list read its rows together.
    if (heads > 1 && h > 0) lists[h].n_before = count[list];
  }
}

}  // namespace tandem::kv
