#include "kv/pages.h"

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
      k_(static_cast<char*>(arena.take(prefix + "/k"))),
      v_(static_cast<char*>(arena.take(prefix + "/v"))) {}

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

}  // namespace tandem::kv
