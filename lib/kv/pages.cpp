#include "kv/pages.h"

#include <cstring>

#include "base/check.h"
#include "base/page.h"

namespace tandem::kv {

size_t Pages::Spec::page_bytes() const {
  return size_t{2} * static_cast<size_t>(n_layers) * static_cast<size_t>(n_kv_heads) * kPageTokens *
         static_cast<size_t>(head_dim) * dtype_bytes(dtype);
}

void Pages::plan(const Spec& spec, const std::string& prefix, MemoryPlan& plan) {
  const size_t half = spec.page_bytes() / 2 * static_cast<size_t>(spec.n_pages);
  plan.add(prefix + "/k", half, spec.device);
  plan.add(prefix + "/v", half, spec.device);
}

Pages::Pages(const Spec& spec, const std::string& prefix, Arena& arena)
    : spec_(spec),
      // All layers of the model may have their keys elsewhere.
      k_(spec.n_layers > 0 ? static_cast<char*>(arena.take(prefix + "/k")) : nullptr),
      v_(spec.n_layers > 0 ? static_cast<char*>(arena.take(prefix + "/v")) : nullptr) {}

Tensor Pages::pool(char* base, int i) const {
  const size_t layer_bytes = spec_.page_bytes() / 2 / static_cast<size_t>(spec_.n_layers) *
                             static_cast<size_t>(spec_.n_pages);
  return {base + static_cast<size_t>(i) * layer_bytes,
          spec_.dtype,
          {spec_.n_pages, spec_.n_kv_heads, kPageTokens, spec_.head_dim},
          spec_.device};
}

PagePools Pages::pools() const {
  return {.k = k_,
          .v = v_,
          .n_layers = spec_.n_layers,
          .n_pages = spec_.n_pages,
          .n_kv_heads = spec_.n_kv_heads,
          .row_bytes = spec_.head_dim * static_cast<int>(dtype_bytes(spec_.dtype))};
}

void copy_bytes(const Tensor& to, const Tensor& from, cuda::Queue* queue) {
  TANDEM_CHECK(to.bytes() == from.bytes(), "{} bytes for {}", from.bytes(), to.bytes());
  const bool to_gpu = to.device().kind == Device::Kind::cuda,
             from_gpu = from.device().kind == Device::Kind::cuda;
  if (to_gpu && from_gpu)
    queue->copy_within(to.raw(), from.raw(), to.bytes());
  else if (to_gpu)
    queue->copy_in(to.raw(), from.raw(), to.bytes());
  else if (from_gpu)
    queue->copy_out(to.raw(), from.raw(), to.bytes());
  else
    std::memcpy(to.raw(), from.raw(), to.bytes());
}

}  // namespace tandem::kv
