#include <cstring>

#include "base/check.h"
#include "ffn/policies/policies.h"

namespace tandem::ffn {

void copy(void* to, const void* from, size_t bytes, const Exec& exec) {
  if (exec.on_gpu())
    exec.queue->copy_within(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void LayerSums::fork(int from, int to, const Exec& exec) const {
  const auto layers = static_cast<size_t>(bounds_.shape.n_layers);
  copy(sums_ + to * slot_stride(), sums_ + from * slot_stride(),
       layers * static_cast<size_t>(bounds_.shape.ffn_dim) * sizeof(float), exec);
  copy(rows_ + to * bounds_.shape.n_layers, rows_ + from * bounds_.shape.n_layers,
       layers * sizeof(float), exec);
}

int n_kept(double keep, int ffn_dim) { return static_cast<int>(keep * ffn_dim); }

int n_left(double keep, int ffn_dim) { return ffn_dim - static_cast<int>((1 - keep) * ffn_dim); }

std::unique_ptr<Policy> make_policy(const recipe::Sparse& sparse, const Bounds& bounds) {
  const int ffn_dim = bounds.shape.ffn_dim;
  if (n_kept(sparse.keep, ffn_dim) == 0)
    throw recipe_error("sparse.keep", "is {} and keeps none of a layer's {} FFN neurons",
                       sparse.keep.value, ffn_dim)
        .hint(fmt::format("set at least {:.3g}", 1.0 / ffn_dim));
  switch (sparse.kind) {
    case recipe::SparseKind::none:
      break;
    case recipe::SparseKind::griffin:
      return make_griffin(sparse, bounds);
    case recipe::SparseKind::magnitude:
      return make_magnitude(sparse, bounds);
    case recipe::SparseKind::cats:
    case recipe::SparseKind::cats_threshold:
      return make_cats(sparse, bounds);
  }
  TANDEM_CHECK(false, "unknown FFN policy {}", static_cast<int>(sparse.kind));
  return nullptr;
}

Needs needs_of(const recipe::Sparse& sparse) {
  switch (sparse.kind) {
    case recipe::SparseKind::none:
    case recipe::SparseKind::magnitude:
      return {};
    case recipe::SparseKind::griffin:
      return {.prompts = true, .checks = sparse.refresh > 0, .lists = true};
    case recipe::SparseKind::cats:
      return {.prompts = sparse.weighted,
              .gate_up = sparse.weighted,
              .after_gate = true,
              .by_step = true};
    case recipe::SparseKind::cats_threshold:
      return {.after_gate = true, .by_step = true};
  }
  TANDEM_CHECK(false, "unknown FFN policy {}", static_cast<int>(sparse.kind));
  return {};
}

int set_channels(std::span<const recipe::Sparse> policies, int ffn_dim) {
  if (policies.size() != 1) return 0;
  const Needs needs = needs_of(policies.front());
  const int n = n_kept(policies.front().keep, ffn_dim);
  return needs.lists && !needs.checks && n < ffn_dim ? n : 0;
}

bool reads_weights(const recipe::Sparse& sparse) {
  return sparse.kind == recipe::SparseKind::magnitude || sparse.weighted;
}

}  // namespace tandem::ffn
