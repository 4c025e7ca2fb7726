#include "kv/host_attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace tandem::kv {
namespace {

size_t heads(const HostAttention::Spec& s) {
  return static_cast<size_t>(s.max_rows) * static_cast<size_t>(s.geometry.n_heads);
}

size_t elements(const HostAttention::Spec& s) {
  return heads(s) * static_cast<size_t>(s.geometry.head_dim);
}

size_t bytes_of(const HostAttention::Spec& s) {
  return elements(s) * (sizeof(float) + dtype_bytes(s.geometry.dtype)) + heads(s) * sizeof(float);
}

}  // namespace

void HostAttention::plan(const Spec& spec, MemoryPlan& plan) {
  plan.add("workspace/host attention/staging", bytes_of(spec));
}

HostAttention::HostAttention(const Spec& spec, const Exec& exec)
    : spec_(spec), exec_(exec), pinned_(bytes_of(spec)) {
  o_ = reinterpret_cast<float*>(pinned_.data());
  lse_ = o_ + elements(spec);
  q_ = reinterpret_cast<char*>(lse_ + heads(spec));
}

void HostAttention::fetch(const Tensor& q) {
  TANDEM_CHECK(q.rows() <= spec_.max_rows, "{} rows, planned for {}", q.rows(), spec_.max_rows);
  exec_.queue->copy_out(q_, q.raw(), q.bytes());
  fetched_.record(*exec_.queue);
}

void HostAttention::serve(ListAttention& lists, const ListAttention::Call& call, KeyUsage& usage) {
  const auto rows = static_cast<size_t>(call.q.rows()),
             n_heads = static_cast<size_t>(spec_.geometry.n_heads),
             width = n_heads * static_cast<size_t>(spec_.geometry.head_dim);
  const Tensor q(q_, call.q.dtype(), {call.q.size(0), call.q.size(1), call.q.size(2)});
  sent_.wait();  // of the layer before
  fetched_.wait();
  lists.run({.selector = call.selector,
             .layer = call.layer,
             .step = call.step,
             .store = call.store,
             .q = q,
             .o = o_,
             .lse = lse_,
             .on_list = call.on_list},
            usage);
  const auto used = static_cast<size_t>(call.step.n_rows);
  std::fill(o_ + used * width, o_ + rows * width, 0.0f);
  std::fill(lse_ + used * n_heads, lse_ + rows * n_heads, -std::numeric_limits<float>::infinity());
  exec_.queue->copy_in(call.o, o_, rows * width * sizeof(float));
  exec_.queue->copy_in(call.lse, lse_, rows * n_heads * sizeof(float));
  sent_.record(*exec_.queue);
}

}  // namespace tandem::kv
