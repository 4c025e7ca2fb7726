#pragma once
#include <memory>
#include <set>
#include <vector>

#include "base/rng.h"
#include "ffn/policy.h"

namespace tandem::test {

/// An FFN policy of a small shape and the memory that it asked for, fed with rows by hand.
struct PolicyRig {
  ffn::Bounds bounds;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<ffn::Policy> policy;

  explicit PolicyRig(const recipe::Sparse& sparse, int ffn_dim = 172, int max_seqs = 3)
      : bounds{.shape = {.n_layers = 2, .dim = 8, .ffn_dim = ffn_dim, .dtype = DType::f32},
               .max_seqs = max_seqs} {
    policy = ffn::make_policy(sparse, bounds);
    MemoryPlan plan;
    policy->plan(plan, "index/test");
    arena = std::make_unique<Arena>(std::move(plan));
    policy->allocate(*arena, "index/test");
    policy->run_on({});
  }

  /// A step of a slot's rows, as many for each.
  static kv::Step step(kv::Phase phase, const std::vector<int32_t>& slots, int rows_each) {
    kv::Step s;
    s.phase = phase;
    s.slot = slots;
    s.n_seqs = static_cast<int>(slots.size());
    s.n_rows = s.n_seqs * rows_each;
    for (int b = 0; b <= s.n_seqs; ++b) s.row_begin.push_back(b * rows_each);
    s.base.resize(slots.size());
    s.point_to_host();
    return s;
  }
  /// Rows of a prompt of a slot, in layer 0 and, times two, in layer 1.
  void observe(int slot, const std::vector<float>& rows,
               kv::Phase phase = kv::Phase::prefill) const {
    const int n = static_cast<int>(rows.size()) / bounds.shape.ffn_dim;
    const kv::Step s = step(phase, {slot}, n);
    std::vector<float> of_layer = rows;
    for (int layer = 0; layer < bounds.shape.n_layers; ++layer) {
      policy->observe(layer, s,
                      {.product = {of_layer.data(), DType::f32, {n, bounds.shape.ffn_dim}}});
      for (float& x : of_layer) x *= 2;
    }
  }
  std::vector<int32_t> list(int layer, int slot) const {
    const kv::Step s = step(kv::Phase::extend, {slot}, 1);
    const ffn::Selection chosen = policy->select(layer, s, {});
    const int64_t at = chosen.kind == ffn::Selection::Kind::sequences ? slot : 0;
    const int32_t* ids = chosen.list.ids + at * chosen.id_stride;
    return {ids, ids + chosen.list.n[at * chosen.n_stride]};
  }
  std::vector<int32_t> list(const Tensor& gate) const {
    const kv::Step s = step(kv::Phase::extend, {0}, static_cast<int>(gate.rows()));
    const ffn::Selection chosen = policy->select(0, s, gate);
    return {chosen.list.ids, chosen.list.ids + *chosen.list.n};
  }
};

/// Numbers around 0, of very different sizes by column.
inline std::vector<float> random_rows(int n_rows, int columns, uint64_t seed) {
  PhiloxStream draw(seed);
  std::vector<float> scale, rows;
  const auto number = [&] { return static_cast<float>(draw.below(20001)) / 10000 - 1; };
  for (int c = 0; c < columns; ++c) scale.push_back(number() * number());
  for (int r = 0; r < n_rows; ++r)
    for (int c = 0; c < columns; ++c) rows.push_back(number() * scale[static_cast<size_t>(c)]);
  return rows;
}

}  // namespace tandem::test
