#include "kv/hosted/step_traffic.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::kv {
namespace {

using recipe::Attend;

/// Bytes of a token's key and value in host memory, in a layer, and of the lines there that a list
/// reads of it: all scales of a token are in one.
struct HostedToken {
  double bytes, lines;
};

HostedToken hosted_token(const recipe::Cache& cache, const Geometry& g) {
  constexpr double kLine = 64;
  if (!cache.is_eight_bit()) return {g.token_bytes(), g.token_bytes()};
  const double numbers = 2.0 * g.head_dim, scales = 2 * sizeof(float);
  return {g.n_kv_heads * (numbers + scales), g.n_kv_heads * (numbers + kLine)};
}

/// One sequence's keys in one hosted layer, bytes of all KV heads but for `list_ids`.
struct LayerKeys {
  double far = 0;       // in host memory
  double near = 0;      // on the GPU
  double chosen = 0;    // of far, read by the step
  double lines = 0;     // of chosen, as the CPU reads them row by row
  double index = 0;     // read to choose them
  double scores = 0;    // of all query heads, not bytes: that codes give
  double list_ids = 0;  // of all query heads
};

LayerKeys chosen_keys(const Policy& policy, const recipe::Cache& cache, const Geometry& g,
                      int layer, int length) {
  const KeysRead keys = policy.keys_read(layer, length);
  if (keys.chosen == 0) return {.near = g.token_bytes() * length};  // too short for an index
  // Sinks are read with every list, from host memory.
  const double near = keys.fixed - std::min<double>(length, static_cast<double>(cache.sinks));
  const HostedToken token = hosted_token(cache, g);
  const double chosen = keys.total - near;
  const HostedIndex::Choosing choosing = policy.hosted()->choosing(layer, length);
  return {.far = token.bytes * (length - near),
          .near = g.token_bytes() * near,
          .chosen = token.bytes * chosen,
          .lines = token.lines * chosen,
          .index = choosing.bytes,
          .scores = choosing.scores,
          .list_ids = keys.chosen * g.n_heads * sizeof(int32_t)};
}

/// Queries that the CPU gets for a layer, and results that it returns.
double small_bytes(const Geometry& g) {
  const double q = g.head_dim * static_cast<double>(dtype_bytes(g.dtype));
  const double o_and_lse = (g.head_dim + 1.0) * sizeof(float);
  return g.n_heads * (q + o_and_lse);
}

/// Keys that are chosen, read by the CPU, over the link, or by both.
void add_chosen(const LayerKeys& k, const recipe::Cache& cache, const Geometry& g, StepTraffic& t) {
  const Attend by = cache.attends();
  const double cpu_share = by == Attend::both ? cache.cpu_share : by == Attend::cpu ? 1 : 0;
  t.cpu_rows += cpu_share * k.lines;
  t.link_rows += (1 - cpu_share) * k.chosen;
  if (cpu_share > 0) t.link_small += small_bytes(g);
  if (!cache.chooses_on_cpu()) {
    ++t.choosing_layers;
    t.gpu_index += k.index;
    t.link_small += cpu_share * k.list_ids;
  } else if (k.scores == 0) {
    t.cpu_rows += k.index;  // a bucket here, a norm there
  } else {
    t.cpu_codes += k.index;
    t.cpu_scores += k.scores;
  }
}

/// All keys of a layer, read where they are or copied to the GPU.
void add_whole(const LayerKeys& k, const recipe::Cache& cache, const Geometry& g, StepTraffic& t) {
  if (cache.attends() == Attend::cpu) {
    t.cpu_stream += k.chosen;
    t.link_small += small_bytes(g);
  } else {
    t.link_stream += k.chosen;
    t.gpu_ring += 2 * k.chosen;
  }
}

}  // namespace

StepTraffic step_traffic(const recipe::Cache& cache, const Geometry& g, int length, int batch) {
  TANDEM_CHECK(cache.is_hosted(), "traffic is only calculated for a KV cache in host memory");
  const auto policy = make_policy(cache, {.geometry = g, .max_tokens = length, .hosted = true});
  const bool reads_all = policy->needs().reads_all;
  const std::vector<int> hosted = policy->hosted()->hosted_layers();
  StepTraffic t{.hosted_layers = static_cast<int>(hosted.size())};
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (!std::ranges::binary_search(hosted, layer)) {
      t.gpu_keys += g.token_bytes() * policy->keys_read(layer, length).total;
      continue;
    }
    const double all = g.token_bytes() * g.visible(layer, length);
    const LayerKeys k = reads_all ? LayerKeys{.far = all, .chosen = all}
                                  : chosen_keys(*policy, cache, g, layer, length);
    t.key_bytes += k.far;
    t.chosen_bytes += k.chosen;
    t.gpu_keys += k.near;
    if (k.far == 0) continue;
    if (reads_all)
      add_whole(k, cache, g, t);
    else
      add_chosen(k, cache, g, t);
  }
  for (double* bytes :
       {&t.key_bytes, &t.chosen_bytes, &t.gpu_keys, &t.gpu_index, &t.gpu_ring, &t.cpu_rows,
        &t.cpu_stream, &t.cpu_codes, &t.cpu_scores, &t.link_rows, &t.link_stream, &t.link_small})
    *bytes *= batch;
  return t;
}

}  // namespace tandem::kv
