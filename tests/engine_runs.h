#pragma once
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "decode/engine.h"
#include "source_dir.h"
#include "worst.h"

/// Short runs of small models, for tests that compare one way of computing with another.
namespace tandem::test {

using Ids = std::vector<int32_t>;
using Row = std::vector<float>;

inline std::filesystem::path small_model(const std::string& name) {
  return source_dir() / "tests/data/models" / name;
}
inline std::filesystem::path tiny_model(const std::string& name) {
  return source_dir() / "recipes/models" / name;
}

struct Setup {
  DType compute = DType::f32;
  int chunk = 512;
  int max_seqs = 4;
  int max_tokens = 512;
  std::vector<recipe::Cache> caches = {{}};
  std::vector<recipe::Sparse> sparse = {};
  int logit_rows = 128;
  int64_t total_tokens = 0;  // 0 = all sequences at full length
  Device device = {};
  int n_streamed = 0;    // layers in host memory, or parts where channels are divided
  int set_channels = 0;  // 0: they are not
  bool host_embedding = false;
  int prompt_passes = 1;
  int ring_eighths = decode::Savings::kWholeRing;
  recipe::PrefillOrder order = recipe::PrefillOrder::chunks;
  std::shared_ptr<cuda::Queue> queue = nullptr;  // of another engine on the GPU
};

inline decode::EngineSpec engine_spec(const Setup& s) {
  return {.compute = s.compute,
          .prefill_chunk = s.chunk,
          .prefill_order = s.order,
          .max_seqs = s.max_seqs,
          .max_tokens = s.max_tokens,
          .total_tokens = s.total_tokens > 0 ? s.total_tokens : int64_t{s.max_tokens} * s.max_seqs,
          .max_draft_rows = s.logit_rows,
          .max_tree_rows = s.logit_rows,
          .max_logit_rows = s.logit_rows,
          .device = s.device,
          .savings = {.host_embedding = s.host_embedding,
                      .prompt_passes = s.prompt_passes,
                      .n_streamed = s.n_streamed,
                      .set_channels = s.set_channels,
                      .ring_eighths = s.ring_eighths},
          .caches = s.caches,
          .sparse = s.sparse};
}

inline std::unique_ptr<decode::Engine> make_engine(const std::filesystem::path& folder,
                                                   const Setup& s = {}) {
  return std::make_unique<decode::Engine>(decode::open_model(folder.string(), 0), engine_spec(s),
                                          nullptr, s.queue);
}

inline recipe::Cache streaming(int sinks, int recent, bool reposition = false) {
  recipe::Cache c;
  c.kind = recipe::CacheKind::streaming;
  c.sinks = {sinks};
  c.recent = {recent};
  c.reposition = reposition;
  return c;
}

inline recipe::Cache snapkv(int budget, int window) {
  recipe::Cache c;
  c.kind = recipe::CacheKind::snapkv;
  c.snapkv = {.budget = {budget}, .window = window, .refresh = {}};
  return c;
}
inline recipe::Cache retrieval(int budget, int chunk) {
  recipe::Cache c;
  c.kind = recipe::CacheKind::retrieval;
  c.retrieval.budget = {budget};
  c.retrieval.chunk = chunk;
  return c;
}
inline recipe::Cache verified(int budget, int window) {
  recipe::Cache cache;
  cache.kind = recipe::CacheKind::verified;
  cache.verified = {.budget = {budget}, .window = window};
  return cache;
}

/// `n` ids that mean nothing but are always the same.
inline Ids random_ids(const decode::Engine& engine, int n, uint64_t seed) {
  PhiloxStream draw(seed);
  Ids ids;
  for (int i = 0; i < n; ++i)
    ids.push_back(
        static_cast<int32_t>(draw.below(static_cast<uint32_t>(engine.config().vocab_size))));
  return ids;
}

inline Row row_of(const Tensor& logits, int64_t i) {
  const float* row = logits.slice(i, 1).as<float>();
  return {row, row + logits.row_size()};
}

/// Prefills in calls of `chunk` tokens (0 = one call); logits of the last token.
inline Row prefill(decode::Engine& engine, int slot, std::span<const int32_t> ids,
                   size_t chunk = 0) {
  Row last;
  if (chunk == 0) chunk = ids.size();
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const size_t n = std::min(chunk, ids.size() - begin);
    const decode::SeqTokens part[] = {{slot, ids.subspan(begin, n), begin + n == ids.size()}};
    engine.prefill(part, [&](std::span<const size_t>, const Tensor& logits) {
      last = row_of(engine.on_host(logits), 0);
    });
  }
  return last;
}

/// One extend step of one sequence; logits of its last token.
inline Row extend(decode::Engine& engine, int slot, std::span<const int32_t> ids) {
  const decode::SeqTokens part[] = {{slot, ids, true}};
  return row_of(engine.extend(part), 0);
}

/// Extends token by token; logits of each.
inline std::vector<Row> extend_each(decode::Engine& engine, int slot,
                                    std::span<const int32_t> ids) {
  std::vector<Row> rows;
  for (size_t i = 0; i < ids.size(); ++i) rows.push_back(extend(engine, slot, ids.subspan(i, 1)));
  return rows;
}

/// Logits of the last prompt token, prefilled in calls of `chunk` tokens, and of each token after
/// it: a sequence that comes and goes alone.
inline std::vector<Row> run_alone(decode::Engine& engine, const Ids& prompt,
                                  std::span<const int32_t> after, size_t chunk = 0) {
  const int slot = engine.cache().create();
  std::vector<Row> rows = {prefill(engine, slot, prompt, chunk)};
  for (Row& row : extend_each(engine, slot, after)) rows.push_back(std::move(row));
  engine.cache().release(slot);
  return rows;
}

/// Bit for bit.
inline bool same(const Row& a, const Row& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same(const std::vector<Row>& a, const std::vector<Row>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Row& x, const Row& y) { return same(x, y); });
}

inline double max_difference(const Row& a, const Row& b) {
  double worst = a.size() == b.size() ? 0 : 1e30;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = worse(worst, double{std::abs(a[i] - b[i])});
  return worst;
}

/// From a GPU's memory where there is a queue.
inline void copy_bytes(cuda::Queue* queue, void* to, const void* from, size_t n) {
  if (queue == nullptr) {
    std::memcpy(to, from, n);
    return;
  }
  queue->copy_out(to, from, n);
  queue->wait();
}

/// Which tokens of a sequence still have K and V, as [begin, end) ranges.
inline std::vector<std::pair<int, int>> live_ranges(const kv::Cache& cache, int slot) {
  std::vector<std::pair<int, int>> ranges;
  const int length = cache.length(slot);
  for (int begin = 0; begin < length; begin += kPageTokens) {
    if (cache.store().page(slot, begin / kPageTokens) < 0) continue;
    const int end = std::min(begin + kPageTokens, length);
    if (!ranges.empty() && ranges.back().second == begin)
      ranges.back().second = end;
    else
      ranges.emplace_back(begin, end);
  }
  return ranges;
}

/// K and V of the committed tokens of a sequence that are alive, in order.
inline std::string committed_bytes(const kv::Cache& cache, int slot) {
  std::string bytes;
  const kv::Geometry& g = cache.geometry();
  const size_t row = static_cast<size_t>(g.head_dim) * dtype_bytes(g.dtype);
  cuda::Queue* queue = cache.store().exec().queue;
  for (const auto& [begin, end] : live_ranges(cache, slot))
    for (int token = begin; token < end; ++token)
      for (int layer = 0; layer < g.n_layers; ++layer)
        for (const Tensor& pool : {cache.k(layer), cache.v(layer)}) {
          const int32_t id = cache.whole_store(layer).page(slot, token / kPageTokens);
          if (id < 0) continue;  // before the layer's window
          const Tensor page = pool.slice(id, 1);
          for (int head = 0; head < g.n_kv_heads; ++head) {
            const char* at = static_cast<const char*>(page.raw()) +
                             static_cast<size_t>(head * kPageTokens + token % kPageTokens) * row;
            bytes.resize(bytes.size() + row);
            copy_bytes(queue, bytes.data() + bytes.size() - row, at, row);
          }
        }
  return bytes;
}

}  // namespace tandem::test
