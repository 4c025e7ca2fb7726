#pragma once
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine_runs.h"
#include "kv/cache.h"

/// Policies in a real cache without a model: keys, values and queries come from a function of the
/// token, so that thousands of tokens cost nothing and any data can be put before a policy.
namespace tandem::test {

inline recipe::Cache sparse_cache(recipe::CacheKind kind, int sinks = 4, int recent = 16) {
  recipe::Cache c;
  c.kind = kind;
  c.sinks = {sinks};
  c.recent = {recent};
  c.dense_layers = {};
  return c;
}

/// Fills `out` [d] with the query, key or value of a token under a layer and a head.
enum class Part : uint8_t { q, k, v };
using TokenData = std::function<void(Part, int32_t token, int layer, int head, float* out)>;

/// Keys in a cone nearly opposite to the queries, as models have them; every token its own.
inline TokenData cone_data(int d, float sharpness = 1.0f) {
  return [d, sharpness](Part part, int32_t token, int layer, int head, float* out) {
    PhiloxStream draw(
        static_cast<uint64_t>(token),
        static_cast<uint32_t>(layer * 1000 + head * 10) + static_cast<uint32_t>(part));
    for (int c = 0; c < d; ++c) {
      const auto x = static_cast<float>(2 * draw.uniform() - 1);
      const float axis = c % 4 == 0 ? 1.0f : 0.0f;
      out[c] = part == Part::v ? x : part == Part::k ? 2 * x - 2 * axis : sharpness * (x + axis);
    }
  };
}

/// Layers from `from` on have a window.
inline kv::Geometry with_window(kv::Geometry g, int window, int from) {
  if (window == 0) return g;
  g.layers.assign(static_cast<size_t>(g.n_layers), g.at(0));
  for (int layer = from; layer < g.n_layers; ++layer)
    g.layers[static_cast<size_t>(layer)].window = window;
  return g;
}

class PolicyRig {
 public:
  struct Shape {
    kv::Geometry geometry = {
        .n_layers = 2, .n_heads = 6, .n_kv_heads = 2, .head_dim = 32, .dtype = DType::f32};
    int max_seqs = 4;
    int max_prompts = 0;
    int max_extended = 0;
    int max_tokens = 1024;
    int max_appended = 0;
    int max_rows = 1024;
    int max_draft_rows = 64;
    int ring_eighths = 8;
    int64_t total_tokens = 0;  // 0 = all sequences at full length
  };

  PolicyRig(const Shape& shape, std::vector<recipe::Cache> policies, TokenData data)
      : spec_{.geometry = shape.geometry,
              .max_seqs = shape.max_seqs,
              .max_prompts = shape.max_prompts,
              .max_extended = shape.max_extended,
              .max_tokens = shape.max_tokens,
              .total_tokens = shape.total_tokens > 0 ? shape.total_tokens
                                                     : int64_t{shape.max_tokens} * shape.max_seqs,
              .max_appended = shape.max_appended,
              .max_rows = shape.max_rows,
              .max_draft_rows = shape.max_draft_rows,
              .ring_eighths = shape.ring_eighths,
              .policies = std::move(policies)},
        data_(std::move(data)),
        arena_(plan_of(spec_)),
        rope_({}, shape.max_tokens, shape.geometry.head_dim, arena_),
        cache(spec_, arena_, {&rope_, 1}) {}

  /// Writes a prompt's keys and values in calls of `chunk` tokens.
  void prefill(int slot, std::span<const int32_t> ids, size_t chunk = 0) {
    if (chunk == 0) chunk = static_cast<size_t>(spec_.max_rows);
    if (cache.residence().facts().by_layers) return prefill_by_layers(slot, ids, chunk);
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      const auto part = ids.subspan(begin, std::min(chunk, ids.size() - begin));
      const kv::SeqRows rows[] = {
          {slot, static_cast<int>(part.size()), begin + part.size() == ids.size()}};
      const kv::Step step = cache.begin({.phase = kv::Phase::prefill, .rows = rows});
      write(step, part);
      if (cache.queries() != nullptr) write_queries(step, part);
      cache.commit(step);
    }
  }
  /// A new sequence with a prompt.
  int sequence(std::span<const int32_t> ids, int policy = 0) {
    const int slot = cache.create(policy);
    prefill(slot, ids);
    return slot;
  }

  /// Attention of one step: for each row its outputs in all layers, [layers, heads, d].
  std::vector<Row> attend(const kv::Step& step, std::span<const int32_t> ids) {
    const kv::Geometry& g = spec_.geometry;
    write(step, ids);
    const size_t values = static_cast<size_t>(g.n_heads * g.head_dim);
    std::vector<Row> rows(ids.size());
    for (int layer = 0; layer < g.n_layers; ++layer) {
      const Row attended = attend_layer(layer, step, queries(layer, ids));
      for (size_t r = 0; r < ids.size(); ++r)
        rows[r].insert(rows[r].end(), attended.begin() + static_cast<std::ptrdiff_t>(r * values),
                       attended.begin() + static_cast<std::ptrdiff_t>((r + 1) * values));
    }
    return rows;
  }
  /// Queries of tokens, [rows, heads, d].
  Row queries(int layer, std::span<const int32_t> ids) const {
    const kv::Geometry& g = spec_.geometry;
    Row q(ids.size() * static_cast<size_t>(g.n_heads * g.head_dim));
    float* to = q.data();
    for (const int32_t id : ids)
      for (int head = 0; head < g.n_heads; ++head, to += g.head_dim)
        data_(Part::q, id, layer, head, to);
    return q;
  }
  /// Attention of one layer over rows of queries [rows, heads, d].
  Row attend_layer(int layer, const kv::Step& step, const Row& q) {
    const kv::Geometry& g = spec_.geometry;
    Row out(q.size());
    const auto tensor = [&](std::vector<std::byte>& bytes, const Row& from) {
      bytes.resize(from.size() * dtype_bytes(g.dtype));
      for (size_t i = 0; i < from.size(); ++i) put(bytes.data(), i, from[i]);
      return Tensor(bytes.data(), g.dtype, {step.n_rows, g.n_heads, g.head_dim});
    };
    std::vector<std::byte> q_bytes, out_bytes;
    const Tensor o = tensor(out_bytes, out);
    cache.attend(layer, step, o, tensor(q_bytes, q));
    kv::read_vector(o.raw(), g.dtype, out);
    return out;
  }
  /// One extend step of one sequence.
  std::vector<Row> extend(int slot, std::span<const int32_t> ids) {
    const kv::SeqRows rows[] = {{slot, static_cast<int>(ids.size())}};
    const kv::Step step = cache.begin({.rows = rows});
    std::vector<Row> out = attend(step, ids);
    cache.commit(step);
    return out;
  }
  std::vector<Row> extend_each(int slot, std::span<const int32_t> ids) {
    std::vector<Row> rows;
    for (size_t i = 0; i < ids.size(); ++i) rows.push_back(extend(slot, ids.subspan(i, 1))[0]);
    return rows;
  }
  /// Generated tokens whose attention nobody asks for.
  void append(int slot, std::span<const int32_t> ids) {
    const kv::SeqRows rows[] = {{slot, static_cast<int>(ids.size())}};
    const kv::Step step = cache.begin({.rows = rows});
    write(step, ids);
    if (cache.queries() != nullptr) write_queries(step, ids);
    cache.commit(step);
  }

  /// What a policy chooses for the query heads of a KV head, and whether it kept to its scratch.
  struct Selection {
    std::vector<std::byte> memory;
    std::vector<kv::KeyList> lists;
    bool inside = false;
  };
  Selection select(int slot, int position, int layer, int kv_head, std::span<const float> q) {
    constexpr size_t kGuard = 4096;
    constexpr std::byte kMark{0xa5};
    const kv::Geometry& g = spec_.geometry;
    const int group = g.n_heads / g.n_kv_heads;
    std::vector<std::byte> q_bytes(q.size() * dtype_bytes(g.dtype));
    for (size_t i = 0; i < q.size(); ++i) put(q_bytes.data(), i, q[i]);
    const kv::KeySelector& selector = *cache.policy_of(slot).selector();
    Selection s;
    s.memory.resize(64 + selector.scratch_bytes() + kGuard);
    std::byte* scratch =
        s.memory.data() + (64 - reinterpret_cast<uintptr_t>(s.memory.data()) % 64) % 64;
    std::fill_n(scratch + selector.scratch_bytes(), kGuard, kMark);
    s.lists.resize(static_cast<size_t>(group));
    selector.select_keys(
        {.layer = layer,
         .slot = slot,
         .position = position,
         .kv_head = kv_head,
         .keys = kv::KeyRows(cache.k(layer), cache.store().pages(slot).data(), kv_head),
         .first_head = kv_head * group,
         .n_heads = group,
         .q = q_bytes.data()},
        scratch, s.lists);
    s.inside =
        std::all_of(scratch + selector.scratch_bytes(), scratch + selector.scratch_bytes() + kGuard,
                    [&](std::byte b) { return b == kMark; });
    return s;
  }

 private:
  static MemoryPlan plan_of(const kv::Cache::Spec& spec) {
    MemoryPlan plan;
    ops::RopeTable::plan(spec.max_tokens, spec.geometry.head_dim, plan);
    kv::Cache::plan(spec, plan);
    return plan;
  }
  void put(std::byte* to, size_t i, float x) const {
    if (spec_.geometry.dtype == DType::f32)
      reinterpret_cast<float*>(to)[i] = x;
    else
      reinterpret_cast<bf16*>(to)[i] = to_bf16(x);
  }
  void prefill_by_layers(int slot, std::span<const int32_t> ids, size_t chunk) {
    std::vector<std::vector<kv::SeqRows>> rows;
    std::vector<std::span<const int32_t>> parts;
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      parts.push_back(ids.subspan(begin, std::min(chunk, ids.size() - begin)));
      rows.push_back({{slot, static_cast<int>(parts.back().size()), begin + chunk >= ids.size()}});
    }
    std::vector<kv::Step> steps = cache.begin_prompts(rows);
    for (size_t i = 0; i < steps.size(); ++i)
      if (cache.queries() != nullptr) write_queries(steps[i], parts[i]);
    for (int layer = 0; layer < spec_.geometry.n_layers; ++layer) {
      cache.residence().begin_layer(layer, steps);
      for (size_t i = 0; i < steps.size(); ++i) {
        cache.begin_step(layer, steps, i);
        write_layer(layer, steps[i], parts[i]);
      }
      cache.residence().end_layer(layer, steps);
    }
    cache.residence().end_prompts();
    for (const kv::Step& step : steps) cache.commit(step);
  }
  void write(const kv::Step& step, std::span<const int32_t> ids) {
    for (int layer = 0; layer < spec_.geometry.n_layers; ++layer) write_layer(layer, step, ids);
  }
  void write_layer(int layer, const kv::Step& step, std::span<const int32_t> ids) {
    const kv::Geometry& g = spec_.geometry;
    Row values(static_cast<size_t>(g.head_dim));
    for (size_t r = 0; r < ids.size(); ++r)
      for (int head = 0; head < g.n_kv_heads; ++head)
        for (const Part part : {Part::k, Part::v}) {
          data_(part, ids[r], layer, head, values.data());
          const kv::LayerKeys keys = cache.keys(layer, step);
          const Tensor& pool = part == Part::k ? keys.k : keys.v;
          const size_t row = static_cast<size_t>(
              (keys.step.row_page[r] * g.n_kv_heads + head) * kPageTokens + step.row_in_page[r]);
          for (size_t c = 0; c < values.size(); ++c)
            put(static_cast<std::byte*>(pool.raw()), row * values.size() + c, values[c]);
        }
  }

  /// What attention of the rows leaves in the ring of queries, without the attention.
  void write_queries(const kv::Step& step, std::span<const int32_t> ids) {
    const kv::Geometry& g = spec_.geometry;
    for (int layer = 0; layer < g.n_layers; ++layer) {
      const Row q = queries(layer, ids);
      std::vector<std::byte> bytes(q.size() * dtype_bytes(g.dtype));
      for (size_t i = 0; i < q.size(); ++i) put(bytes.data(), i, q[i]);
      cache.queries()->write(layer, step,
                             Tensor(bytes.data(), g.dtype, {step.n_rows, g.n_heads, g.head_dim}));
    }
  }

  kv::Cache::Spec spec_;
  TokenData data_;
  Arena arena_;
  ops::RopeTable rope_;

 public:
  kv::Cache cache;
};

/// Tokens first, first + 1, ...
inline Ids tokens(int first, int n) {
  Ids ids;
  for (int i = 0; i < n; ++i) ids.push_back(first + i);
  return ids;
}

inline bool all_finite(const std::vector<Row>& rows) {
  for (const Row& row : rows)
    for (const float x : row)
      if (!std::isfinite(x)) return false;
  return true;
}
inline double max_difference(const std::vector<Row>& a, const std::vector<Row>& b) {
  double worst = a.size() == b.size() ? 0 : 1e30;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = worse(worst, max_difference(a[i], b[i]));
  return worst;
}

}  // namespace tandem::test
